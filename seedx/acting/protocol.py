"""The actors of a run, and the messages between them and the learner.

A thin actor opens the stream `ACT` with a hello of `{"num_envs": n}`. It gets n
slots, and in the welcome the `first_seed` of its environments. Seeds never
overlap between actors, so an actor that restarts sees new episodes. It sends
`types.Rows` of any of its environments, and receives their actions in the same
order.

An actor that computes actions by itself opens the stream `EXPERIENCE` with the
same hello. Its welcome also has the `exploration` of its environments. It sends
`Experience`; the reply means that the learner has taken it, and has the version
of the newest parameters. An empty request on the stream `PARAMETERS` is
answered with `Versioned`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import dm_env
import numpy as np
import tree

from seedx import types, wire

ACT = "act"
EXPERIENCE = "experience"
PARAMETERS = "parameters"


@dataclasses.dataclass(frozen=True)
class Actors:
  """The actors of a run.

  Attributes:
    num_actors: number of actor processes.
    envs_per_actor: environments of each actor.
  """

  num_actors: int = 2
  envs_per_actor: int = 128

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    types.check_ranges(self, num_actors=(1, 2**20), envs_per_actor=(1, 2**20))

  @property
  def num_envs(self) -> int:
    """Environments of all actors together."""
    return self.num_actors * self.envs_per_actor


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


def first_seed(welcome: Mapping[str, Any]) -> int:
  """The seed of an actor's first environment, as its learner says.

  Raises:
    wire.WireError: FAILED_PRECONDITION, it says something else.
  """
  found = welcome.get("first_seed")
  if type(found) is not int or not 0 <= found < 2**31:
    raise wire.unwelcome("first_seed from 0 to 2^31 - 1", found)
  return found


def exploration(welcome: Mapping[str, Any], num_envs: int) -> np.ndarray:
  """`[num_envs]` float32, how much to explore, as the learner says.

  Raises:
    wire.WireError: FAILED_PRECONDITION, it says something else.
  """
  found = welcome.get("exploration")
  if not isinstance(found, list) or len(found) != num_envs:
    raise wire.unwelcome(f"exploration of {num_envs} environments", found)
  if not all(isinstance(x, float) and 0.0 <= x <= 1.0 for x in found):
    raise wire.unwelcome("exploration from 0.0 to 1.0", found)
  return np.asarray(found, np.float32)


def act_layouts(
  spec: types.EnvironmentSpec, max_rows: int
) -> tuple[wire.Layout, wire.Layout]:
  """The layouts of the rows that a thin actor sends, and of its actions."""
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
  return wire.Layout.of(rows, max_rows), wire.Layout.of(spec.action, max_rows)


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
