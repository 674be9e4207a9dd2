"""The messages between the learner and unroll actors.

An unroll actor opens the stream `EXPERIENCE` with the hello of a thin actor,
see `protocol`. The welcome also has the `exploration` of its environments. The
actor sends `Experience`. The reply has the version of the newest parameters,
and comes when the learner has taken the unrolls. On the stream `PARAMETERS`, an
empty request is answered with `Snapshot`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import tree

from seedx import types, wire

EXPERIENCE = "experience"
PARAMETERS = "parameters"


class Experience(NamedTuple):
  """Finished unrolls of an unroll actor.

  Attributes:
    unroll: `[S, L, ...]` steps, and `[S, ...]` core states.
    priorities: `[S, L - window + 1]` float32 priorities of all windows,
      computed with the actor's parameters; () for an agent without priorities.
    episode_return: `[S, L]` float32, `types.Rows.episode_return` of the new
      steps, followed by NaN.
    wait_environments: `[]` float32, share of the time since the last message
      for which the actor waited for its environments.
    wait_learner: `[]` float32, share of the time since the last message for
      which the actor waited for the learner.
    info: `[S, L, E]` float32, `types.Rows.info` of the new steps, followed by
      NaN; () if no entry is logged.
  """

  unroll: types.Unroll
  priorities: types.Tree
  episode_return: np.ndarray
  wait_environments: types.Array
  wait_learner: types.Array
  info: types.Tree = ()


class Snapshot(NamedTuple):
  """Acting parameters and their version.

  Attributes:
    version: `[]` int32, number of updates behind the parameters.
    acting: acting parameters, see `base.Agent.acting`.
  """

  version: types.Array
  acting: types.Tree


VERSION = wire.Layout.of(wire.once(np.zeros((), np.int32)), 1)


def exploration(welcome: Mapping[str, Any], num_envs: int) -> np.ndarray:
  """Returns the `[num_envs]` float32 exploration in the learner's welcome.

  Raises:
    wire.WireError: FAILED_PRECONDITION, the welcome has no valid exploration.
  """
  values = welcome.get("exploration")
  if not isinstance(values, list) or len(values) != num_envs:
    raise wire.bad_welcome(f"exploration of {num_envs} environments", values)
  if not all(isinstance(x, float) and 0.0 <= x <= 1.0 for x in values):
    raise wire.bad_welcome("exploration from 0.0 to 1.0", values)
  return np.asarray(values, np.float32)


def swapped(unroll: types.Unroll) -> types.Unroll:
  """Returns views of `[L, S, ...]` unrolls as `[S, L, ...]`, or the reverse."""
  steps = jax.tree.map(
    lambda leaf: np.swapaxes(leaf, 0, 1), unroll._replace(core_state=())
  )
  return steps._replace(core_state=unroll.core_state)


def experience_layout(
  share: types.Share, max_rows: int, num_info: int = 0
) -> wire.Layout:
  """Returns the layout of messages with up to `max_rows` unrolls.

  Only the shapes and dtypes of the share matter. `num_info` is the number E of
  logged entries of `info`.
  """
  length = share.data.version.shape[0]

  def row(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    # A broadcast array takes no memory: only its shape is needed.
    return np.broadcast_to(np.zeros((), dtype), shape)

  def of_steps(leaf: types.Array) -> np.ndarray:
    return row((length, *leaf.shape[2:]), leaf.dtype)

  def of_unroll(leaf: types.Array) -> np.ndarray:
    return row(leaf.shape[1:], leaf.dtype)

  steps = tree.map_structure(of_steps, share.data._replace(core_state=()))
  core_state = tree.map_structure(of_unroll, share.data.core_state)
  scalar = row((), np.dtype(np.float32))
  return wire.Layout.of(
    Experience(
      unroll=steps._replace(core_state=core_state),
      priorities=tree.map_structure(of_unroll, share.priorities),
      episode_return=row((length,), scalar.dtype),
      wait_environments=wire.once(scalar),
      wait_learner=wire.once(scalar),
      info=row((length, num_info), scalar.dtype) if num_info else (),
    ),
    max_rows,
  )


def parameters_layout(acting: types.Tree) -> wire.Layout:
  """Returns the layout of parameters with these shapes and dtypes."""
  versioned = Snapshot(np.zeros((), np.int32), acting)
  return wire.Layout.of(wire.once(versioned), 1)
