"""Many environments of the user's own, as batched `dm_env` time steps."""

import dataclasses
import os
import pickle
import select
import threading
import weakref
from typing import NoReturn

import dm_env
import numpy as np
import tree

from seedx import types
from seedx.envs import config as env_config
from seedx.envs import observations
from seedx.envs.processes import messages, process

_LAST = np.uint8(dm_env.StepType.LAST)

# The signatures of environments that have been made, by `_key`.
_signatures: dict[tuple[str, bytes], messages.Signature] = {}
_signatures_lock = threading.Lock()


def spec(config: env_config.Config) -> types.EnvironmentSpec:
  """See `envs.spec`; the first time, it makes the environment in a process."""
  key = _key(config)
  with _signatures_lock:
    if key not in _signatures:
      with process.new_memory() as memory:
        worker = process.Process(
          messages.Job(config, 0, 1, 1, 0, False), memory
        )
      try:
        _signatures[key] = worker.signature()
      finally:
        process.end([worker])
    signature = _signatures[key]
  return observations.environment_spec(config, *signature)


class ProcessEnvironment:
  """Environments of the user's own; see `envs.Environment`.

  The discount is 0 where a Gymnasium environment terminates and 1 elsewhere,
  also at a time limit; that of a `dm_env.Environment` is passed on.

  The processes end with `close`, with this object, or with this process.
  """

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
    """See `envs.make`."""
    self.num_envs = num_envs
    self.batch_size = observations.check_numbers(
      num_envs, batch_size, num_threads, seed
    )
    self._name, self._render = config.env, render
    transform = env_config.load_transform(config)
    self._processes: list[process.Process] = []
    self._by_reply: dict[int, process.Process] = {}
    self._poll = select.poll()
    self._end = weakref.finalize(self, process.end, self._processes)
    try:
      signature = self._started(config, seed, num_threads)
      _check_unchanged(config, signature)
      self.spec = observations.environment_spec(config, *signature)
      self._finish = observations.Finisher(config, seed, self.spec, transform)
    except BaseException:
      self.close()
      raise
    self._structure, self._own_action = signature
    self._failure = ""
    # Indices of rows that have arrived and that `recv` has not returned.
    self._ready: list[np.ndarray] = []
    # Whether `recv` has returned an environment that has had no action since.
    self._needs_action = np.zeros(num_envs, np.bool_)

  def reset(self) -> None:
    """See `envs.Environment`."""
    self._ready.clear()
    self._needs_action[:] = False
    for worker in self._processes:
      worker.pending_resets += 1
      worker.send(messages.RESET)

  def recv(self) -> types.Rows:
    """See `envs.Environment`.

    Raises:
      RuntimeError: an environment has raised an error, which is repeated with
        its traceback; its process has died; or its observation or reward has
        NaN or an infinity.
      ValueError: no action is legal, and yet the episode goes on.
    """
    while sum(map(len, self._ready)) < self.batch_size:
      self._receive()
    index = np.concatenate(self._ready)
    self._ready = [index[self.batch_size :]]
    index = index[: self.batch_size]
    all_rows = self.batch_size == self.num_envs
    if all_rows:
      index = np.arange(self.num_envs, dtype=np.int32)
    self._needs_action[index] = True
    shared = self._shared

    def rows(array: np.ndarray) -> np.ndarray:
      return array.copy() if all_rows else array[index]

    step_type, reward = rows(shared.step_type), rows(shared.reward)
    leaves = [rows(array) for array in shared.observation]
    observation = tree.unflatten_as(self._structure, leaves)
    timestep = dm_env.TimeStep(
      step_type, reward, rows(shared.discount), observation
    )
    try:
      timestep = self._finish(index, step_type == _LAST, timestep)
    except Exception as error:
      self._failure = str(error)  # These rows are lost.
      raise
    return types.Rows(index, timestep, rows(shared.episode_return))

  def send(self, index: np.ndarray, action: np.ndarray) -> None:
    """See `envs.Environment`.

    Raises:
      ValueError: the shape is wrong, a discrete action is out of range, or an
        environment does not need an action.
    """
    action = observations.checked_action(
      self.spec.action, self._own_action, index, action
    )
    index = np.asarray(index, np.int32)
    if not self._needs_action[index].all():
      raise ValueError(
        "expected environments that wait for an action,"
        f" {np.flatnonzero(self._needs_action).tolist()},"
        f" found {index.tolist()}"
      )
    self._needs_action[index] = False
    self._shared.action[index] = action
    for worker in self._processes:
      part = index
      if len(self._processes) > 1:
        offset = index - worker.job.first
        part = index[(offset >= 0) & (offset < worker.job.count)]
      if len(part):
        worker.send(messages.STEP + part.tobytes())

  def render(self) -> np.ndarray:
    """See `envs.Environment`; raises RuntimeError as `recv` does."""
    if not self._render:
      raise types.ConfigError(
        f"expected environments that were made with render=True, found"
        f" {self._name} without"
      )
    worker = self._processes[0]
    worker.send(messages.RENDER)
    while True:
      kind, rest = worker.receive()
      if kind == messages.FRAME:
        return pickle.loads(rest)
      if kind == messages.REFUSAL:
        raise types.ConfigError(rest.decode())
      self._handle(worker, kind, rest)

  def close(self) -> None:
    """See `envs.Environment`."""
    self._end()

  def _started(
    self, config: env_config.Config, seed: int, num_threads: int
  ) -> messages.Signature:
    """As `_start`, once more where a process was killed meanwhile."""
    try:
      return self._start(config, seed, num_threads)
    except process.KilledError:  # That is no fault of the environments.
      process.end(self._processes)
      self._processes.clear()
      return self._start(config, seed, num_threads)

  def _start(
    self, config: env_config.Config, seed: int, num_threads: int
  ) -> messages.Signature:
    """Starts the processes; returns the signature of all environments."""
    parts = np.array_split(
      np.arange(self.num_envs), min(num_threads, self.num_envs)
    )
    with process.new_memory() as memory:
      for part in parts:
        job = messages.Job(
          config,
          first=int(part[0]),
          count=len(part),
          num_envs=self.num_envs,
          seed=seed,
          render=self._render,
        )
        self._processes.append(process.Process(job, memory))
      signature, *others = [worker.signature() for worker in self._processes]
      for other in others:
        messages.check_same(self._name, signature, other)
      self._shared = messages.shared_rows(
        signature, self.num_envs, memory.fileno()
      )
    for worker in self._processes:
      self._by_reply[worker.replies.fileno()] = worker
      self._poll.register(worker.replies, select.POLLIN)
    return signature

  def _receive(self) -> None:
    """Waits for messages of any process."""
    if self._failure:
      raise RuntimeError(self._failure)
    if not self._end.alive:
      raise RuntimeError(f"the environments of {self._name} are closed")
    ready = self._poll.poll(process.CHECK_SECONDS * 1000)
    for reply, _ in ready:
      worker = self._by_reply[reply]
      self._handle(worker, *worker.read())
    if not ready:
      for worker in self._processes:
        if worker.has_died():
          self._handle(worker, *worker.receive())

  def _handle(self, worker: process.Process, kind: bytes, rest: bytes) -> None:
    """Keeps the indices of rows, except those that a reset has made old."""
    if kind == messages.FAILURE:
      self._fail(rest.decode(errors="replace"))
    try:
      if kind not in (messages.ROWS, messages.FIRST_ROWS):
        raise ValueError(f"expected rows, found {kind!r}")
      if kind == messages.FIRST_ROWS and not worker.pending_resets:
        raise ValueError("expected rows after a step, found some of a reset")
      index = messages.indices(rest, worker.job)
    except ValueError as error:
      self._fail(worker.garbage(error))
    if kind == messages.FIRST_ROWS:
      worker.pending_resets -= 1
    if not worker.pending_resets:
      self._ready.append(index)

  def _fail(self, failure: str) -> NoReturn:
    self._failure = failure
    raise RuntimeError(failure)


def _key(config: env_config.Config) -> tuple[str, bytes]:
  """The current directory, and the config without its transform."""
  return os.getcwd(), env_config.pickled(
    dataclasses.replace(config, observation_transform="")
  )


def _check_unchanged(
  config: env_config.Config, signature: messages.Signature
) -> None:
  """Checks that environments are still as `spec` has described them."""
  with _signatures_lock:
    if _signatures.setdefault(_key(config), signature) == signature:
      return
    before = _signatures.pop(_key(config))
  raise types.ConfigError(
    f"{config.env}: expected environments as they were before, {before},"
    f" found {signature}; if their program has changed, start again"
  )
