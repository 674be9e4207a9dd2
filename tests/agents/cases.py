"""Specs, states, and changes of states and unrolls for tests of agents."""

import dataclasses

import dm_env
import jax
import numpy as np
from dm_env import specs

from seedx import types

VECTOR = types.EnvironmentSpec(
  specs.Array((4,), np.float32), specs.DiscreteArray(3)
)
IMAGE = types.EnvironmentSpec(
  specs.BoundedArray((1, 36, 36), np.uint8, 0, 255), specs.DiscreteArray(3)
)


def random_state(agent, config):
  """Returns a state with random parameters and different target parameters."""
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(agent.init, jax.random.key(0))
  state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)

  def draw(x):
    scale = np.prod(x.shape[:-1]) ** -0.5 if x.ndim > 1 else 0.1
    return rng.normal(0, scale, x.shape).astype(x.dtype)

  return dataclasses.replace(
    state,
    params=jax.tree.map(draw, state.params),
    # Means and variances of 1, of no batches so far.
    statistics=jax.tree.map(
      lambda x: x + np.issubdtype(x.dtype, np.floating), state.statistics
    ),
    target_params=jax.tree.map(draw, state.target_params),
    hyperparameters={
      name: np.float32(getattr(config, name)) for name in state.hyperparameters
    },
  )


def part(unroll, length, start=0):
  """Returns some steps of an unroll, with the unroll's core state."""
  steps = unroll._replace(core_state=())
  steps = jax.tree.map(lambda x: x[start : start + length], steps)
  return steps._replace(core_state=unroll.core_state)


def td_errors(
  q, target_q, unroll, n, double, discount=0.9, whole=True, rescaled=float
):
  """Computes errors and weights `[T - n + 1, B]`, step by step in NumPy.

  If not `whole`, the last n - 1 steps are included, with shorter returns.
  """
  step_type, reward, factor, _ = unroll.inputs.timestep
  errors = np.zeros((len(q) - (n if whole else 1), q.shape[1]))
  weights = np.ones_like(errors)
  for t, b in np.ndindex(*errors.shape):
    if step_type[t + 1, b] == dm_env.StepType.FIRST:
      weights[t, b] = 0.0
      continue
    total, product = 0.0, 1.0
    for k in range(t + 1, min(t + n, len(q) - 1) + 1):
      total += product * reward[k, b]
      product *= factor[k, b] * discount
      if step_type[k, b] == dm_env.StepType.LAST:
        break
    best = np.argmax((q if double else target_q)[k, b])
    total += product * target_q[k, b, best]
    errors[t, b] = rescaled(total) - q[t, b, unroll.action[t, b]]
  return errors, weights


def with_hyperparameters(state, **changes):
  changes = {name: np.float32(x) for name, x in changes.items()}
  return dataclasses.replace(
    state, hyperparameters=state.hyperparameters | changes
  )


def difference(a, b):
  gaps = jax.tree.map(lambda x, y: np.abs(np.subtract(x, y)).max(), a, b)
  return max(jax.tree.leaves(gaps))
