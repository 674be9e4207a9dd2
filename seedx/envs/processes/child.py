"""A worker's process, as its parent sees it."""

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

from seedx import types
from seedx.envs import config as env_config
from seedx.envs.processes import messages

# A dead process closes its pipe, unless a process that it has started keeps it
# open. So whoever waits for a message checks this often that it is alive.
CHECK_SECONDS = 1.0
# Environments may write files when they are closed.
_CLOSE_SECONDS = 2.0

# Of a message; the longest are frames.
_MOST_BYTES = 2**28

# Only the parent handles what ends a group of processes. It has the same module
# search path.
_PROGRAM = """\
import signal, sys
for number in signal.SIGHUP, signal.SIGINT:
  signal.signal(number, signal.SIG_IGN)
# What environments start does not inherit this one: they may terminate it.
signal.signal(signal.SIGTERM, lambda *_: None)
sys.path[:] = {path}
from seedx import output
output.outlive_readers()  # What environments print must not end them.
from seedx.envs.processes import worker
worker.main({requests}, {replies}, {memory})
"""


class KilledError(RuntimeError):
  """A process was killed before it had made its environments."""


class Child:
  """A process that runs `worker`.

  Attributes:
    job: which environments it makes.
    replies: where its messages arrive.
    pending_resets: how many RESETs it has not answered yet; until it has
      answered all, its rows are old.
    failures: of processes before it, in a row, with the same environments.
    episodes: how many have ended in it.
  """

  def __init__(self, job: messages.Job, memory: BinaryIO) -> None:
    """Starts it.

    Args:
      job: which environments it makes.
      memory: a file, which will hold the rows.

    Raises:
      types.ConfigError: the job cannot be pickled.
    """
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
      self._popen = subprocess.Popen(
        [sys.executable, "-P", "-c", program],
        stdin=subprocess.DEVNULL,
        pass_fds=files,
        # Accelerators are for the learner.
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
      )
    self.send(message)

  def send(self, message: bytes) -> None:
    """Sends a message; if the process has died, `receive` tells."""
    with contextlib.suppress(BrokenPipeError):
      self._requests.send_bytes(message)

  def receive(self) -> tuple[bytes, bytes]:
    """Waits for a message; returns its first byte and the rest.

    If there is none and the process has died, they are FAILURE and how it died.
    """
    while True:
      has_died = self.has_died()
      if self.replies.poll(0 if has_died else CHECK_SECONDS):
        return self.read()
      if has_died:
        return messages.FAILURE, self._death()

  def read(self) -> tuple[bytes, bytes]:
    """As `receive`, for when `replies` is ready to be read."""
    try:
      message = self.replies.recv_bytes(_MOST_BYTES)
    except EOFError:
      return messages.FAILURE, self._death()
    except OSError as error:  # The message has no end, or is too long.
      return messages.FAILURE, self.garbage(error).encode()
    return message[:1], message[1:]

  def signature(self) -> messages.Signature:
    """Waits until it has made its environments; returns their specs.

    Raises:
      types.ConfigError: it cannot make them.
      KilledError: somebody has killed it meanwhile.
    """
    kind, rest = self.receive()
    if kind == messages.FAILURE and self._popen.poll() == -signal.SIGKILL:
      raise KilledError(rest.decode(errors="replace"))
    if kind in (messages.REFUSAL, messages.FAILURE):
      raise types.ConfigError(rest.decode(errors="replace"))
    try:
      if kind != messages.SIGNATURE:
        raise ValueError(f"expected a signature, found {kind!r}")
      return messages.Signature(*pickle.loads(rest))
    except Exception as error:  # Of unpickling, any.
      raise types.ConfigError(self.garbage(error)) from error

  def has_died(self) -> bool:
    """Whether the process has ended, in any way."""
    return self._popen.poll() is not None

  def garbage(self, error: Exception) -> str:
    """What is said of a message that cannot be understood."""
    return f"{self._name()} has sent garbage: {env_config.in_one_line(error)}"

  def _name(self) -> str:
    job = self.job
    last = job.first + job.count - 1
    return (
      f"the process of environments {job.first} to {last} of {job.config.env},"
      f" with the seeds {job.seed + job.first} to {job.seed + last},"
    )

  def _death(self) -> bytes:
    # It closes its pipe a moment before it ends.
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._popen.wait(CHECK_SECONDS)
    status = self._popen.returncode
    how = f"status {status}"
    if status is not None and status < 0:
      with contextlib.suppress(ValueError):
        how = signal.Signals(-status).name
    return (
      f"{self._name()} has died with {how}; see its output above, if any"
    ).encode()


def new_memory() -> BinaryIO:
  """A file without a name, which is deleted when the last process closes it."""
  if hasattr(os, "memfd_create"):
    return os.fdopen(os.memfd_create("seedx.envs"), "r+b")
  return tempfile.TemporaryFile()


def end(processes: Sequence[Child]) -> None:
  """Ends processes: closes their pipes, then kills them."""
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
