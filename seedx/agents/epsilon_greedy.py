"""The exploration of agents with Q-values: sometimes a random action."""

import dm_env.specs
import jax
import jax.numpy as jnp

from seedx import distributions, types
from seedx.agents import base


def check_discrete(spec: types.EnvironmentSpec) -> None:
  """Raises types.ConfigError if the actions are not discrete."""
  if not isinstance(spec.action, dm_env.specs.DiscreteArray):
    native = spec.action if spec.native_action is None else spec.native_action
    raise types.ConfigError(
      f"expected discrete actions for Q-values, found {native}; use an"
      " actor-critic agent (PPO, A2C or V-trace), or let the environment take"
      " one integer for each combination, as a gymnasium.ActionWrapper can"
    )


def decay_updates(epsilon_steps: int, horizon: base.Horizon | None) -> float:
  """Returns `AgentState.clock` when epsilon's decay ends; 0 for no decay."""
  if horizon is None:
    return 0.0
  steps, learned = epsilon_steps, horizon.learned_steps
  # The first update comes late in a run with a replay.
  steps = min(steps, max(learned, steps - horizon.unlearned_steps))
  return float(round(steps / learned * horizon.updates))


def epsilon(
  state: base.AgentState, end: jax.Array, decay_updates: float
) -> jax.Array:
  """Returns the current epsilon, `[]`, which falls linearly from 1 to `end`."""
  if not decay_updates:
    return end
  progress = state.clock / decay_updates
  return jnp.maximum(1.0 - progress * (1.0 - end), end).astype(jnp.float32)


def explore(
  explore_key: jax.Array,
  action_key: jax.Array,
  q_values: jax.Array,
  action_mask: jax.Array | None,
  epsilon: jax.Array,
) -> jax.Array:
  """Returns the best actions, or random legal ones with probability epsilon.

  Args:
    explore_key: random key of the choice between the two.
    action_key: random key of the random actions.
    q_values: `[B, A]`.
    action_mask: `[B, A]`, not 0 where an action is legal; None if all are.
    epsilon: `[B]`.
  """
  equal_logits = distributions.only_legal(jnp.zeros_like(q_values), action_mask)
  random_action = jax.random.categorical(action_key, equal_logits)
  explores = jax.random.uniform(explore_key, epsilon.shape) < epsilon
  return jnp.where(explores, random_action, jnp.argmax(q_values, axis=-1))
