"""Tests of the README and the pages: their commands, examples and links."""

import importlib.util
import json
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys

import pytest

from seedx.__main__ import _PROGRAMS
from seedx.app.runs import records
from seedx.app.settings import experiments
from tests import with_ray
from tests.repository import documentation

_ROOT = pathlib.Path(__file__).parents[2]
# Options that make a command end soon, by a text that the command contains.
_SHORT = {
  "Pong-v5": "--total-steps 2000",
  "seedx compare": "--total-steps 3000 --seeds 1",
  "seedx sweep": "--trials 2 --total-steps 3000 --final-seeds 1",
  "--resume": "--total-steps 9000",
  # Each worker must fill its own replay.
  "gorila": "--total-steps 12000",
  "": "--total-steps 5000",
}
# A fake of the library of Weights & Biases.
_WANDB = """
class Run:
  id = "abc"

  def define_metric(self, name, step_metric):
    assert (name, step_metric) == ("*", "env_steps")

  def log(self, line):
    assert line["env_steps"]

  def finish(self):
    pass


def init(project, dir, config, id, resume):
  return Run()
"""
_TOOLS = ("arena", "evaluate", "export", "plot", "certificates")


def commands(pages=documentation.PAGES):
  lines = [
    line for x in documentation.blocks("sh", pages) for line in x.splitlines()
  ]
  assert not [line for line in lines if line.endswith("\\")]
  installs = "pip install", "-m venv"
  return list(
    dict.fromkeys(
      line
      for line in lines
      if line.strip() and not any(x in line for x in installs)
    )
  )


# Commands that need another command at the same time, and all others.
APART = [x for x in commands() if "--role" in x or "seedx join" in x]
ALONE = [x for x in commands() if x not in APART]


def words_of(command):
  """Returns the words of a command for a short training with this Python."""
  program, *words = shlex.split(command)
  assert program in ("seedx", "python")
  if program == "seedx" and words[0] not in (*_TOOLS, "join"):
    if "--help" not in words:
      (first, *_) = [v for k, v in _SHORT.items() if k in command]
      words += first.split()
  elif program == "python":
    words += _SHORT[""].split()
  if program == "seedx":
    words = ["-m", "seedx", *words]
  return [sys.executable, *words]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """Folder with the files that the pages show."""
  folder = tmp_path_factory.mktemp("newcomer")
  for block in documentation.blocks("python"):
    name = re.match(r"# (\w+\.py)\n", block)
    if name:
      (folder / name[1]).write_text(block)
  (folder / "wandb.py").write_text(_WANDB)
  return folder


def run(place, words, **kwargs):
  inherited = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
  changed = {"PYTHONPATH": str(_ROOT), "JAX_PLATFORMS": "cpu"}
  # Short runs take longer to compile than to run.
  changed["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "True"
  return subprocess.run(
    words,
    cwd=place,
    env={**inherited, **with_ray.AS_OTHERS, **changed},
    capture_output=True,
    text=True,
    timeout=600,
    **kwargs,
  )


def last_line(place):
  paths = (place / "runs").rglob("metrics.jsonl")
  newest = max(paths, key=lambda path: path.stat().st_mtime)
  return json.loads(newest.read_text().splitlines()[-1])


@pytest.mark.long
@pytest.mark.parametrize("command", ALONE)
def test_a_command_succeeds(command, place):
  """Runs the commands in the pages' order, all in the same folder."""
  if "seedx sweep" in command:
    with_ray.needed()
  done = run(place, words_of(command))
  assert done.returncode == 0, done.stderr
  assert "Traceback" not in done.stderr
  if "--video" in command:
    name = re.search(r"--video (\S+)", command)[1]
    assert (place / name).stat().st_size > 1000
  if "seedx plot" in command:
    name = re.search(r"--output (\S+)", command)[1]
    assert (place / name).stat().st_size > 1000
  if "--total-steps" in words_of(command):
    assert last_line(place)["learner_steps"] > 0
  if "--resume" in command:
    assert last_line(place)["env_steps"] >= 9000


@pytest.mark.parametrize(
  "command",
  [
    x
    for x in commands()
    # Commands with --resume or join need a run or a learner.
    if x.startswith("seedx ") and "--resume" not in x and " join " not in x
  ],
)
def test_a_command_can_be_parsed(command, place, monkeypatch):
  monkeypatch.chdir(place)
  monkeypatch.syspath_prepend(place)
  if library := re.search(r"--env (brax|craftax|gymnax):", command):
    pytest.importorskip(library[1])
  _, name, *words = shlex.split(command)
  if name == "train":
    name, *words = words
  documentation.parse(name, words, monkeypatch)


def test_the_page_on_tasks_names_the_current_format_of_runs():
  text = (_ROOT / "docs/tasks.md").read_text()
  (number,) = re.findall(r"`config.json` is not the current one, (\d+)", text)
  assert int(number) == records.FORMAT


@pytest.mark.long
def test_the_exported_policy_runs_without_seedx(place):
  text = documentation.file_named("use_policy.py")
  check = (
    "\nimport sys\nassert action.shape == (8,)\n"
    "assert not {'seedx', 'flax', 'rlax'} & set(sys.modules)\n"
  )
  done = run(place, [sys.executable, "-c", text + check])
  assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_learner_and_an_actor_train_with_separate_commands(place):
  """Runs the commands for several machines, but with local addresses."""
  machines = commands([documentation.INDEX.parent / "machines.md"])
  learner, actor = [x for x in machines if x in APART]
  if not (place / "tls").exists():
    (certificates,) = [x for x in ALONE if "certificates" in x]
    assert run(place, words_of(certificates)).returncode == 0
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = str(probe.getsockname()[1])
  assert "8470" in learner and "learner-host:8470" in actor
  learner = learner.replace("0.0.0.0:8470", f"127.0.0.1:{port}")
  actor = actor.replace("learner-host:8470", f"localhost:{port}")
  acting = subprocess.Popen(
    words_of(actor),
    cwd=place,
    env={**os.environ, "PYTHONPATH": str(_ROOT)},
  )
  try:
    done = run(place, [*words_of(learner), "--num-actors", "1"])
    assert done.returncode == 0, done.stderr
    assert acting.wait(300) == 0
  finally:
    acting.kill()


@pytest.mark.long
@pytest.mark.parametrize(
  ("name", "minimum"), [("my_loss", 450), ("my_dqn", 250)]
)
def test_a_users_loss_learns(place, name, minimum):
  done = run(place, [sys.executable, f"{name}.py"])
  assert done.returncode == 0, done.stderr
  assert float(done.stdout.split()[-1]) >= minimum


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my_run.py", "train_ppo.py"])
def test_a_script_trains_and_acts(place, name):
  text = documentation.file_named(name).replace("60_000", "5_000")
  done = run(place, [sys.executable, "-c", text])
  assert done.returncode == 0, done.stderr
  trained, *played = done.stdout.splitlines()
  assert re.search(r"in runs/(mine|train_ppo)$", trained)
  if name == "my_run.py":
    assert 1 <= float(played[0].split()[-1]) <= 500


def test_python_code_without_a_file_name_runs():
  unnamed = [
    x for x in documentation.blocks("python") if not re.match(r"# \w+\.py\n", x)
  ]
  assert unnamed
  for block in unnamed:
    exec(compile(block, "a page", "exec"), {})


def anchors(page):
  """Returns the anchors that GitHub makes for a page's headings."""
  lines = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
  titles = re.findall(r"^#+ (.*)$", lines, re.MULTILINE)
  return {re.sub(r"[^\w -]", "", x.lower()).replace(" ", "-") for x in titles}


@pytest.mark.parametrize("page", documentation.PAGES, ids=documentation.name_of)
def test_programs_and_experiments_in_the_text_exist(page):
  text = page.read_text()
  named = re.findall(r"`(?:\$ )?seedx ([\w.]+)(?: ([\w.]+))?", text)
  for program, name in named:
    assert program in ("train", *_PROGRAMS), program
    if program == "train" and name and not name.endswith(".py"):
      assert name in experiments.shipped(), name
  for module in re.findall(r"python -m\s+([\w.]+)", text):
    assert importlib.util.find_spec(module), module


def test_error_messages_link_to_sections_that_exist():
  code = "".join(x.read_text() for x in (_ROOT / "seedx").rglob("*.py"))
  linked = re.findall(r"""types\.see\(["']([\w-]+)["']\)""", code)
  assert linked and len(linked) == code.count("types.see(")
  assert {*linked} < anchors(documentation.INDEX.parent / "trouble.md")


@pytest.mark.parametrize("page", documentation.PAGES, ids=documentation.name_of)
def test_targets_of_links_exist(page):
  text = page.read_text()
  links = re.findall(r"\]\(([^)\s]+)\)", text)
  links += re.findall(r'(?:src|srcset)="([^"]+)"', text)
  for link in links:
    if not link.startswith("http"):
      path, _, anchor = link.partition("#")
      target = (page.parent / path).resolve() if path else page
      assert target.exists(), link
      assert not anchor or anchor in anchors(target), link
