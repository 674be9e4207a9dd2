"""Programs that run in the process of a test, or in a process of their own."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading

import pytest

from seedx import app, checkpoint, envs, metrics, signals
from seedx.acting import evaluator, local_actor
from seedx.agents import a2c, base, dqn, ppo, rainbow, vtrace
from seedx.app.runs import checkpointer
from seedx.learning import updates
from tests import with_ray

ROOT = pathlib.Path(__file__).parent.parent
_KEPT = ("seedx", "experiments", "setup.py", "pyproject.toml", "README.md")


@pytest.fixture(autouse=True)
def own_signals():
  """Checks that a program restores the signal handlers it replaces."""
  numbers = signals.ENDING
  handlers = [signal.getsignal(number) for number in numbers]
  yield
  assert [signal.getsignal(number) for number in numbers] == handlers


def _once(function):
  """Returns a function that keeps its result for each set of arguments."""
  results, lock = {}, threading.RLock()

  def comparable(argument):
    try:
      hash(argument)
    except TypeError:
      return str(argument)
    return argument

  def call(*arguments, **options):
    key = tuple(map(comparable, (*arguments, *sorted(options.items()))))
    with lock:
      if key not in results:
        results[key] = function(*arguments, **options)
      return results[key]

  return call


def _made_once(init):
  """Returns an `__init__` that shares the fields of equally made objects."""

  @_once
  def fields(kind, *arguments):
    init(made := object.__new__(kind), *arguments)
    return vars(made)

  return lambda made, *rest: vars(made).update(fields(type(made), *rest))


# Functions that `compiled_once` replaces, and their replacements.
_SHARED = [
  (envs, "spec", _once(envs.spec)),
  (base, "without_priorities", _once(base.without_priorities)),
  *(
    (agent.Config, "make", _once(agent.Config.make))
    for agent in (a2c, dqn, ppo, rainbow, vtrace)
  ),
  *(
    (kind, "__init__", _made_once(kind.__init__))
    for kind in (
      updates.Whole,
      updates.Accumulation,
      local_actor.Programs,
      evaluator.Evaluator,
    )
  ),
]


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
  """Shares an agent and its compiled programs among runs of equal configs."""
  with pytest.MonkeyPatch.context() as patch:
    for shared in _SHARED:
      patch.setattr(*shared)
    yield


def main(program, words):
  """Runs a module with an experiment or a `main`; returns the exit status."""
  if hasattr(program, "EXPERIMENT"):
    return app.main(program.EXPERIMENT, list(words), program.__name__)
  return program.main(list(words))


def start(program, *words, environment=None, **options):
  """Starts a program in a process of its own, with options of `Popen`."""
  options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, **options}
  return subprocess.Popen(
    [sys.executable, "-m", program.__name__, *words],
    cwd=ROOT,
    env={**os.environ, **(environment or {})},
    text=True,
    **options,
  )


def refused(program, words, capfd):
  """Returns the one-line error of a program that exits with status 2."""
  capfd.readouterr()
  with pytest.raises(SystemExit) as caught:
    main(program, words)
  assert caught.value.code == 2
  out, err = capfd.readouterr()
  assert "Traceback" not in out + err
  lines = [line for line in err.splitlines() if line.startswith("error: ")]
  assert len(lines) == 1 and err.endswith(lines[0] + "\n")
  return lines[0]


def lines_of(path):
  """Returns the JSON values of a file's lines; none if there is no file."""
  text = path.read_text() if path.exists() else ""
  return [json.loads(line) for line in text.splitlines()]


def free_port():
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


def env_steps(run_dir):
  """Returns the env steps in a run's newest line; 0 if there is none."""
  path = run_dir / "metrics.jsonl"
  lines = metrics.read_lines(path) if path.exists() else []
  return lines[-1]["env_steps"] if lines else 0


def steps_of(run_dir):
  return checkpoint.Checkpoints(checkpointer.directory(run_dir)).steps()


@pytest.fixture
def started(tmp_path):
  """Yields a function that starts studies; kills their programs at the end."""
  pytest.importorskip("optuna")
  begun = []

  def start(*words, study="sweep"):
    program = [sys.executable, "-m", "seedx", study, *words]
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    begun.append(
      subprocess.Popen(
        [*program, "--run-dir", str(tmp_path / "run")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, **with_ray.AS_OTHERS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
      )
    )
    return begun[-1]

  yield start
  for program in begun:
    program.kill()
    program.wait()


def read_events(run_dir):
  """Returns step and value of each summary, a message of tensorboardX."""
  from tensorboardX.proto import event_pb2

  values = []
  (path,) = run_dir.glob("events.out.tfevents.*")
  data = path.read_bytes()
  while data:
    # A TFRecord has the length, its checksum, the event, and its checksum.
    length = int.from_bytes(data[:8], "little")
    event = event_pb2.Event.FromString(data[12 : 12 + length])
    data = data[16 + length :]
    values += [(event.step, value) for value in event.summary.value]
  return values


def copied(folder):
  """Copies the files of an installation from the repository to a folder."""
  folder.mkdir()
  for name in _KEPT:
    source = ROOT / name
    if source.is_dir():
      ignored = shutil.ignore_patterns("__pycache__")
      shutil.copytree(source, folder / name, ignore=ignored)
    else:
      shutil.copy(source, folder / name)
  return folder


def clean():
  """Returns this process's environment variables without PYTHONPATH."""
  return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
