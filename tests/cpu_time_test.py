"""CPU time of processes, read from a fake /proc and from the real one."""

import os
import signal
import subprocess
import sys

import pytest

from seedx.metrics import cpu_time
from tests import running

TICK = 1 / os.sysconf("SC_CLK_TCK")
BUSY = "while True: pass"


class Proc:
  """A fake /proc with the given times, in ticks."""

  def __init__(self, path, cores):
    self.path, self._cores = path, cores

  def set_machine(self, user, interrupts=0, elsewhere=0, stolen=0):
    """Sets the time of each core."""
    used = f"{user} 0 0 {10**6 - user} 7 {interrupts} {interrupts}"
    mine = [f"cpu{core} {used} {stolen} 0 0" for core in self._cores]
    other = f"cpu{max(self._cores) + 1} {elsewhere} 0 0 0 0 0 0 0 0 0"
    text = "\n".join(["cpu  9 9 9 9 9 9 9 9 0 0", *mine, other, "ctxt 5", ""])
    (self.path / "stat").write_text(text)

  def set_process(self, pid, parent, user, system=0, ended=0):
    (self.path / str(pid)).mkdir(exist_ok=True)
    text = f"{pid} (a) b (c) S {parent} 1 1 0 -1 0 0 0 0 0"
    text += f" {user} {system} {ended} {ended} 20 0"
    (self.path / str(pid) / "stat").write_text(text)


@pytest.fixture
def proc(tmp_path, monkeypatch):
  monkeypatch.setattr(cpu_time.os, "sched_getaffinity", lambda pid: {1, 3})
  proc = Proc(tmp_path, cores=(1, 3))
  proc.set_machine(1000)
  proc.set_process(1, 0, 100)
  proc.set_process(os.getpid(), 1, 100)
  return proc


def test_only_the_time_of_other_processes_on_the_same_cores_counts(proc):
  others = cpu_time.Others(proc.path)
  assert others.seconds == 0
  # Two cores are busy for 100 ticks each, of which 10 are stolen.
  proc.set_machine(1090, interrupts=500, elsewhere=500, stolen=10)
  proc.set_process(1, 0, 130)
  assert others.seconds == pytest.approx(200 * TICK)
  # This process, its child, and a grandchild that has ended.
  proc.set_process(os.getpid(), 1, 120, system=5)
  proc.set_process(99999, os.getpid(), 50, ended=20)
  assert others.seconds == pytest.approx((200 - 25 - 50 - 40) * TICK)
  # The result is never negative.
  proc.set_process(99999, os.getpid(), 50, ended=200)
  assert others.seconds == 0


def test_a_tree_has_all_descendants_of_a_process(proc):
  proc.set_process(5, 1, 100)
  proc.set_process(6, os.getpid(), 200)
  proc.set_process(7, 6, 300)
  seconds = {os.getpid(): 1.0, 6: 2.0, 7: 3.0}
  ticks = {pid: 100 * x * TICK for pid, x in seconds.items()}
  actual = cpu_time.of_tree(os.getpid(), proc.path)
  assert actual == pytest.approx(ticks)
  assert cpu_time.of_tree(8, proc.path) == {}


@pytest.mark.parametrize("kind", ["missing", "zeros"])
def test_nothing_is_known_without_the_time_of_the_machine(kind, proc):
  if kind == "zeros":
    proc.set_machine(0)
  else:
    (proc.path / "stat").unlink()
  others = cpu_time.Others(proc.path)
  assert others.seconds is None and others.cores is None


def test_a_busy_process_counts_unless_it_is_a_descendant():
  before = cpu_time.of_machine()
  others = cpu_time.Others()
  # The shell ends, so that its child gets another parent.
  shell = f'{sys.executable} -c "{BUSY}" >/dev/null & echo $!'
  words = ["sh", "-c", shell]
  pid = int(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
  try:
    running.wait_until(lambda: cpu_time.of_tree(pid)[pid] > 0.5)
    assert pid not in cpu_time.of_tree(os.getpid())
    assert others.seconds > 0.3 and others.cores > 0
  finally:
    os.kill(pid, signal.SIGKILL)
  with subprocess.Popen([sys.executable, "-c", BUSY]) as process:
    running.wait_until(lambda: cpu_time.of_tree(process.pid)[process.pid] > 0.5)
    assert others.seconds < cpu_time.of_machine() - before - 0.5
    process.kill()
  # The time of an ended child still does not count as others' time.
  assert others.seconds < cpu_time.of_machine() - before - 0.5
