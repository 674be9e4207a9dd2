"""The tasks of `tasks` as batched `dm_env` time steps, in this process."""

import threading
from typing import NoReturn

import dm_env
import numpy as np
import tree

from seedx import trees, types
from seedx.envs import config as env_config
from seedx.envs import observations, tasks


def spec(config: env_config.Config) -> types.EnvironmentSpec:
  """See `envs.spec`."""
  return _spec(config, tasks.make(config))


class TaskEnvironment:
  """Environments of seedx's own; see `envs.Environment`.

  `send` steps them, and `recv` only waits: they are too small for threads.
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
    """See `envs.make`; it cannot be rendered."""
    self._name = config.env
    if render:
      self.render()
    self.num_envs = num_envs
    self.batch_size = observations.check_numbers(
      num_envs, batch_size, num_threads, seed
    )
    self._task = tasks.make(config)
    self.spec = _spec(config, self._task)
    self._finish = observations.Finisher(
      config, seed, self.spec, env_config.load_transform(config)
    )
    self._task.start(num_envs, seed)
    self._return = np.zeros(num_envs, np.float32)
    self._ended = np.ones(num_envs, np.bool_)
    # The rows of a `send` each, that `recv` has not returned.
    self._ready: list[types.Rows] = []
    self._changed = threading.Condition()

  def reset(self) -> None:
    """See `envs.Environment`."""
    self._ready.clear()
    self._ended[:] = True
    index = np.arange(self.num_envs, dtype=np.int32)
    self.send(index, np.zeros(self.num_envs, np.int32))

  def recv(self) -> types.Rows:
    """See `envs.Environment`."""
    with self._changed:
      while (found := self._num_ready()) < self.batch_size:
        self._changed.wait()
      everything = trees.concatenate(self._ready, found)
      rows = _part(everything, slice(self.batch_size))
      self._ready = [_part(everything, slice(self.batch_size, None))]
    if self.batch_size == self.num_envs:
      rows = _part(rows, np.argsort(rows.index))
    last = rows.timestep.step_type == int(dm_env.StepType.LAST)
    return rows._replace(timestep=self._finish(rows.index, last, rows.timestep))

  def send(self, index: np.ndarray, action: np.ndarray) -> None:
    """See `envs.Environment`."""
    action = observations.checked_action(
      self.spec.action, self._task.action, index, action
    )
    rows = self._step(np.asarray(index, np.int32), action)
    with self._changed:
      self._ready.append(rows)
      self._changed.notify()

  def render(self) -> NoReturn:
    """Raises types.ConfigError: a task has no picture."""
    raise types.ConfigError(
      f"{self._name} cannot be rendered: it has no picture"
    )

  def close(self) -> None:
    """See `envs.Environment`."""

  def _num_ready(self) -> int:
    return sum(len(rows.index) for rows in self._ready)

  def _step(self, index: np.ndarray, action: np.ndarray) -> types.Rows:
    first = self._ended[index]
    step_type = np.full(len(index), int(dm_env.StepType.MID), np.uint8)
    step_type[first] = int(dm_env.StepType.FIRST)
    reward = np.zeros(len(index), np.float32)
    ended = np.zeros(len(index), np.bool_)
    self._task.reset(index[first])
    outcome = self._task.step(index[~first], action[~first])
    reward[~first], ended[~first] = outcome
    step_type[ended] = int(dm_env.StepType.LAST)
    total = np.where(first, 0, self._return[index] + reward)
    self._return[index], self._ended[index] = total, ended
    timestep = dm_env.TimeStep(
      step_type,
      reward,
      1 - ended.astype(np.float32),
      self._task.observe(index),
    )
    episode_return = np.where(ended, total, np.nan).astype(np.float32)
    return types.Rows(index, timestep, episode_return)


def _spec(config: env_config.Config, task: tasks.Task) -> types.EnvironmentSpec:
  observation, _ = observations.joined_spec(
    config, task.observation, {}, lambda name, leaf: leaf
  )
  return observations.environment_spec(config, observation, task.action)


def _part(rows: types.Rows, part: slice | np.ndarray) -> types.Rows:
  return tree.map_structure(lambda leaf: leaf[part], rows)
