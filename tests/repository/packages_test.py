"""Tests of packages: metadata, extras, requirements, images and types."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys

import pytest

import seedx
from tests import programs

EXTRAS = ("cuda12", "cuda13", "tpu", "ray", "games")


def test_the_metadata_have_links_to_the_repository_and_the_extras():
  metadata = importlib.metadata.metadata("seedx")
  links = dict(x.split(", ") for x in metadata.get_all("Project-URL"))
  assert all(seedx.REPOSITORY in link for link in links.values())
  assert set(EXTRAS) < set(metadata.get_all("Provides-Extra"))


def test_the_version_is_the_same_everywhere():
  citation = (programs.ROOT / "CITATION.cff").read_text()
  assert f"\nversion: {seedx.__version__}\n" in citation
  changes = (programs.ROOT / "CHANGELOG.md").read_text()
  assert re.findall(r"^## \[([0-9.]+)\]", changes, re.M)[0] == seedx.__version__


@pytest.mark.long
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_can_be_installed(extra, tmp_path):
  home = programs.copied(tmp_path / "copy")
  words = ["install", "--dry-run", "--no-cache-dir", f".[{extra}]"]
  done = subprocess.run(
    [sys.executable, "-m", "pip", *words],
    cwd=home,
    check=True,
    stdout=subprocess.PIPE,
    text=True,
  )
  names = {"tpu": "libtpu", "ray": "ray", "games": "mctx"}
  name = names.get(extra, f"jax-{extra}-plugin")
  # The environment of the tests already has Ray and mctx.
  satisfied = rf"Requirement already satisfied: {name}[\[>]"
  assert re.search(satisfied, done.stdout) or f" {name}-" in done.stdout


def test_the_requirements_of_an_actor_are_a_subset_without_jax():
  metadata = importlib.metadata.requires("seedx") or []
  required = {re.split("[<>=;]", x)[0].strip() for x in metadata}
  text = (programs.ROOT / "requirements-actor.txt").read_text()
  lines = [x for x in text.splitlines() if x and x[0] != "#"]
  assert {re.split("[<>=]", x)[0] for x in lines} < required
  assert not [x for x in lines if "jax" in x or "flax" in x]


def installed_as_an_image(role, folder):
  """Installs as a Dockerfile does, in a new environment; returns its `bin`."""
  home = programs.copied(folder / "copy")
  for name in ("requirements-actor.txt", "constraints.txt"):
    shutil.copy(programs.ROOT / name, home)
  subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
  bin_folder = folder / "venv" / "bin"
  text = (programs.ROOT / "docker" / f"{role}.Dockerfile").read_text()
  steps = re.findall(r"^RUN (pip .*)$", text, re.MULTILINE)
  assert len(steps) == 2
  path = f"{bin_folder}:{os.environ['PATH']}"
  for step in steps:
    subprocess.run(
      ["sh", "-c", f"{step} -q"],
      cwd=home,
      env=programs.clean() | {"PATH": path, "EXTRA": ""},
      check=True,
    )
  return bin_folder


@pytest.fixture(scope="module")
def learner_bin(tmp_path_factory):
  return installed_as_an_image("learner", tmp_path_factory.mktemp("learner"))


@pytest.mark.long
def test_the_images_of_learner_and_actor_train_together(learner_bin, tmp_path):
  actor_bin = installed_as_an_image("actor", tmp_path)
  listed = subprocess.run(
    [actor_bin / "pip", "list"], capture_output=True, text=True, check=True
  )
  assert "jax" not in listed.stdout and "envpool" in listed.stdout
  socket = f"unix:{tmp_path}/socket"
  words = "train seed_vtrace --total-steps 3000 --num-actors 1"
  words += f" --envs-per-actor 8 --role learner --address {socket} --run-dir"
  learner = subprocess.Popen(
    [learner_bin / "seedx", *words.split(), tmp_path / "run"],
    cwd=tmp_path,
    env=programs.clean(),
    stderr=subprocess.PIPE,
    text=True,
  )
  try:
    actor = subprocess.run(
      [actor_bin / "python", "-m", "seedx.join", socket],
      cwd=tmp_path,
      env=programs.clean(),
      capture_output=True,
      text=True,
      timeout=600,
    )
    _, errors = learner.communicate(timeout=300)
  finally:
    learner.kill()
  assert actor.returncode == 0, actor.stderr
  assert "the run is over" in actor.stderr
  assert learner.returncode == 0, errors


@pytest.mark.long
def test_mypy_checks_a_users_file_against_seedx(learner_bin, tmp_path):
  (tmp_path / "mine.py").write_text(
    "from seedx import losses\n"
    "reveal_type(losses.a2c)\n"
    "losses.transitions(1, 2)\n"
  )
  python = f"--python-executable={learner_bin}/python"
  done = subprocess.run(
    [sys.executable, "-m", "mypy", python, "mine.py"],
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  assert "ActorCriticLoss" in done.stdout, done.stdout
  assert "Missing positional arguments" in done.stdout, done.stdout
