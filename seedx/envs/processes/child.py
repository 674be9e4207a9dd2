"""The parent's side of a worker process."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import connection
from typing import BinaryIO

from seedx import signals, types
from seedx.envs import config as env_config
from seedx.envs import functions
from seedx.envs.processes import messages

# Seconds between checks that a process is alive. The pipe of a dead process may
# stay open, because processes that it has started have the pipe, too.
CHECK_SECONDS = 1.0
# Seconds for environments to write files when they are closed.
_CLOSE_SECONDS = 2.0

# Seconds until environments that are not ready are reported; then twice as
# long, and so on.
_REPORT_SECONDS = 10.0

# Maximum length of a message; frames are the longest.
_MAX_MESSAGE_BYTES = 2**28

# A worker ignores signals to the process group, which its parent handles. A
# worker's module search path is its parent's.
_PROGRAM = """\
import signal, sys
for number in signal.SIGHUP, signal.SIGINT:
  signal.signal(number, signal.SIG_IGN)
# Handlers, not SIG_IGN: environments' own processes must not inherit it. For
# example, `xvfb-run` waits for ever if it cannot receive SIGUSR1.
for number in signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2:
  signal.signal(number, lambda *_: None)
sys.path[:] = {path}
from seedx import output, signals
signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.ENDING)
output.outlive_readers()  # Printing must not end the worker.
from seedx.envs.processes import worker
worker.main({requests}, {replies}, {memory})
"""


class KilledError(RuntimeError):
  """A process was killed before it had made its environments."""


class Child:
  """A process that runs `worker`.

  Attributes:
    job: the environments that the process makes.
    replies: pipe on which the process's messages arrive.
    pending_resets: number of RESETs without an answer. Rows are out of date
      until all RESETs are answered.
    failures: number of consecutive failures of earlier processes with the same
      environments.
    episodes: number of episodes that have ended in the process.
  """

  def __init__(self, job: messages.Job, memory: BinaryIO) -> None:
    """Starts the process; `memory` is the file of the shared rows.

    Raises:
      types.ConfigError: the job cannot be pickled; or this process imports the
        module of the environment, whose code starts this process.
    """
    functions.check_not_importing(job.config.env)
    message = env_config.pickled(job)
    self.job = job
    self.pending_resets = self.failures = self.episodes = 0
    requests, self._requests = connection.Pipe(duplex=False)
    self.replies, replies = connection.Pipe(duplex=False)
    with requests, replies:
      files = (requests.fileno(), replies.fileno(), memory.fileno())
      program = _PROGRAM.format(
        path=[str(path) for path in sys.path],
        requests=files[0],
        replies=files[1],
        memory=files[2],
      )
      with signals.pending():
        self._popen = subprocess.Popen(
          [sys.executable, "-P", "-c", program],
          stdin=subprocess.DEVNULL,
          pass_fds=files,
          # Leaves the accelerators to the learner.
          env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )
    self.send(message)

  def send(self, message: bytes) -> None:
    """Sends a message; if the process has died, `receive` reports it."""
    with contextlib.suppress(BrokenPipeError):
      self._requests.send_bytes(message)

  def receive(self) -> tuple[bytes, bytes]:
    """Waits for a message; returns its kind and its payload.

    If the process has died, they are FAILURE and a description of its death.
    """
    while True:
      has_died = self.has_died()
      if self.replies.poll(0 if has_died else CHECK_SECONDS):
        return self.read()
      if has_died:
        return messages.FAILURE, self._death()

  def read(self) -> tuple[bytes, bytes]:
    """Reads a message as `receive` does, when `replies` is ready."""
    try:
      message = self.replies.recv_bytes(_MAX_MESSAGE_BYTES)
    except EOFError:
      return messages.FAILURE, self._death()
    except OSError as error:  # The message is incomplete or too long.
      return messages.FAILURE, self.garbage(error).encode()
    return message[:1], message[1:]

  def signature(self, kind: bytes, payload: bytes) -> messages.Signature:
    """Reads the environments' specs from a message; see `signatures`."""
    if kind == messages.FAILURE and self._popen.poll() == -signal.SIGKILL:
      raise KilledError(payload.decode(errors="replace"))
    if kind in (messages.REFUSAL, messages.FAILURE):
      raise types.ConfigError(payload.decode(errors="replace"))
    try:
      if kind != messages.SIGNATURE:
        raise ValueError(f"expected a signature, found {kind!r}")
      return messages.Signature(*pickle.loads(payload))
    except Exception as error:  # Unpickling may raise anything.
      raise types.ConfigError(self.garbage(error)) from error

  def has_died(self) -> bool:
    """Returns whether the process has ended, for any reason."""
    return self._popen.poll() is not None

  def garbage(self, error: Exception) -> str:
    """Returns the error text for a message that cannot be read."""
    return f"{self._name()} has sent garbage: {env_config.in_one_line(error)}"

  def _name(self) -> str:
    job = self.job
    last = job.first + job.count - 1
    return (
      f"the process of environments {job.first} to {last} of {job.config.env},"
      f" with the seeds {job.seed + job.first} to {job.seed + last},"
    )

  def _death(self) -> bytes:
    # A process closes its pipe a moment before it ends.
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._popen.wait(CHECK_SECONDS)
    status = self._popen.returncode
    cause = f"status {status}"
    if status is not None and status < 0:
      with contextlib.suppress(ValueError):
        cause = signal.Signals(-status).name
    return (
      f"{self._name()} has died with {cause}; see its output above, if any"
    ).encode()


def signatures(workers: Sequence[Child]) -> list[messages.Signature]:
  """Waits until all environments are made and reset; returns their specs.

  Prints the number of environments that are ready, if that takes long.

  Raises:
    types.ConfigError: a process cannot make its environments.
    KilledError: a process was killed meanwhile.
  """
  start, report_seconds = time.monotonic(), _REPORT_SECONDS
  waiting, specs, ready = list(workers), {}, 0
  while waiting:
    connection.wait([worker.replies for worker in waiting], CHECK_SECONDS)
    for worker in list(waiting):
      if not (worker.has_died() or worker.replies.poll()):
        continue
      kind, payload = worker.receive()
      if kind == messages.READY:
        ready += 1
      else:
        specs[worker] = worker.signature(kind, payload)
        waiting.remove(worker)
    seconds = time.monotonic() - start
    if waiting and seconds >= report_seconds:
      report_seconds = 2 * seconds
      total = sum(worker.job.count for worker in workers)
      print(
        f"{workers[0].job.config.env}: waiting for the first observation,"
        f" {ready} of {total} environments, {len(workers)} at a time, for"
        f" {seconds:.0f} s",
        file=sys.stderr,
        flush=True,
      )
  return [specs[worker] for worker in workers]


def new_memory() -> BinaryIO:
  """Opens an unnamed file, which is deleted when the last process closes it."""
  if hasattr(os, "memfd_create"):
    return os.fdopen(os.memfd_create("seedx.envs"), "r+b")
  return tempfile.TemporaryFile()


def end(processes: Sequence[Child]) -> None:
  """Ends processes: closes their pipes, and later kills those still alive."""
  alive = list(processes)
  for stop, seconds in (
    (lambda process: process._requests.close(), _CLOSE_SECONDS),
    (lambda process: process._popen.kill(), float("inf")),
  ):
    for process in alive:
      stop(process)
    deadline = time.monotonic() + seconds
    for process in list(alive):
      try:
        process._popen.wait(max(0.0, deadline - time.monotonic()))
      except subprocess.TimeoutExpired:
        continue
      process.replies.close()
      alive.remove(process)
