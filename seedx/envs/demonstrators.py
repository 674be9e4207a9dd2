"""Policies written by hand, whose episodes are demonstrations.

They are functions `(timestep, state) -> (action, state)` of `[B, ...]` arrays,
for `seedx record --policy`. The first state is None.
"""

import dm_env
import numpy as np

from seedx import types


def cartpole(
  timestep: dm_env.TimeStep, state: types.Tree
) -> tuple[np.ndarray, types.Tree]:
  """Balances the pole of CartPole-v1; every episode has 500 steps."""
  x, x_dot, theta, theta_dot = timestep.observation.T
  push = 3 * theta + theta_dot + 0.1 * x + 0.2 * x_dot
  return (push > 0).astype(np.int32), state


def deep_sea(
  timestep: dm_env.TimeStep, state: types.Tree
) -> tuple[np.ndarray, types.Tree]:
  """Finds the treasure of `seedx:DeepSea` with `cued`: it remembers the cue."""
  cue = timestep.observation[:, -1]
  first = timestep.step_type == dm_env.StepType.FIRST
  state = np.where(first, cue, cue if state is None else state)
  return (state > 0).astype(np.int32), state
