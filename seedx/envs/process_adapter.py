"""Many environments of a user's, in processes of their own."""

import contextlib
import dataclasses
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing import connection
from typing import BinaryIO

import dm_env
import numpy as np
import tree

from seedx import types
from seedx.envs import config as env_config
from seedx.envs import messages, observations

# Ctrl-C is for the parent, from the first line on. Modules are looked for where
# the parent does.
_PROGRAM = """\
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = {path}
from seedx.envs import worker
worker.main({requests}, {replies}, {memory})
"""
# The end of a process closes its pipe, unless a process that it has started
# holds that open: so one looks, every so often.
_LOOK_SECONDS = 1.0
# Environments may have files to write when they are closed.
_CLOSE_SECONDS = 2.0
_TERMINATE_SECONDS = 0.5

_LAST = np.uint8(dm_env.StepType.LAST)

# What environments take and give, by where and what they are.
_signatures: dict[tuple[str, bytes], messages.Signature] = {}
_signatures_lock = threading.Lock()


def spec(config: env_config.Config) -> types.EnvironmentSpec:
  """What one environment takes and gives, found out in a process of its own.

  Args:
    config: which environment. What is found is kept.

  Raises:
    types.ConfigError: the environment cannot be made, or not be used.
  """
  key = _key(config)
  with _signatures_lock:
    if key not in _signatures:
      with _new_memory() as memory:
        worker = _Worker(messages.Job(config, 0, 1, 0, False), memory)
      try:
        _signatures[key] = worker.signature()
      finally:
        _end([worker])
    signature = _signatures[key]
  return observations.environment_spec(config, *signature)


class ProcessEnvironment:
  """Environments that a factory makes, in one process or several.

  It is used as `EnvPoolEnvironment` is, and the rows are the same: when an
  episode has ended, the next action of that environment is ignored and its next
  row is the FIRST of a new episode, with reward 0 and discount 1. The discount
  is 0 where an episode terminates and 1 elsewhere, at a time limit too; of a
  `dm_env.Environment` it is what that says.

  The processes end with `close`, with this object, or with this process.

  Attributes:
    spec: what one environment takes and gives.
    num_envs: how many environments there are.
    batch_size: how many rows `recv` returns.
  """

  spec: types.EnvironmentSpec
  num_envs: int
  batch_size: int

  def __init__(
    self,
    config: env_config.Config,
    num_envs: int,
    *,
    batch_size: int | None = None,
    seed: int = 0,
    num_threads: int = 1,
    render: bool = False,
  ) -> None:
    """Makes the environments, as `envs.make` is told to; `reset` starts them.

    Raises:
      types.ConfigError: as `spec` does, or where a number is out of range.
    """
    self.num_envs = num_envs
    self.batch_size = observations.check_numbers(
      num_envs, batch_size, num_threads, seed
    )
    self._name, self._render = config.env, render
    self._transform = (
      env_config.load_transform(config.observation_transform)
      if config.observation_transform
      else None
    )
    self._workers: list[_Worker] = []
    self._by_reply: dict[int, _Worker] = {}
    self._poll = select.poll()
    self._end = weakref.finalize(self, _end, self._workers)
    try:
      signature = self._start(config, seed, num_threads)
      _check_unchanged(config, signature)
      self.spec = observations.environment_spec(config, *signature)
    except BaseException:
      self.close()
      raise
    self._structure = signature.observation
    self._action_dtype = np.dtype(self.spec.action.dtype)
    self._high = np.asarray(self.spec.action.maximum)
    self._failure = ""
    # Rows that have come and that nobody has taken; then those that were taken
    # and wait for their actions.
    self._ready: list[np.ndarray] = []
    self._waits = np.zeros(num_envs, np.bool_)

  def reset(self) -> None:
    """Starts every environment; call it once, before the first `recv`."""
    self._ready.clear()
    self._waits[:] = False
    for worker in self._workers:
      worker.resets += 1
      worker.send(messages.RESET)

  def recv(self) -> types.Rows:
    """Waits for `batch_size` environments.

    Returns:
      Their rows. The arrays are the caller's own. Where an episode has ended,
      so that its next action is ignored, an action mask of no legal action
      becomes one of all.

    Raises:
      RuntimeError: an environment has failed, with its traceback, its process
        has died, or it gives NaN.
      ValueError: an environment goes on, and yet no action is legal in it.
    """
    while sum(map(len, self._ready)) < self.batch_size:
      self._receive()
    index = self._take()
    places = self._places
    whole = self.batch_size == self.num_envs

    def rows(place: np.ndarray) -> np.ndarray:
      return place.copy() if whole else place[index]

    step_type = rows(places.step_type)
    leaves = [rows(place) for place in places.observation]
    reward = rows(places.reward)
    self._refuse_nan("observation", index, leaves)
    self._refuse_nan("reward", index, [reward])
    observation = tree.unflatten_as(self._structure, leaves)
    observation = observations.seen(self.spec, self._transform, observation)
    observation = observations.with_legal_actions(
      self.spec, observation, index, step_type == _LAST
    )
    timestep = dm_env.TimeStep(
      step_type, reward, rows(places.discount), observation
    )
    return types.Rows(index, timestep, rows(places.episode_return))

  def send(self, index: np.ndarray, action: np.ndarray) -> None:
    """Gives environments their actions.

    Args:
      index: `[B]` int32, environments that `recv` returned and that have had no
        action since. B is `batch_size` or any other number.
      action: `[B]` or `[B, A]` integers, or `[B, A]` floats, which are clipped
        to the bounds of `spec.action`.

    Raises:
      ValueError: the shape is another, a discrete action is out of range, or an
        environment does not wait for an action.
    """
    action = observations.checked_action(
      self.spec.action, index, action, self._action_dtype, self._high
    )
    index = np.asarray(index, np.int32)
    if not self._waits[index].all():
      raise ValueError(
        f"expected environments that wait for an action, found {index.tolist()}"
        f" where {np.flatnonzero(self._waits).tolist()} wait"
      )
    self._waits[index] = False
    self._places.action[index] = action
    for worker in self._workers:
      first, end = worker.job.first, worker.job.first + worker.job.count
      part = (
        index
        if len(self._workers) == 1
        else index[(index >= first) & (index < end)]
      )
      if len(part):
        worker.send(messages.STEP + part.tobytes())

  def render(self) -> np.ndarray:
    """A frame of environment 0, which was made with `render`.

    No other thread may call `recv` meanwhile.

    Returns:
      `[H, W, 3]` uint8.

    Raises:
      types.ConfigError: the environment has no frames.
      RuntimeError: as `recv` does.
    """
    if not self._render:
      raise types.ConfigError(
        f"expected environments that were made with render=True, found"
        f" {self._name} without"
      )
    worker = self._workers[0]
    worker.send(messages.RENDER)
    while True:
      kind, rest = self._checked(worker.receive)
      if kind == messages.FRAME:
        return pickle.loads(rest)
      if kind == messages.REFUSAL:
        raise types.ConfigError(rest.decode())
      self._keep(worker, kind, rest)

  def close(self) -> None:
    """Ends the processes; `recv` must not be waiting."""
    self._end()

  def _start(
    self, config: env_config.Config, seed: int, num_threads: int
  ) -> messages.Signature:
    shares = np.array_split(
      np.arange(self.num_envs), min(num_threads, self.num_envs)
    )
    with _new_memory() as memory:
      for share in shares:
        job = messages.Job(
          config, int(share[0]), len(share), seed, self._render
        )
        self._workers.append(_Worker(job, memory))
      signatures = [worker.signature() for worker in self._workers]
      for signature in signatures:
        messages.check_same(self._name, signatures[0], signature)
      memory.truncate(messages.memory_size(signatures[0], self.num_envs))
      self._places = messages.places(
        signatures[0], self.num_envs, memory.fileno()
      )
    for worker in self._workers:
      worker.send(messages.MEMORY + str(self.num_envs).encode())
      self._by_reply[worker.replies.fileno()] = worker
      self._poll.register(worker.replies, select.POLLIN)
    return signatures[0]

  def _receive(self) -> None:
    """Waits for a message of any worker, and keeps what came."""
    if self._failure:
      raise RuntimeError(self._failure)
    if not self._end.alive:
      raise RuntimeError(f"the environments of {self._name} are closed")
    heard = self._poll.poll(_LOOK_SECONDS * 1000)
    for reply, _ in heard:
      worker = self._by_reply[reply]
      self._keep(worker, *self._checked(worker.received))
    if not heard:
      for worker in self._workers:
        if worker.has_ended():
          self._keep(worker, *self._checked(worker.receive))

  def _checked(
    self, receive: Callable[[], tuple[bytes, bytes]]
  ) -> tuple[bytes, bytes]:
    """A worker's message; raises what it says of a failure."""
    try:
      kind, rest = receive()
    except _Death as death:
      self._failure = str(death)
      raise RuntimeError(self._failure) from None
    if kind == messages.FAILURE:
      self._failure = rest.decode()
      raise RuntimeError(self._failure)
    return kind, rest

  def _keep(self, worker: "_Worker", kind: bytes, rest: bytes) -> None:
    if kind == messages.FIRST_ROWS:
      worker.resets -= 1
    if not worker.resets:
      self._ready.append(np.frombuffer(rest, np.int32))

  def _refuse_nan(
    self, what: str, index: np.ndarray, leaves: list[np.ndarray]
  ) -> None:
    """Raises RuntimeError here: what NaN does later says nothing of it."""
    for leaf in leaves:
      if leaf.dtype.kind == "f" and np.isnan(leaf).any():
        rows = np.isnan(leaf.reshape(len(index), -1)).any(axis=1)
        self._failure = (
          f"environment {index[rows.argmax()]} of {self._name} failed: there is"
          f" NaN in its {what}"
        )
        raise RuntimeError(self._failure)

  def _take(self) -> np.ndarray:
    """Takes `batch_size` of the rows that are ready."""
    index = np.concatenate(self._ready)
    self._ready = [index[self.batch_size :]]
    index = index[: self.batch_size]
    if self.batch_size == self.num_envs:
      index = np.arange(self.num_envs, dtype=np.int32)
    self._waits[index] = True
    return index


class _Death(Exception):
  """A process has died."""


class _Worker:
  """A process, as its parent sees it.

  Attributes:
    job: what it is there for.
    replies: where it answers.
    resets: how many it has to answer; until then its rows are old.
  """

  def __init__(self, job: messages.Job, memory: BinaryIO) -> None:
    self.job = job
    self.resets = 0
    message = env_config.pickled(job)
    requests, self._requests = connection.Pipe(duplex=False)
    self.replies, replies = connection.Pipe(duplex=False)
    with requests, replies:
      program = _PROGRAM.format(
        path=[str(place) for place in sys.path],
        requests=requests.fileno(),
        replies=replies.fileno(),
        memory=memory.fileno(),
      )
      self._process = subprocess.Popen(
        [sys.executable, "-P", "-c", program],
        stdin=subprocess.DEVNULL,
        pass_fds=(requests.fileno(), replies.fileno(), memory.fileno()),
        # Accelerators are the learner's.
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
      )
    self.send(message)

  def send(self, message: bytes) -> None:
    """Sends a message; who listens is told if it cannot come."""
    with contextlib.suppress(BrokenPipeError):
      self._requests.send_bytes(message)

  def receive(self) -> tuple[bytes, bytes]:
    """Waits for a message; raises `_Death` if none can come any more."""
    while True:
      ended = self.has_ended()
      if self.replies.poll(0 if ended else _LOOK_SECONDS):
        return self.received()
      if ended:
        raise _Death(self._death())

  def received(self) -> tuple[bytes, bytes]:
    """The message that is there; raises `_Death` if none can come any more."""
    try:
      message = self.replies.recv_bytes()
    except EOFError:
      raise _Death(self._death()) from None
    return message[:1], message[1:]

  def signature(self) -> messages.Signature:
    """Waits until it has made its environments.

    Raises:
      types.ConfigError: it cannot.
    """
    try:
      kind, rest = self.receive()
    except _Death as death:
      raise types.ConfigError(str(death)) from None
    if kind == messages.REFUSAL:
      raise types.ConfigError(rest.decode())
    return pickle.loads(rest)

  def has_ended(self) -> bool:
    """Whether the process is no more."""
    return self._process.poll() is not None

  def ask_to_end(self) -> None:
    """Lets it close its environments."""
    self._requests.close()

  def terminate(self) -> None:
    """Ends it."""
    self._process.terminate()

  def kill(self) -> None:
    """Ends it in any case."""
    self._process.kill()

  def wait(self, seconds: float | None) -> bool:
    """Whether it ends within so many seconds."""
    try:
      self._process.wait(seconds)
    except subprocess.TimeoutExpired:
      return False
    self.replies.close()
    return True

  def _death(self) -> str:
    # Its pipe is closed a moment before it is gone.
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._process.wait(_LOOK_SECONDS)
    job, status = self.job, self._process.returncode
    how = f"status {status}"
    if status is not None and status < 0:
      with contextlib.suppress(ValueError):
        how = signal.Signals(-status).name
    return (
      f"the process of environments {job.first} to {job.first + job.count - 1}"
      f" of {job.config.env} has died with {how}; what it said, if anything,"
      " is above"
    )


def _key(config: env_config.Config) -> tuple[str, bytes]:
  """What `_signatures` knows an environment by."""
  return os.getcwd(), env_config.pickled(
    dataclasses.replace(config, observation_transform="")
  )


def _check_unchanged(
  config: env_config.Config, signature: messages.Signature
) -> None:
  """Refuses environments that are not those that `spec` has described."""
  with _signatures_lock:
    if _signatures.setdefault(_key(config), signature) == signature:
      return
    before = _signatures.pop(_key(config))
  raise types.ConfigError(
    f"{config.env}: expected environments as they were before, {before},"
    f" found {signature}; if their program has changed, start again"
  )


def _new_memory() -> BinaryIO:
  """A file without a name, which ends with the last process that has it."""
  if hasattr(os, "memfd_create"):
    return os.fdopen(os.memfd_create("seedx.envs"), "r+b")
  return tempfile.TemporaryFile()


def _end(workers: list[_Worker]) -> None:
  """Ends processes: asks first, then terminates, then kills."""
  left = list(workers)
  for end, seconds in (
    (_Worker.ask_to_end, _CLOSE_SECONDS),
    (_Worker.terminate, _TERMINATE_SECONDS),
    (_Worker.kill, None),
  ):
    for worker in left:
      end(worker)
    deadline = time.monotonic() + (seconds or 0)
    left = [
      worker
      for worker in left
      if not worker.wait(seconds and max(0.0, deadline - time.monotonic()))
    ]
