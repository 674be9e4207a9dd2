"""The messages between the learner and actors that act by themselves.

Such an actor opens the stream `EXPERIENCE` with the hello of a thin actor, see
`protocol`. Its welcome also has the `exploration` of its environments. It sends
`Experience`; the reply means that the learner has taken it, and has the version
of the newest parameters. An empty request on the stream `PARAMETERS` is
answered with `Versioned`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tree

from seedx import types, wire

EXPERIENCE = "experience"
PARAMETERS = "parameters"


class Experience(NamedTuple):
  """Finished unrolls, as an actor that acts by itself sends them.

  Attributes:
    unroll: `[S, L, ...]`; the core state, `[S, ...]`.
    priorities: `[S, L - window + 1]` float32, of each window, as the actor's
      parameters see it; () for an agent without.
    episode_return: `[S, L]` float32, as in `types.Rows`, of the new steps,
      and NaN behind them.
    wait_environments: `[]` float32, the actor's share of time since its last
      message that it spent waiting for environments.
    wait_learner: `[]` float32, the share that it waited for the learner.
  """

  unroll: types.Unroll
  priorities: types.Tree
  episode_return: np.ndarray
  wait_environments: types.Array
  wait_learner: types.Array


class Versioned(NamedTuple):
  """Parameters that can act, and how many updates they have seen.

  Attributes:
    version: `[]` int32.
    acting: see `base.Agent.acting`.
  """

  version: types.Array
  acting: types.Tree


VERSION = wire.Layout.of(wire.once(np.zeros((), np.int32)), 1)


def exploration(welcome: Mapping[str, Any], num_envs: int) -> np.ndarray:
  """Returns `[num_envs]` float32, the exploration in the learner's welcome.

  Raises:
    wire.WireError: FAILED_PRECONDITION, the welcome has no such exploration.
  """
  found = welcome.get("exploration")
  if not isinstance(found, list) or len(found) != num_envs:
    raise wire.bad_welcome(f"exploration of {num_envs} environments", found)
  if not all(isinstance(x, float) and 0.0 <= x <= 1.0 for x in found):
    raise wire.bad_welcome("exploration from 0.0 to 1.0", found)
  return np.asarray(found, np.float32)


def experience_layout(share: types.Share, max_rows: int) -> wire.Layout:
  """The layout of the unrolls that an actor sends.

  Args:
    share: anything with the shapes and dtypes of one.
    max_rows: unrolls in a message.
  """
  length = share.data.version.shape[0]

  def row(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    # Broadcast: no memory for what is only asked for its shape.
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
    ),
    max_rows,
  )


def parameters_layout(acting: types.Tree) -> wire.Layout:
  """The layout of parameters, from anything of their shapes and dtypes."""
  versioned = Versioned(np.zeros((), np.int32), acting)
  return wire.Layout.of(wire.once(versioned), 1)
