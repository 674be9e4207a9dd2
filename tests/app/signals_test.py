"""Programs that a signal ends: what they save, print and leave behind."""

import contextlib
import ctypes
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import psutil
import pytest

from experiments import a2c, gorila_dqn, seed_vtrace
from seedx import metrics, signals
from tests import programs, running

SMALL = ("--env", "tests.own_envs:cartpole", "--num-envs", "4")


class Program:
  """A program in its own session, with a folder for its temporary files.

  Attributes:
    run_dir: directory of the run.
    sockets: folder for temporary files.
    running: the process.
    children: its descendants, when it had made the steps waited for.
  """

  def __init__(self, tmp_path, experiment, *words, **options):
    self.run_dir, self.sockets = tmp_path / "run", tmp_path / "sockets"
    self.sockets.mkdir()
    self.children = []
    fixed = ["--run-dir", str(self.run_dir), "--total-steps", "1000000000"]
    self.running = programs.start(
      experiment,
      *fixed,
      "--log-seconds",
      "0.1",
      *words,
      environment={"TMPDIR": str(self.sockets)},
      **options,
    )

  def env_steps(self):
    """Returns the env steps of the last line of metrics."""
    path = self.run_dir / "metrics.jsonl"
    lines = metrics.read_lines(path) if path.exists() else []
    return lines[-1]["env_steps"] if lines else 0

  def wait_for_steps(self, env_steps=100):
    running.wait_until(lambda: self.env_steps() >= env_steps, self._check)
    self.children = psutil.Process(self.running.pid).children(recursive=True)

  def _check(self):
    assert self.running.poll() is None, self.running.communicate()

  def catches(self, number):
    """Returns whether the program handles a signal."""
    status = pathlib.Path(f"/proc/{self.running.pid}/status").read_text()
    caught = re.search(r"SigCgt:\s+(\w+)", status)[1]
    return int(caught, 16) >> (number - 1) & 1

  def ended(self):
    """Waits for the end, checks that nothing is left, and returns stderr."""
    _, err = self.running.communicate(timeout=600)
    _, alive = psutil.wait_procs(self.children, timeout=300)
    assert not alive and not list(self.sockets.iterdir())
    assert "Traceback" not in (err or "")
    return err

  def checkpoints(self):
    """Returns the env steps of the checkpoints."""
    return [int(x.name) for x in (self.run_dir / "checkpoints").glob("[0-9]*")]


@pytest.fixture
def start(tmp_path):
  started = []

  def start(*arguments, **options):
    started.append(Program(tmp_path, *arguments, **options))
    return started[-1]

  yield start
  for program in started:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(program.running.pid, signal.SIGKILL)
    program.running.communicate()


@pytest.mark.parametrize("number", [signals.ENDING[0], signals.ENDING[-1]])
def test_a_signal_during_the_imports_ends_a_program_at_once(number, start):
  program = start(seed_vtrace, start_new_session=True)
  running.wait_until(lambda: program.catches(signal.SIGTERM))
  os.killpg(program.running.pid, number)
  assert program.ended() == "" and not program.checkpoints()
  assert program.running.returncode == signals.status(number)


# A fake NumPy, the first slow import of a program.
_NUMPY = """
import os, signal
os.kill(os.getpid(), signal.{})
print("it is still here", flush=True)
raise SystemExit(1)
"""
_SCRIPT = "import sys; from seedx.__main__ import program; sys.exit(program())"


def _as_process_1():
  """Returns words that run a program as process 1, as in a container."""
  words = ["unshare", "--map-root-user", "--pid", "--fork"]
  try:
    subprocess.run([*words, "true"], check=True, capture_output=True)
  except (OSError, subprocess.CalledProcessError) as error:
    pytest.skip(f"no process may be process 1: {error}")
  return words


@pytest.mark.parametrize(
  ("name", "words"),
  [
    ("SIGINT", ("-c", _SCRIPT, "train", "ppo")),
    ("SIGINT", ("-m", "seedx", "train", "ppo")),
    ("SIGINT", ("-m", "experiments.ppo")),
    ("SIGINT", ("-m", "seedx.join", "localhost:1")),
    ("SIGTERM", ("-m", "experiments.ppo")),
  ],
  ids=["seedx", "-m seedx", "-m experiments.ppo", "-m seedx.join", "process 1"],
)
def test_a_signal_at_the_first_import_leaves_no_traceback(
  name, words, tmp_path
):
  (tmp_path / "numpy.py").write_text(_NUMPY.format(name))
  prefix = _as_process_1() if name == "SIGTERM" else []
  ended = subprocess.run(
    [*prefix, sys.executable, *words],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": f"{tmp_path}:{programs.ROOT}"},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert (ended.stdout, ended.stderr) == ("", "")
  assert ended.returncode == 128 + getattr(signal, name)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("experiment", "words", "number"),
  [
    # Environments of `a2c` and actors of `seed_vtrace` run in other processes.
    (a2c, SMALL, signal.SIGTERM),
    (seed_vtrace, (), signal.SIGINT),
  ],
)
def test_a_signal_to_the_group_ends_a_run_with_a_checkpoint(
  experiment, words, number, start
):
  program = start(experiment, *words, start_new_session=True)
  program.wait_for_steps()
  os.killpg(program.running.pid, number)
  program.ended()
  assert program.running.returncode == 128 + number
  assert program.checkpoints() == [program.env_steps()]


@pytest.mark.slow
def test_a_schedulers_signal_to_each_process_ends_a_run_with_a_checkpoint(
  start,
):
  """The learner cannot save without its parameter servers."""
  program = start(gorila_dqn, *SMALL[:2])
  program.wait_for_steps()
  for process in (*program.children, program.running):
    process.send_signal(signal.SIGUSR1)
  program.ended()
  assert program.running.returncode == 143
  assert program.checkpoints() == [program.env_steps()]


@pytest.mark.slow
def test_a_closed_terminal_ends_a_run_with_a_checkpoint(start):
  terminal, program_side = pty.openpty()
  program = start(
    seed_vtrace,
    "--num-actors",
    "1",
    start_new_session=True,
    preexec_fn=lambda: os.close(os.open(os.ttyname(program_side), os.O_RDWR)),
    stdout=program_side,
    stderr=program_side,
  )
  os.close(program_side)
  os.set_blocking(terminal, False)

  def has_steps():
    with contextlib.suppress(BlockingIOError):
      os.read(terminal, 1 << 16)
    return program.env_steps()

  running.wait_until(has_steps)
  os.close(terminal)
  program.ended()
  assert program.running.returncode == 129
  assert program.checkpoints() == [program.env_steps()]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["second Ctrl-C", "SIGKILL"])
def test_a_program_that_ends_at_once_leaves_nothing_behind(how, start):
  program = start(seed_vtrace)
  program.wait_for_steps()
  if how == "SIGKILL":
    program.running.kill()
  else:
    program.running.send_signal(signal.SIGINT)
    time.sleep(0.2)
    program.running.send_signal(signal.SIGINT)
  program.ended()
  assert program.running.returncode == (-9 if how == "SIGKILL" else 130)


def test_a_signal_that_nohup_ignores_stays_ignored():
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    stop = threading.Event()
    with signals.stopping(stop) as ending:
      os.kill(os.getpid(), signal.SIGHUP)
      time.sleep(0.01)
      assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert not stop.is_set() and not ending.status
  finally:
    signal.signal(signal.SIGHUP, before)


def test_a_ctrl_c_that_arrives_twice_at_once_counts_once(monkeypatch):
  clock = mock.Mock(**{"monotonic.side_effect": [1.0, 1.04, 2.0]})
  monkeypatch.setattr(signals, "time", clock)
  stop = threading.Event()
  with signals.stopping(stop, exits=False):
    for _ in range(2):
      signal.raise_signal(signal.SIGINT)
    assert stop.wait(300)
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
      threading.Event().wait(300)


def test_a_scripts_own_handler_of_a_schedulers_signal_stays():
  received = []
  before = signal.signal(signal.SIGUSR1, lambda *_: received.append("own"))
  try:
    stop = threading.Event()
    with signals.stopping(stop, exits=False) as ending:
      signal.raise_signal(signal.SIGUSR1)
      signal.raise_signal(signal.SIGHUP)
      assert stop.wait(300)
    assert received == ["own"] and ending.status == 129
  finally:
    signal.signal(signal.SIGUSR1, before)


_FORKED = """
import os, signal, threading
from seedx import signals

stop = threading.Event()
with signals.stopping(stop) as ending:
  if not (child := os.fork()):
    signal.raise_signal(signal.SIGINT)
    os._exit(0)
  os.waitpid(child, 0)
os._exit(ending.status + stop.is_set())
"""


def test_a_forked_process_does_not_pass_its_signals_on():
  ended = subprocess.run(
    [sys.executable, "-c", _FORKED], cwd=programs.ROOT, check=False
  )
  assert ended.returncode == 0


def test_a_signal_is_handled_while_the_main_thread_is_blocked():
  stop = threading.Event()
  with signals.stopping(stop) as ending:
    main = threading.get_ident()
    threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGTERM)).start()
    lock = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_init(lock, None)
    libc.pthread_mutex_lock(lock)
    watched = []

    def watch():
      watched.append(stop.is_set())
      if stop.is_set():
        libc.pthread_mutex_unlock(lock)

    ending.watch = watch
    # Signals do not interrupt this call; it returns when `watch` unlocks.
    libc.pthread_mutex_lock(lock)
  assert ending.status == 143 and watched[-1]


def test_a_signal_may_come_while_its_event_is_in_use():
  in_use = threading.Lock()

  class Event(threading.Event):
    def set(self):
      if in_use.acquire(timeout=60):
        super().set()

  stop = Event()
  with signals.stopping(stop):
    with in_use:
      signal.raise_signal(signal.SIGTERM)
    assert stop.wait(300)


_TWICE = """
import os, signal, threading, time
from seedx import signals

stop = threading.Event()
with signals.stopping(stop) as ending:
  for number in {numbers}:
    os.kill(os.getpid(), number)
    time.sleep(0.1)
os._exit(ending.status + 1)
"""


@pytest.mark.parametrize(
  ("numbers", "status"),
  [
    ([signal.SIGTERM, signal.SIGTERM, signal.SIGHUP], 144),
    ([signal.SIGINT, signal.SIGTERM], 131),
    ([signal.SIGTERM, signal.SIGINT], 130),  # Ends at once.
    # Schedulers send a warning, and SIGTERM some time later.
    ([signal.SIGUSR1, signal.SIGTERM], 144),
  ],
)
def test_after_the_first_signal_only_ctrl_c_ends_a_program_at_once(
  numbers, status
):
  program = _TWICE.format(numbers=[int(number) for number in numbers])
  ended = subprocess.run(
    [sys.executable, "-c", program], cwd=programs.ROOT, check=False
  )
  assert ended.returncode == status
