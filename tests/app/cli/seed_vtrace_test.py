"""The program `experiments.seed_vtrace`, run as a user would."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from experiments import seed_vtrace
from tests import programs, running

own_signals = programs.own_signals

_ROOT = pathlib.Path(__file__).parents[3]
_SMALL = ("--envs-per-actor", "8", "--batch-size", "8", "--unroll-length", "5")


def _start(*arguments, program=("experiments.seed_vtrace",)):
  """Starts a program without the virtual devices of the tests."""
  return subprocess.Popen(
    [sys.executable, "-m", *program, *map(str, arguments)],
    cwd=_ROOT,
    env={**os.environ, "XLA_FLAGS": ""},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _lines(run_dir):
  return programs.lines_of(run_dir / "metrics.jsonl")


def _wait_until(program, condition):
  """Waits for a condition while a program runs."""

  def failed():
    assert program.poll() is None, program.communicate()

  running.wait_until(condition, failed)


def _wait_for_steps(run_dir, env_steps, program):
  _wait_until(program, lambda: _env_steps(run_dir) >= env_steps)


def _env_steps(run_dir):
  return max((line["env_steps"] for line in _lines(run_dir)), default=0)


def _actors(program):
  return [
    child
    for child in psutil.Process(program.pid).children(recursive=True)
    if child.status() != psutil.STATUS_ZOMBIE
    and "seedx.launch actor" in " ".join(child.cmdline())
  ]


@pytest.mark.slow
def test_actors_are_thin_are_restarted_and_leave_with_ctrl_c(tmp_path):
  """An actor of a run is killed; then Ctrl-C ends the run."""
  program = _start("--run-dir", tmp_path, "--total-steps", 10**9, *_SMALL)
  _wait_for_steps(tmp_path, 1000, program)
  actors = _actors(program)
  assert len(actors) == 2
  for child in actors:
    maps = " ".join(region.path for region in child.memory_maps())
    assert "envpool" in maps
    assert "jaxlib" not in maps

  actors[0].kill()
  gone = actors[0].pid
  _wait_until(
    program,
    lambda: len(x := _actors(program)) == 2 and gone not in {a.pid for a in x},
  )
  _wait_for_steps(tmp_path, _env_steps(tmp_path) + 3000, program)
  assert _lines(tmp_path)[-1]["unrolls_discarded"] >= 8
  after = _actors(program)

  program.send_signal(signal.SIGINT)
  out, err = _ended(program, 130)
  assert "Traceback" not in err
  assert "processes that died and were restarted: 1\n" in out
  assert not any(psutil.pid_exists(child.pid) for child in after)

  # Files of the run, and its printed result.
  assert "CartPole-v1: mean return of the last" in out
  assert "solved (Gymnasium's threshold is 475)" in out
  assert "env steps/s" in err and "bottleneck" in err
  names = {path.name for path in tmp_path.iterdir()}
  assert {"config.json", "metrics.jsonl", "learning_curve.png"} <= names
  assert any(name.startswith("events.out.tfevents") for name in names)
  config = json.loads((tmp_path / "config.json").read_text())
  assert config["experiment"] == "seed_vtrace"
  assert config["options"]["env"] == "CartPole-v1"
  assert config["options"]["total_steps"] == 10**9
  fields = """wall_seconds env_steps env_frames learner_steps steps_per_second
    episodes episode_return policy_lag learned_steps unrolls_discarded"""
  assert set(fields.split()) <= set(_lines(tmp_path)[-1])


@pytest.mark.slow
def test_ctrl_c_ends_an_actor_that_waits_for_its_learner(tmp_path):
  actor = _start(f"unix:{tmp_path}/nobody", program=("seedx", "join"))
  process = psutil.Process(actor.pid)
  _wait_until(
    actor, lambda: any("grpc" in x.path for x in process.memory_maps())
  )
  actor.send_signal(signal.SIGINT)
  _, err = _ended(actor, 130)
  assert "Traceback" not in err


def _ended(program, status):
  out, err = program.communicate(timeout=600)
  assert program.returncode == status, err
  return out, err


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (("--env", "CartPole-v9"), ("CartPole-v9", "CartPole-v1")),
    (("--inference-devices", "9"), ("inference devices", "0 to 7", "9")),
    (("--learner-devices", "0,0"), ("learner devices", "0, 0")),
    (("--run-dir", "/dev/null/run"), ("/dev/null/run",)),
  ],
)
def test_bad_input_is_refused_with_one_line_and_status_2(
  tmp_path, capfd, arguments, words
):
  if "--run-dir" not in arguments:
    arguments = (*arguments, "--run-dir", str(tmp_path))
  with pytest.raises(SystemExit) as caught:
    programs.main(seed_vtrace, arguments)
  assert caught.value.code == 2
  out, err = capfd.readouterr()
  assert not out
  # Lines about the run, its presets and its network may come before the error.
  *first, error = err.splitlines()
  assert len(first) <= 3 and "Traceback" not in err, err
  assert all(word in error for word in words), err


@pytest.mark.slow
def test_an_address_in_use_is_refused_with_one_line_and_status_2(
  tmp_path, capfd
):
  with socket.create_server(("127.0.0.1", 0)) as taken:
    address = f"127.0.0.1:{taken.getsockname()[1]}"
    words = ("--role", "learner", "--address", address, "--run-dir", tmp_path)
    line = programs.refused(seed_vtrace, [*map(str, words), *_SMALL], capfd)
  assert address in line and "in use" in line
