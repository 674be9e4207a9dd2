"""The number of actors, and the messages between a thin actor and the learner.

A thin actor opens the stream `ACT` with the hello `{"num_envs": n}`. The actor
leases n slots, and the welcome has the `first_seed` of its environments and the
`env_steps` of the run so far. Seeds of actors never overlap, so an actor that
restarts sees new episodes. The actor sends `types.Rows` of any of its
environments, and receives their actions in the same order.

If other processes act for the learner, its welcome also has their `addresses`,
and leases no slots. The actor opens the stream at one of them, with the hello
`{"num_envs": n, "first_seed": s}`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np

from seedx import envs, types, wire

ACT = "act"


@dataclasses.dataclass(frozen=True)
class Actors:
  """The actors of a run.

  Attributes:
    num_actors: number of actor processes.
    envs_per_actor: number of environments of each actor.
  """

  num_actors: int = types.setting(2, changes="resume", low=1, high=2**20)
  envs_per_actor: int = types.setting(128, low=1, high=2**20)

  def __post_init__(self) -> None:
    types.check_settings(self)

  @property
  def num_envs(self) -> int:
    """Number of environments of all actors."""
    return self.num_actors * self.envs_per_actor


def first_seed(welcome: Mapping[str, Any]) -> int:
  """Returns the seed of an actor's first environment, from its welcome.

  Raises:
    wire.WireError: FAILED_PRECONDITION, the welcome has no valid seed.
  """
  seed = welcome.get("first_seed")
  if type(seed) is not int or not 0 <= seed < 2**31:
    raise wire.bad_welcome("first_seed from 0 to 2^31 - 1", seed)
  return seed


def addresses(welcome: Mapping[str, Any]) -> list[str]:
  """Returns the addresses in a welcome; [] if the server itself acts.

  Raises:
    wire.WireError: FAILED_PRECONDITION, these are no addresses.
  """
  values = welcome.get("addresses", [])
  if not isinstance(values, list) or not all(
    isinstance(x, str) and ":" in x for x in values
  ):
    raise wire.bad_welcome("addresses", values)
  return values


def info_of(spec: types.EnvironmentSpec) -> types.Tree:
  """Returns an example of a row's `types.Rows.info`; () for no column."""
  return np.zeros(len(spec.log_info), np.float32) if spec.log_info else ()


def env_at(config: envs.Config, welcome: Mapping[str, Any]) -> envs.Config:
  """Returns the config of an actor's environments, see `envs.at`.

  Raises:
    wire.WireError: FAILED_PRECONDITION, the welcome has no valid env steps.
  """
  env_steps = welcome.get("env_steps", 0)
  if type(env_steps) is not int or not 0 <= env_steps < 2**63:
    raise wire.bad_welcome("env_steps from 0 to 2^63 - 1", env_steps)
  return envs.at(config, env_steps)


def act_layouts(
  spec: types.EnvironmentSpec, max_rows: int
) -> tuple[wire.Layout, wire.Layout]:
  """Returns the layouts of a thin actor's rows and of their actions."""
  rows = types.Rows(
    index=np.zeros((), np.int32),
    timestep=dm_env.TimeStep(
      step_type=np.zeros((), np.uint8),
      reward=np.zeros((), np.float32),
      discount=np.zeros((), np.float32),
      observation=spec.observation,
    ),
    episode_return=np.zeros((), np.float32),
    info=info_of(spec),
  )
  return wire.Layout.of(rows, max_rows), wire.Layout.of(spec.action, max_rows)
