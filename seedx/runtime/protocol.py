"""What actors and the inference server say to each other.

An actor opens the stream `ACT` with a hello of `{"num_envs": n}`. It gets a
lease of n slots, and in the welcome the `first_seed` of its environments: seeds
never overlap between leases, so a restart of an actor sees new episodes. Then
it sends `types.Rows` of any of its environments, and gets their actions, in
the same order.
"""

import dm_env
import numpy as np

from seedx import types, wire

ACT = "act"


def rows_layout(spec: types.EnvironmentSpec, max_rows: int) -> wire.Layout:
  """The layout of the rows that an actor sends."""
  rows = types.Rows(
    index=np.zeros((), np.int32),
    timestep=dm_env.TimeStep(
      step_type=np.zeros((), np.uint8),
      reward=np.zeros((), np.float32),
      discount=np.zeros((), np.float32),
      observation=spec.observation,
    ),
    episode_return=np.zeros((), np.float32),
  )
  return wire.Layout.of(rows, max_rows)


def actions_layout(spec: types.EnvironmentSpec, max_rows: int) -> wire.Layout:
  """The layout of the actions that an actor gets."""
  return wire.Layout.of(spec.action, max_rows)
