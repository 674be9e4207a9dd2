"""Tests of nodes' processes: they are restarted, and none is left behind."""

import os
import threading
import time
from unittest import mock

import psutil
import pytest

from seedx import signals, types
from seedx.launch import config as launch_config
from seedx.launch import instances, ray_cluster, topology
from tests import launch_node, running


def _start(tmp_path, count=1, **config):
  config = launch_node.Config(str(tmp_path), **config)
  return instances.Processes(
    [topology.Node("worker", launch_node.run, config, count)]
  )


def _marks(tmp_path):
  return len(list(tmp_path.iterdir()))


def _children():
  return set(psutil.Process().children())


def test_instances_run_until_they_are_stopped_and_ignore_signals(tmp_path):
  before = _children()
  processes = _start(tmp_path, count=2)
  children = _children() - before
  assert len(children) == 2
  # The first signals arrive while the children start.
  while _marks(tmp_path) < 2:
    for child in children:
      for number in signals.ENDING:
        child.send_signal(number)
    processes.check()
    time.sleep(0.02)
  processes.stop(timeout_seconds=300)
  assert not any(child.is_running() for child in children)
  assert not processes.restarts
  assert _marks(tmp_path) == 2  # No instance was restarted.


@pytest.mark.parametrize("needs_jax", [True, False])
def test_processes_that_compute_share_the_cores(
  tmp_path, monkeypatch, needs_jax
):
  threads = "1" if needs_jax else "none"
  monkeypatch.delenv("PJRT_NPROC", raising=False)
  config = launch_node.Config(str(tmp_path))
  node = topology.Node("w", launch_node.report_threads, config, 999, needs_jax)
  process = instances.Process("w", topology.message(node, ""))
  try:
    running.wait_until(lambda: _marks(tmp_path) == 1)
    (mark,) = tmp_path.iterdir()
    assert mark.name.endswith(f"-{threads}")
  finally:
    process.leave()
    process.end(300)


def test_one_process_has_all_cores(monkeypatch):
  monkeypatch.setattr(os, "environ", {})
  topology.share_cores(1)
  assert os.environ == {"PJRT_NPROC": str(len(os.sched_getaffinity(0)))}


@pytest.mark.parametrize("returns", [False, True])
def test_a_process_exits_only_when_stopped_and_removes_the_folder(
  tmp_path, returns
):
  marks, sockets = tmp_path / "marks", tmp_path / "sockets"
  marks.mkdir()
  sockets.mkdir()
  before = _children()
  config = launch_node.Config(str(marks), returns=returns)
  node = topology.Node("worker", launch_node.run, config, 1)
  processes = instances.Processes([node], str(sockets))
  (child,) = _children() - before
  running.wait_until(lambda: _marks(marks) == 1)
  # By then a process that does not wait for the stop would have exited.
  time.sleep(0.5 if returns else 0.0)
  assert child.status() != psutil.STATUS_ZOMBIE
  processes.stop(timeout_seconds=300)
  assert not sockets.exists()


def test_an_instance_that_dies_is_restarted_and_can_always_be_ended(
  tmp_path, capfd
):
  before = _children()
  processes = _start(tmp_path)
  running.wait_until(lambda: _marks(tmp_path) == 1)
  (child,) = _children() - before
  child.kill()

  def restarted():
    processes.check()
    return _marks(tmp_path) == 2

  running.wait_until(restarted)
  # An instance that does not end by itself is killed.
  (another,) = _children() - before
  another.suspend()
  processes.stop(timeout_seconds=0.1)
  assert not another.is_running()
  assert f"worker {child.pid} died with status -9" in capfd.readouterr().err


@pytest.mark.parametrize(
  ("error", "reported"),
  [("called wrong", "called wrong"), ("\n", "ConfigError")],
)
def test_an_instance_with_a_wrong_config_ends_the_run(
  error, reported, tmp_path
):
  processes = _start(tmp_path, status=2, error=error)
  with pytest.raises(types.ConfigError, match=f"do its work: {reported}$"):
    running.wait_until(processes.check)
  assert _marks(tmp_path) == 1
  processes.stop()


def test_an_instance_that_dies_often_ends_the_run_and_prints_equal_errors_once(
  tmp_path, monkeypatch, capfd
):
  monkeypatch.setattr(instances, "_BACKOFF_SECONDS", 0.01)
  monkeypatch.setattr(instances, "_FATAL_DEATHS", 3)
  processes = _start(tmp_path, status=1, count=2)
  error = (
    r"status 1: RuntimeError: environment 3 \(seed \d+\) failed \.\.\. NaN"
  )
  with pytest.raises(
    instances.DiedError, match=f"worker died 3 times.*{error}"
  ):
    running.wait_until(processes.check)
  processes.stop()
  err = capfd.readouterr().err
  assert err.count("Traceback (most recent call last)") == 1
  assert err.count("launch_node.py") == 1
  first, *others = [x for x in err.splitlines() if " died with status 1" in x]
  assert "traceback" not in first and len(others) in (2, 3)
  for k, line in enumerate(others, 2):
    assert line.endswith(f" (the traceback above, {k} times so far)")


def test_a_long_traceback_that_is_not_valid_text_is_cut_in_the_middle(
  tmp_path, capfd
):
  """Messages of errors may contain such names of files."""
  processes = _start(tmp_path, status=1, error="x" * 300_000 + " \udcff")
  running.wait_until(lambda: processes.check() or processes.restarts)
  processes.stop()
  err = capfd.readouterr().err
  assert err.startswith("Traceback (most recent") and "x\n...\nx" in err
  assert "\\udcff" in err and "UnicodeEncodeError" not in err
  assert "launch_node.py" in err
  assert len(err) < 40_000


class _FakeInstance:
  """An instance whose fake process dies at given times."""

  def __init__(self, monkeypatch):
    self.now, self.starts = 0.0, []
    fake = self

    class Popen:
      pid = 7

      def __init__(self, *_, **__):
        fake.starts.append(fake.now)
        self.returncode = None
        fake.newest = self

      def poll(self):
        return self.returncode

    monkeypatch.setattr(instances.subprocess, "Popen", Popen)
    monkeypatch.setattr(instances.time, "monotonic", lambda: self.now)
    node = topology.Node("worker", launch_node.run, None)
    (self.child,) = instances.Processes([node])._instances

  def restart_after(self, seconds, status):
    """Ends the process after `seconds`; returns the time of the next start."""
    self.now += seconds
    self.newest.returncode = status
    started = len(self.starts)
    while not self.child.check():
      self.now += 0.5
    assert len(self.starts) == started + 1
    return self.now


def test_each_restart_waits_longer_than_the_previous_one(monkeypatch):
  instance = _FakeInstance(monkeypatch)
  waits = []
  for _ in range(5):
    waits.append(instance.restart_after(12.0, 1) - instance.starts[-2] - 12.0)
  assert waits == [0.0, 1.0, 3.0, 7.0, 15.0]
  with pytest.raises(RuntimeError, match="worker died 6 times within 86 s"):
    instance.restart_after(12.0, 1)


class _FakeRay:
  """A fake of Ray, on which a learner dies several times before it returns."""

  class exceptions:
    class RayActorError(Exception):
      pass

    class RayTaskError(Exception):
      pass

  def __init__(self, monkeypatch):
    self.starts = 0
    monkeypatch.setattr(ray_cluster, "ray", lambda: self)
    monkeypatch.setattr(ray_cluster, "Cluster", mock.MagicMock())
    monkeypatch.setattr(ray_cluster, "_elsewhere", self._start)
    monkeypatch.setattr(instances, "_BACKOFF_SECONDS", 0.001)

  def _start(self, work, config, stop, ending):
    self.starts += 1
    if self.starts <= self.times:
      raise self.exceptions.RayActorError("no memory")
    return "done"

  def run(self, times, stops=False):
    """Runs a learner that dies `times` times, after a signal if `stops`."""
    self.starts, self.times = 0, times
    stop, ending = threading.Event(), signals.Ending()
    if stops:
      stop.set()
      ending.status = 143
    return ray_cluster.elsewhere(None, None, stop, ending)


def test_a_learner_on_a_cluster_restarts_a_limited_number_of_times(
  monkeypatch, capfd
):
  ray = _FakeRay(monkeypatch)
  assert ray.run(times=2) == "done" and ray.starts == 3
  assert capfd.readouterr().err == 2 * "the learner died: no memory\n"
  with pytest.raises(RuntimeError, match="the learner died 6 times"):
    ray.run(times=99)
  assert ray.starts == 6
  with pytest.raises(SystemExit, match="143"):
    ray.run(times=99, stops=True)
  assert ray.starts == 1


@pytest.mark.parametrize(
  ("environment", "folder"),
  [
    ({"TMPDIR": "/" + 100 * "x"}, "/tmp/ray"),
    ({"TMPDIR": "/" + 100 * "x", "RAY_TMPDIR": "/mine"}, None),
    ({"TMPDIR": "/x"}, None),
  ],
)
def test_rays_sockets_have_short_paths(environment, folder, monkeypatch):
  ray = mock.MagicMock()
  ray.is_initialized.return_value = False
  ray.util.get_node_ip_address.return_value = "127.0.0.1"
  monkeypatch.setattr(ray_cluster, "ray", lambda: ray)
  monkeypatch.delenv("RAY_TMPDIR", raising=False)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  ray_cluster.Cluster(launch_config.Config(ray_address="local")).leave()
  assert ray.init.call_args.kwargs.get("_temp_dir") == folder


def test_rare_deaths_and_kills_do_not_end_a_run(monkeypatch):
  instance = _FakeInstance(monkeypatch)
  for _ in range(50):
    died = instance.now + 180.0
    assert instance.restart_after(180.0, 1) - died <= 7.0
  for _ in range(50):
    died = instance.now + 20.0
    assert instance.restart_after(20.0, -9) == died
  instance.restart_after(3.0, 2)  # The config has worked before.
  with pytest.raises(RuntimeError, match="worker died"):
    for _ in range(6):
      instance.restart_after(2.0, -9)  # A lack of memory looks like this.
