"""Processes as behaviour: who is restarted, and that none is left."""

import time

import psutil
import pytest

from seedx import launch, types
from tests import launch_node


def _start(tmp_path, count=1, **config):
  config = launch_node.Config(str(tmp_path), **config)
  return launch.Processes(
    [launch.Node("worker", launch_node.run, config, count)]
  )


def _marks(tmp_path):
  return len(list(tmp_path.iterdir()))


def _wait(condition, seconds=20):
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.02)


def test_every_instance_runs_and_ends_when_it_is_told_to(tmp_path):
  before = set(psutil.Process().children())
  processes = _start(tmp_path, count=3)
  _wait(lambda: _marks(tmp_path) == 3)
  children = set(psutil.Process().children()) - before
  assert len(children) == 3
  processes.check()
  start = time.monotonic()
  processes.stop(timeout_seconds=10)
  assert time.monotonic() - start < 5
  assert not any(child.is_running() for child in children)
  assert _marks(tmp_path) == 3  # Nobody was started again.


def test_one_that_dies_is_started_again(tmp_path, capfd):
  before = set(psutil.Process().children())
  processes = _start(tmp_path)
  _wait(lambda: _marks(tmp_path) == 1)
  (child,) = set(psutil.Process().children()) - before
  child.kill()

  def restarted():
    processes.check()
    return _marks(tmp_path) == 2

  _wait(restarted)
  processes.stop()
  assert f"worker {child.pid} died with status -9" in capfd.readouterr().err


def test_one_that_was_called_wrong_ends_the_run(tmp_path):
  processes = _start(tmp_path, status=2)
  with pytest.raises(types.ConfigError, match="cannot do its work"):
    _wait(processes.check)
  assert _marks(tmp_path) == 1
  processes.stop()


def test_one_that_dies_again_and_again_ends_the_run(tmp_path):
  processes = _start(tmp_path, status=1)
  with pytest.raises(RuntimeError, match="worker died 6 times within 10 s"):
    _wait(processes.check)
  assert _marks(tmp_path) == 6
  processes.stop()


def test_one_that_does_not_listen_is_killed(tmp_path):
  before = set(psutil.Process().children())
  processes = _start(tmp_path)
  _wait(lambda: _marks(tmp_path) == 1)
  (child,) = set(psutil.Process().children()) - before
  child.suspend()
  processes.stop(timeout_seconds=0.3)
  assert not child.is_running()
