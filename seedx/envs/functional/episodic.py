"""Environments as pure functions, and what makes one of a few parts."""

import abc
from typing import Any, ClassVar, NamedTuple, Protocol

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types


class Environment(Protocol):
  """One environment as pure functions, to be jitted and vmapped.

  The first step after `init`, and the first after a LAST, ignores its action.
  It is the FIRST of a new episode, with reward 0 and discount 1. A LAST has the
  discount 0 where the episode terminates, and 1 where a time limit truncates
  it.

  Attributes:
    observation: the spec of an observation, without batch axes.
    action: the spec of an action, see `types.EnvironmentSpec`.
  """

  observation: types.Tree
  action: dm_env.specs.BoundedArray

  def init(self, rng_key: jax.Array) -> types.Tree:
    """Returns a state before an episode, a nest of arrays."""

  def step(
    self, state: types.Tree, action: jax.Array, rng_key: jax.Array
  ) -> tuple[types.Tree, dm_env.TimeStep]:
    """Takes a step.

    Args:
      state: of the environment.
      action: `[*action_shape]`, within its bounds.
      rng_key: for this step only.

    Returns:
      The next state, and the time step: `step_type` uint8, `reward` and
      `discount` float32, all `[]`.
    """


class Outcome(NamedTuple):
  """What an action leads to.

  Attributes:
    state: the next one.
    reward: `[]`.
    terminated: `[]` bool, whether the episode ends.
  """

  state: types.Tree
  reward: jax.Array
  terminated: jax.Array | bool


class State(NamedTuple):
  """The state of an `Episodic` environment.

  Attributes:
    inner: of the episode.
    time: `[]` int32, actions of the episode so far.
    over: `[]` bool, whether the next step is a FIRST.
  """

  inner: Any
  time: jax.Array
  over: jax.Array


class Episodic(abc.ABC):
  """An `Environment` of one episode's functions, which begins new ones.

  Attributes:
    time_limit: actions after which an episode is truncated; 0 for none.
  """

  observation: types.Tree
  action: dm_env.specs.BoundedArray
  time_limit: ClassVar[int] = 0

  @abc.abstractmethod
  def reset(self, rng_key: jax.Array) -> types.Tree:
    """The state at the start of an episode."""

  @abc.abstractmethod
  def act(
    self, state: types.Tree, action: jax.Array, rng_key: jax.Array
  ) -> Outcome:
    """What an action `[*action_shape]` leads to, within an episode."""

  @abc.abstractmethod
  def observe(self, state: types.Tree) -> types.Tree:
    """The observation of a state."""

  def init(self, rng_key: jax.Array) -> State:
    """See `Environment`."""
    return State(self.reset(rng_key), jnp.int32(0), jnp.bool_(True))

  def step(
    self, state: State, action: jax.Array, rng_key: jax.Array
  ) -> tuple[State, dm_env.TimeStep]:
    """See `Environment`."""
    first = state.over
    # One of the two is used: they may share the key.
    fresh = self.reset(rng_key)
    inner, reward, terminated = self.act(state.inner, action, rng_key)
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
  """A key for each of many environments; environment k has that of `seed + k`.

  Args:
    seed: of the first.
    num_envs: N.
  """
  return jax.vmap(jax.random.key)(seed + jnp.arange(num_envs))


def init(environment: Environment, rng_keys: jax.Array) -> types.Tree:
  """The states `[N, ...]` of many environments, with a key `[N]` for each."""
  return jax.vmap(environment.init)(rng_keys)


def step(
  environment: Environment,
  state: types.Tree,
  action: jax.Array,
  rng_keys: jax.Array,
  time: jax.Array,
) -> tuple[types.Tree, dm_env.TimeStep]:
  """Steps many environments, whichever of them are stepped together.

  Args:
    environment: of all.
    state: `[B, ...]`.
    action: `[B, *action_shape]`; floats are clipped to their bounds.
    rng_keys: `[B]`, those of `keys`.
    time: `[B]` int32, steps of each so far.

  Returns:
    The next states, and the time steps `[B, ...]`.
  """
  spec = environment.action
  if np.issubdtype(spec.dtype, np.floating):
    action = jnp.clip(action, spec.minimum, spec.maximum)
  own = jax.vmap(jax.random.fold_in)(rng_keys, time)
  return jax.vmap(environment.step)(state, action, own)
