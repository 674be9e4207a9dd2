"""Environments as pure functions, and a base class that handles episodes."""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import dm_env
import jax
import jax.numpy as jnp

from seedx import trees, types
from seedx.envs import actions
from seedx.envs.functional import resets


class Environment(Protocol):
  """One environment as pure functions, to be jitted and vmapped.

  The first step after `init` or after a LAST ignores its action, and is the
  FIRST of a new episode, with reward 0 and discount 1. The discount of a LAST
  is 0 if the episode terminates, and 1 if a time limit truncates it.

  Attributes:
    observation: spec of an observation, without batch axes.
    action: spec of an action, or a nest of these: a `dm_env.specs.Array` of
      floats, or a `dm_env.specs.BoundedArray`.
  """

  observation: types.Tree
  action: types.Tree

  def init(self, rng_key: jax.Array) -> types.Tree:
    """Returns the state before the first episode, a nest of arrays."""

  def step(
    self, state: types.Tree, action: types.Tree, rng_key: jax.Array
  ) -> tuple[types.Tree, dm_env.TimeStep]:
    """Takes a step with an action, `[*action_shape]`, within its bounds.

    Returns:
      The next state, and the time step: `[]` uint8 `step_type`, `[]` float32
      `reward` and `discount`, and an observation without batch axes.
    """

  # An environment may also have `info(state)`, which returns numbers `[]` by
  # name, or nested dicts of them. Their values after an episode's last step are
  # metrics, see `log_info` of `envs.Config`.


class Outcome(NamedTuple):
  """The outcome of an action.

  Attributes:
    state: the next state.
    reward: `[]`.
    terminated: `[]` bool, whether the episode terminates.
  """

  state: types.Tree
  reward: jax.Array
  terminated: jax.Array | bool


class State(NamedTuple):
  """The state of an `Episodic` environment.

  Attributes:
    inner: state of the episode, as `Episodic.reset` returns it.
    time: `[]` int32 number of actions in the episode so far.
    over: `[]` bool, whether the next step is a FIRST.
  """

  inner: Any
  time: jax.Array
  over: jax.Array


class Episodic(abc.ABC):
  """An `Environment` made from functions of a single episode.

  Attributes:
    time_limit: number of actions after which an episode is truncated; 0 for no
      limit.
    slow_reset: whether a reset costs more than several steps, so that only the
      environments which begin an episode should compute it.
  """

  observation: types.Tree
  action: types.Tree
  time_limit: int = 0
  slow_reset: ClassVar[bool] = False

  @abc.abstractmethod
  def reset(self, rng_key: jax.Array) -> types.Tree:
    """Returns the state at the start of an episode."""

  @abc.abstractmethod
  def act(
    self, state: types.Tree, action: jax.Array, rng_key: jax.Array
  ) -> Outcome:
    """Returns the outcome of an action, `[*action_shape]`, in an episode."""

  @abc.abstractmethod
  def observe(self, state: types.Tree) -> types.Tree:
    """Returns the observation of a state."""

  def init(self, rng_key: jax.Array) -> State:
    """See `Environment`."""
    if self.slow_reset:
      # The first step replaces them, and a slow reset compiles slowly, too.
      shapes = jax.eval_shape(self.reset, rng_key)
      inner = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    else:
      inner = self.reset(rng_key)
    return State(inner, jnp.int32(0), jnp.bool_(True))

  def step(
    self, state: State, action: jax.Array, rng_key: jax.Array
  ) -> tuple[State, dm_env.TimeStep]:
    """See `Environment`."""
    first = state.over
    # Either the result of `reset` is used or that of `act`: one key is enough.
    inner, reward, terminated = self.act(state.inner, action, rng_key)
    if self.slow_reset:
      inner = resets.restarted(self.reset, first, inner, rng_key)
    else:
      fresh = self.reset(rng_key)
      inner = jax.tree.map(lambda a, b: jnp.where(first, a, b), fresh, inner)
    time = jnp.where(first, 0, state.time + 1)
    terminated = jnp.logical_and(terminated, ~first)
    over = terminated
    if self.time_limit:
      over |= time == self.time_limit
    last = int(dm_env.StepType.LAST)
    step_type = jnp.where(first, int(dm_env.StepType.FIRST), 1)
    timestep = dm_env.TimeStep(
      step_type=jnp.where(over, last, step_type).astype(jnp.uint8),
      reward=jnp.where(first, 0, reward).astype(jnp.float32),
      discount=1.0 - terminated.astype(jnp.float32),
      observation=self.observe(inner),
    )
    return State(inner, time, over), timestep


def keys(seed: int | jax.Array, num_envs: int) -> jax.Array:
  """Returns random keys, `[num_envs]`; key k is made from `seed + k`."""
  return jax.vmap(jax.random.key)(seed + jnp.arange(num_envs))


def init(environment: Environment, rng_keys: jax.Array) -> types.Tree:
  """Returns initial states, `[N, ...]`, from random keys, `[N]`."""
  return jax.vmap(environment.init)(rng_keys)


def last_info(
  environment: Any,
  state: types.Tree,
  timestep: dm_env.TimeStep,
  log_info: Sequence[str],
) -> types.Tree:
  """Returns `types.Rows.info` after a step.

  Args:
    environment: functions of each environment, with `info`.
    state: `[B, ...]` states after the step.
    timestep: `[B, ...]` time steps.
    log_info: names of the entries.
  """
  if not log_info:
    return ()
  info = dict(trees.named_leaves(jax.vmap(environment.info)(state)))
  values = [jnp.asarray(info[name], jnp.float32) for name in log_info]
  last = timestep.step_type == int(dm_env.StepType.LAST)
  return jnp.where(last[:, None], jnp.stack(values, axis=-1), jnp.nan)


def step(
  environment: Environment,
  state: types.Tree,
  action: jax.Array,
  rng_keys: jax.Array,
  time: jax.Array,
) -> tuple[types.Tree, dm_env.TimeStep]:
  """Steps many environments.

  An environment's random numbers do not depend on the other environments.

  Args:
    environment: functions of each environment.
    state: `[B, ...]`.
    action: `[B, *action_shape]` of the agent; the environments receive it as
      their `action` describes, with floats clipped to their bounds.
    rng_keys: `[B]` keys that `keys` returned.
    time: `[B]` int32 number of steps of each environment so far.

  Returns:
    The next states, and the time steps, `[B, ...]`.
  """
  native = actions.Actions("the environment", environment.action)
  action = native(action, jnp)
  step_keys = jax.vmap(jax.random.fold_in)(rng_keys, time)
  return jax.vmap(environment.step)(state, action, step_keys)
