"""Environments of JAX functions as batched `dm_env` time steps."""

import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import tree

from seedx import trees, types
from seedx.envs import actions, env_specs, finishing, functional
from seedx.envs import config as env_config


def spec(config: env_config.Config) -> types.EnvironmentSpec:
  """See `envs.spec`."""
  return _spec(config, functional.make(config))


class FunctionalEnvironment:
  """Environments of JAX functions, stepped on the CPU; see `envs.Environment`.

  `send` steps the environments, since a step is too short for a thread. `recv`
  only waits. JAX functions cannot be rendered.
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
    self._name = config.env
    if render:
      self.render()
    self.num_envs = num_envs
    self.batch_size = finishing.check_numbers(
      num_envs, batch_size, num_threads, seed
    )
    environment = functional.make(config)
    self._separate = actions.Actions(config.env, environment.action).spec
    self.spec = _spec(config, environment)
    self._finish = finishing.Finisher(
      config, seed, self.spec, env_config.load_transform(config)
    )
    self._device = jax.local_devices(backend="cpu")[0]
    # Compiled, so that random numbers do not depend on `num_envs`.
    with jax.default_device(self._device):
      self._state = jax.jit(lambda: _init(environment, num_envs, seed))()
    self._program = jax.jit(
      functools.partial(_stepped, environment, self.spec.log_info),
      donate_argnums=0,
    )
    self._restarted = jax.jit(functools.partial(_restarted, environment))
    self._return = np.zeros(num_envs, np.float32)
    self._due_first = np.ones(num_envs, np.bool_)
    # Rows that `recv` has not returned yet.
    self._ready: list[types.Rows] = []
    self._changed = threading.Condition()

  def reset(self) -> None:
    """See `envs.Environment`."""
    self._ready.clear()
    if not self._due_first.all():
      self._state = self._restarted(self._state)
      self._due_first[:] = True
    index = np.arange(self.num_envs, dtype=np.int32)
    self.send(index, trees.zeros(self.spec.action, (self.num_envs,)))

  def recv(self) -> types.Rows:
    """See `envs.Environment`."""
    with self._changed:
      while (num_ready := self._num_ready()) < self.batch_size:
        self._changed.wait()
      all_rows = trees.concatenate(self._ready, num_ready)
      rows = _select(all_rows, slice(self.batch_size))
      self._ready = [_select(all_rows, slice(self.batch_size, None))]
    if self.batch_size == self.num_envs:
      rows = _select(rows, np.argsort(rows.index))
    last = rows.timestep.step_type == int(dm_env.StepType.LAST)
    return rows._replace(timestep=self._finish(rows.index, last, rows.timestep))

  def send(self, index: np.ndarray, action: np.ndarray) -> None:
    """See `envs.Environment`."""
    action = finishing.checked_action(
      self.spec.action, self._separate, index, action
    )
    rows = self._step(np.asarray(index, np.int32), action)
    with self._changed:
      self._ready.append(rows)
      self._changed.notify()

  def render(self) -> NoReturn:
    """Raises types.ConfigError: JAX functions cannot be rendered."""
    raise types.ConfigError(
      f"{self._name} cannot be rendered: it has no picture"
    )

  def close(self) -> None:
    """See `envs.Environment`."""

  def _num_ready(self) -> int:
    return sum(len(rows.index) for rows in self._ready)

  def _step(self, index: np.ndarray, action: np.ndarray) -> types.Rows:
    # Padding to a power of two limits the number of compiled programs.
    size = min(self.num_envs, 1 << (len(index) - 1).bit_length())
    padding = size - len(index)
    padded = np.pad(index, (0, padding), constant_values=self.num_envs)
    action = np.concatenate([action, np.repeat(action[:1], padding, axis=0)])
    with jax.default_device(self._device):
      self._state, *rows = self._program(self._state, padded, action)
    # The caller of `recv` owns the arrays, so they are copies.
    timestep, info = jax.tree.map(lambda x: np.array(x[: len(index)]), rows)
    first = timestep.step_type == int(dm_env.StepType.FIRST)
    last = timestep.step_type == int(dm_env.StepType.LAST)
    wrong = index[self._due_first[index] & ~first]
    if len(wrong):
      raise RuntimeError(
        finishing.failure(
          self._name, int(wrong[0]), self._finish.seed, finishing.NO_FIRST
        )
      )
    self._due_first[index] = last
    total = np.where(first, 0, self._return[index] + timestep.reward)
    self._return[index] = total
    episode_return = np.where(last, total, np.nan).astype(np.float32)
    return types.Rows(index, timestep, episode_return, info)


class _State(NamedTuple):
  inner: types.Tree  # `[N, ...]` states of N environments.
  rng_key: jax.Array  # `[N]`.
  time: jax.Array  # `[N]` int32 number of steps so far.


def _init(
  environment: functional.Environment, num_envs: int, seed: int
) -> _State:
  keys = functional.keys(seed, num_envs)
  time = jnp.zeros(num_envs, jnp.int32)
  return _State(functional.init(environment, keys), keys, time)


def _restarted(environment: functional.Environment, state: _State) -> _State:
  keys = jax.vmap(jax.random.fold_in)(state.rng_key, state.time)
  return state._replace(inner=functional.init(environment, keys))


def _stepped(
  environment: functional.Environment,
  log_info: Sequence[str],
  state: _State,
  index: jax.Array,
  action: jax.Array,
) -> tuple[_State, dm_env.TimeStep, types.Tree]:
  """Steps the environments with the indices `[B]`; the index N is padding."""
  inner, keys, time = jax.tree.map(lambda x: x[index], state)
  inner, timestep = functional.step(environment, inner, action, keys, time)
  info = functional.last_info(environment, inner, timestep, log_info)
  state = jax.tree.map(
    lambda old, new: old.at[index].set(new, mode="drop"),
    state,
    _State(inner, keys, time + 1),
  )
  return state, timestep, info


def _spec(
  config: env_config.Config, environment: functional.Environment
) -> types.EnvironmentSpec:
  if config.log_info:
    _check_log_info(config, environment)
  native = actions.Actions(config.env, environment.action)
  observation, _ = env_specs.joined_spec(
    config, environment.observation, native.spec, {}, lambda name, leaf: leaf
  )
  spec = env_specs.environment_spec(
    config, observation, native.spec, native.native
  )
  game = getattr(environment, "game", None)
  if game is None:
    return spec
  return dataclasses.replace(
    spec,
    # A search cannot begin at a transformed observation, nor look at one.
    game=None if config.observation_transform else game,
    players=getattr(environment, "players", 1),
    hidden=tuple(game.hidden),
  )


def _check_log_info(config: env_config.Config, environment: Any) -> None:
  if not hasattr(environment, "info"):
    raise types.ConfigError(
      f"{config.env}: expected no log_info for an environment without info,"
      f" found {', '.join(config.log_info)}: leave it out, or give an"
      " environment of yours the method info(state) -> {name: number}"
    )
  try:
    info = jax.eval_shape(
      lambda key: environment.info(environment.init(key)), jax.random.key(0)
    )
  except Exception as error:  # A user's function may raise anything.
    raise types.ConfigError(
      f"{config.env}: info raises {env_config.in_one_line(error)}"
    ) from error
  numbers = [k for k, x in trees.named_leaves(info) if x.shape == ()]
  env_specs.check_log_info(config, numbers)


def _select(rows: types.Rows, index: slice | np.ndarray) -> types.Rows:
  return tree.map_structure(lambda leaf: leaf[index], rows)
