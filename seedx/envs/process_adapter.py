"""The user's own environments, as batched `dm_env` time steps."""

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
from seedx.envs import actions, env_specs, finishing
from seedx.envs import config as env_config
from seedx.envs.processes import child, messages, restarting

_LAST = np.uint8(dm_env.StepType.LAST)

# The signatures of environments that this process has made, by `_key`.
_signatures: dict[tuple[str, bytes], messages.Signature] = {}
_signatures_lock = threading.Lock()


def spec(config: env_config.Config) -> types.EnvironmentSpec:
  """See `envs.spec`. The first call for a config makes an environment."""
  key = _key(config)
  with _signatures_lock:
    if key not in _signatures:
      with child.new_memory() as memory:
        worker = child.Child(messages.Job(config, 0, 1, 1, 0, False), memory)
      try:
        (_signatures[key],) = child.signatures([worker])
      finally:
        child.end([worker])
    signature = _signatures[key]
  native = actions.Actions(config.env, signature.action)
  spec = env_specs.environment_spec(
    config, signature.observation, native.spec, native.native
  )
  return dataclasses.replace(
    spec, normalizers=signature.normalizers, render_fps=signature.render_fps
  )


class ProcessEnvironment:
  """Environments of the user's own; see `envs.Environment` and `envs.make`.

  Discounts of a `dm_env.Environment` are not changed. The environments'
  processes end with `close`, with this object, or with this process.
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
    restarts: restarting.Restarts | None = None,
  ) -> None:
    self.num_envs = num_envs
    self.batch_size = finishing.check_numbers(
      num_envs, batch_size, num_threads, seed
    )
    self._name, self._render = config.env, render
    self._restarts = restarts
    # The file stays open, for processes that replace dead ones.
    self._memory = child.new_memory()
    transform = env_config.load_transform(config)
    self._processes: list[child.Child] = []
    self._by_reply: dict[int, child.Child] = {}
    self._poll = select.poll()
    self._end = weakref.finalize(self, child.end, self._processes)
    try:
      signature = self._start(config, seed, num_threads)
      _check_unchanged(config, signature)
      self.spec = spec(config)
      self._finish = finishing.Finisher(config, seed, self.spec, transform)
    except BaseException:
      self.close()
      raise
    self._signature = signature
    self._failure = ""
    # Indices of arrived rows that `recv` has not returned.
    self._ready: list[np.ndarray] = []
    # Whether an environment waits for an action, after `recv` returned its row.
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
      RuntimeError: an environment raised an error, whose traceback is in the
        message; its process died; or an observation or a reward is NaN or
        infinite.
      ValueError: no action is legal although the episode continues.
      types.ConfigError: an episode's last `info` lacks an entry to log.
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
    observation = tree.unflatten_as(self._signature.observation, leaves)
    timestep = dm_env.TimeStep(
      step_type, reward, rows(shared.discount), observation
    )
    try:
      timestep = self._finish(index, step_type == _LAST, timestep)
    except Exception as error:
      self._failure = str(error)  # These rows are lost: later calls fail, too.
      raise
    episode_return = rows(shared.episode_return)
    info: types.Tree = ()
    if self.spec.log_info:
      info = rows(shared.info)
      info[np.isnan(episode_return)] = np.nan
    return types.Rows(index, timestep, episode_return, info)

  def send(self, index: np.ndarray, action: np.ndarray) -> None:
    """See `envs.Environment`.

    Raises:
      ValueError: the shape is wrong, a discrete action is out of range, or an
        environment is not waiting for an action.
    """
    action = finishing.checked_action(
      self.spec.action, self._native.spec, index, action
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
      worker_index = index
      if len(self._processes) > 1:
        offset = index - worker.job.first
        worker_index = index[(offset >= 0) & (offset < worker.job.count)]
      if len(worker_index):
        worker.send(messages.STEP + worker_index.tobytes())

  def render(self) -> np.ndarray:
    """See `envs.Environment`; also raises the RuntimeErrors of `recv`."""
    if not self._render:
      raise types.ConfigError(
        f"{self._name} cannot be rendered: it was made without render=True"
      )
    worker = self._processes[0]
    worker.send(messages.RENDER)
    while True:
      kind, payload = worker.receive()
      if kind == messages.FRAME:
        return pickle.loads(payload)
      if kind == messages.REFUSAL:
        raise types.ConfigError(payload.decode())
      self._handle(worker, kind, payload)

  def close(self) -> None:
    """See `envs.Environment`."""
    self._end()
    self._memory.close()

  def _start(
    self, config: env_config.Config, seed: int, num_threads: int
  ) -> messages.Signature:
    """Starts the processes; if one is killed meanwhile, starts all again."""
    try:
      return self._start_once(config, seed, num_threads)
    except child.KilledError:  # Not a fault of the environments.
      child.end(self._processes)
      self._processes.clear()
      return self._start_once(config, seed, num_threads)

  def _start_once(
    self, config: env_config.Config, seed: int, num_threads: int
  ) -> messages.Signature:
    indices = np.array_split(
      np.arange(self.num_envs), min(num_threads, self.num_envs)
    )
    for index in indices:
      job = messages.Job(
        config,
        first=int(index[0]),
        count=len(index),
        num_envs=self.num_envs,
        seed=seed,
        render=self._render,
      )
      self._processes.append(child.Child(job, self._memory))
    signature, *others = child.signatures(self._processes)
    for other in others:
      messages.check_same(self._name, signature, other)
    self._native = actions.Actions(self._name, signature.action)
    self._shared = messages.shared_rows(
      signature,
      self._native.spec,
      self.num_envs,
      len(config.log_info),
      self._memory.fileno(),
    )
    for worker in self._processes:
      self._listen(worker)
    return signature

  def _listen(self, worker: child.Child) -> None:
    self._by_reply[worker.replies.fileno()] = worker
    self._poll.register(worker.replies, select.POLLIN)

  def _receive(self) -> None:
    if self._failure:
      raise RuntimeError(self._failure)
    if not self._end.alive:
      raise RuntimeError(f"the environments of {self._name} are closed")
    ready = self._poll.poll(child.CHECK_SECONDS * 1000)
    workers = [self._by_reply[reply] for reply, _ in ready]
    for worker in workers:
      self._handle(worker, *worker.read())
    if not ready:
      for worker in list(self._processes):
        if worker.has_died():
          self._handle(worker, *worker.receive())

  def _handle(self, worker: child.Child, kind: bytes, payload: bytes) -> None:
    """Handles a message; drops rows from before a pending reset."""
    if kind == messages.FAILURE:
      self._restart(worker, payload.decode(errors="replace"))
      return
    if kind == messages.REFUSAL:
      self._failure = payload.decode(errors="replace")
      raise types.ConfigError(self._failure)
    try:
      if kind not in (messages.ROWS, messages.FIRST_ROWS):
        raise ValueError(f"expected rows, found {kind!r}")
      if kind == messages.FIRST_ROWS and not worker.pending_resets:
        raise ValueError("expected rows of a step, found rows of a reset")
      index = messages.indices(payload, worker.job)
    except ValueError as error:
      self._fail(worker.garbage(error))
    if kind == messages.FIRST_ROWS:
      worker.pending_resets -= 1
    if not worker.pending_resets:
      ended = self._shared.step_type[index] == _LAST
      worker.episodes += int(np.count_nonzero(ended))
      self._ready.append(index)

  def _restart(self, worker: child.Child, failure: str) -> None:
    """Replaces a process, or raises its failure after too many restarts."""
    restarts, job = self._restarts, worker.job
    failures = worker.failures if worker.episodes < job.count else 0
    if restarts is None or failures >= restarts.maximum:
      self._fail(failure)
    position = self._processes.index(worker)
    self._poll.unregister(worker.replies)
    del self._by_reply[worker.replies.fileno()]
    child.end([worker])
    while True:
      failures += 1
      restarts.add(failure)
      # Environment k has the seed `job.seed + k`.
      seed = restarts.take_seeds(job.count) - job.first
      new = child.Child(dataclasses.replace(job, seed=seed), self._memory)
      new.failures = failures
      self._processes[position] = new
      try:
        (signature,) = child.signatures([new])
        messages.check_same(self._name, self._signature, signature)
        break
      except (types.ConfigError, child.KilledError) as error:
        failure = str(error)
        child.end([new])
        if failures >= restarts.maximum:
          self._fail(failure)
    restarted = range(job.first, job.first + job.count)
    seeds = {**self._finish.restart_seeds, **dict.fromkeys(restarted, seed)}
    self._finish = dataclasses.replace(self._finish, restart_seeds=seeds)
    self._listen(new)
    new.pending_resets = worker.pending_resets
    if new.pending_resets:
      for _ in range(new.pending_resets):
        new.send(messages.RESET)
      return
    # A new process takes an environment's first STEP as a reset, whatever the
    # action.
    owes_row = ~self._needs_action
    owes_row[np.concatenate([np.empty(0, np.int32), *self._ready])] = False
    index = job.first + np.flatnonzero(owes_row[job.first :][: job.count])
    if len(index):
      new.send(messages.STEP + index.astype(np.int32).tobytes())

  def _fail(self, failure: str) -> NoReturn:
    self._failure = failure
    raise RuntimeError(failure)


def _key(config: env_config.Config) -> tuple[str, bytes]:
  # Signatures do not depend on the transform.
  return os.getcwd(), env_config.pickled(
    dataclasses.replace(config, observation_transform="")
  )


def _check_unchanged(
  config: env_config.Config, signature: messages.Signature
) -> None:
  """Checks that environments have the same signature as before."""
  with _signatures_lock:
    if _signatures.setdefault(_key(config), signature) == signature:
      return
    previous = _signatures.pop(_key(config))
  raise types.ConfigError(
    f"{config.env}: expected environments as they were before, {previous},"
    f" found {signature}; if their program has changed, restart this one"
  )
