"""The README, as a newcomer follows it: every command and every example."""

import importlib
import json
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys

import pytest

from seedx import app
from seedx.app import experiments, programs
from tests import with_ray

_ROOT = pathlib.Path(__file__).parent.parent
_TEXT = (_ROOT / "README.md").read_text()
# What a command is given beside its own words, so that it ends soon.
_SHORT = {
  "Pong-v5": "--total-steps 2000",
  "experiments.compare": "--total-steps 3000 --seeds 1",
  "experiments.sweep": "--trials 2 --total-steps 3000 --seeds 1",
  "--resume": "--total-steps 9000",
  # Each worker fills a replay of its own.
  "gorila": "--total-steps 12000",
  "": "--total-steps 5000",
}
# Stands for the library.
_WANDB = """
class Run:
  def log(self, line, step):
    assert line["env_steps"] == step

  def finish(self):
    pass


def init(project, dir, config):
  return Run()
"""
_TOOLS = (
  *("evaluate", "export", "plot", "tensorboard", "certificates"),
  "benchmark",
)


def blocks(language):
  return re.findall(rf"```{language}\n(.*?)```", _TEXT, re.DOTALL)


def file_named(name):
  """The text of a file that the README shows."""
  (found,) = [x for x in blocks("python") if x.startswith(f"# {name}\n")]
  return found


def commands():
  lines = [line for block in blocks("sh") for line in block.splitlines()]
  assert not [line for line in lines if line.endswith("\\")]
  return [line for line in lines if "pip install" not in line and line.strip()]


# Those of the README of commit 8be07fe: what people have in their scripts.
OLD = (pathlib.Path(__file__).parent / "old_commands.txt").read_text()
APART = [x for x in commands() if "--role" in x or "seedx.join" in x]
ALONE = [x for x in commands() if x not in APART]


def words_of(command):
  """A command's words for this Python, that end soon if it trains."""
  program, *words = shlex.split(command)
  assert program in (".venv/bin/python", "python")
  trains = not any(f"experiments.{tool}" in words for tool in _TOOLS)
  if trains and "--help" not in words:
    (first, *_) = [v for k, v in _SHORT.items() if k in command]
    words += first.split()
  return [sys.executable, *words]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """An empty folder with the files that the README shows."""
  folder = tmp_path_factory.mktemp("newcomer")
  for block in blocks("python"):
    name = re.match(r"# (\w+\.py)\n", block)
    if name:
      (folder / name[1]).write_text(block)
  (folder / "wandb.py").write_text(_WANDB)
  return folder


def run(place, words, **kwargs):
  keep = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
  own = {"PYTHONPATH": str(_ROOT), "JAX_PLATFORMS": "cpu"}
  own["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "True"  # They end soon.
  return subprocess.run(
    words,
    cwd=place,
    env={**keep, **with_ray.AS_OTHERS, **own},
    capture_output=True,
    text=True,
    timeout=600,
    **kwargs,
  )


def last_line(place):
  """Of the metrics that were written last."""
  paths = (place / "runs").rglob("metrics.jsonl")
  newest = max(paths, key=lambda path: path.stat().st_mtime)
  return json.loads(newest.read_text().splitlines()[-1])


@pytest.mark.long
@pytest.mark.parametrize("command", ALONE)
def test_a_command_does_its_work(command, place):
  """They run in the README's order, each in what those before have left."""
  if "experiments.sweep" in command:
    with_ray.needed()
  done = run(place, words_of(command))
  assert done.returncode == 0, done.stderr
  assert "Traceback" not in done.stderr
  if "--video" in command:
    name = re.search(r"--video (\S+)", command)[1]
    assert (place / name).stat().st_size > 1000
  if "experiments.plot" in command:
    name = re.search(r"--output (\S+)", command)[1]
    assert (place / name).stat().st_size > 1000
  if "--total-steps" in words_of(command):
    assert last_line(place)["learner_steps"] > 0
  if "--resume" in command:
    assert last_line(place)["env_steps"] >= 9000


@pytest.mark.parametrize(
  "command",
  [
    # It needs the run of a command above.
    pytest.param(x, marks=pytest.mark.long) if "--resume" in x else x
    for x in OLD.splitlines()
  ],
)
def test_a_command_of_before_still_parses(command, place, monkeypatch):
  """All but its work is done."""
  monkeypatch.chdir(place)
  _, _, module, *words = shlex.split(command.replace("runs/ppo", "runs/my_ppo"))
  name, parsed = module.rpartition(".")[2], []

  def work(*arguments, **_):
    parsed.append(arguments)
    return 0

  if name in (*_TOOLS, "compare"):
    tool = importlib.import_module(f"seedx.app.{name}")
    monkeypatch.setattr(tool, f"_{name}", work)
    assert tool.main(words) == 0
  else:
    monkeypatch.setattr(programs, "_train", work)
    monkeypatch.setattr(programs, "_join", work)
    found = experiments.load_module(name)
    if "--help" in words:
      with pytest.raises(SystemExit):
        app.main(found.EXPERIMENT, words, found.__name__)
      return
    assert app.main(found.EXPERIMENT, words, found.__name__) == 0
  assert parsed


@pytest.mark.long
def test_the_exported_policy_runs_without_seedx(place):
  text = file_named("use_policy.py")
  check = (
    "\nimport sys\nassert action.shape == (8,)\n"
    "assert not {'seedx', 'flax', 'rlax'} & set(sys.modules)\n"
  )
  done = run(place, [sys.executable, "-c", text + check])
  assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_the_roles_run_apart(place):
  """As on several machines, on an address of this one."""
  learner, actor = APART
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
    [sys.executable, *shlex.split(actor)[1:]],
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
@pytest.mark.parametrize(("name", "least"), [("my_loss", 450), ("my_dqn", 250)])
def test_the_loss_learns(place, name, least):
  done = run(place, [sys.executable, f"{name}.py"])
  assert done.returncode == 0, done.stderr
  assert float(done.stdout.split()[-1]) >= least


@pytest.mark.slow
def test_the_script_trains_and_acts(place):
  text = file_named("my_run.py").replace("60_000", "5_000")
  done = run(place, [sys.executable, "-c", text])
  assert done.returncode == 0, done.stderr
  trained, played = done.stdout.splitlines()
  assert trained.endswith("in runs/mine")
  assert 1 <= float(played.split()[-1]) <= 500


def test_the_other_python_runs():
  unnamed = [x for x in blocks("python") if not re.match(r"# \w+\.py\n", x)]
  assert unnamed
  for block in unnamed:
    exec(compile(block, "README.md", "exec"), {})


def test_links_lead_somewhere():
  links = re.findall(r"\]\(([^)#]+)\)", _TEXT)
  paths = [link for link in links if not link.startswith("http")]
  assert paths
  for path in paths:
    assert (_ROOT / path).exists(), path
