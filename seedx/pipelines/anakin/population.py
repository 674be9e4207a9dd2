"""A population on the device: exploit and explore inside the program."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedx import losses, metrics, search_spaces, sharding, types
from seedx.agents import base
from seedx.learning import populations
from seedx.pipelines.anakin.program import Output, State

# A number that is folded into the key, above all times.
_STREAM = 2**31


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(populations.Config):
  """Options of a population on the device.

  Attributes:
    vary: hyper-parameters that differ between members, as NAME=LOW..HIGH or
      NAME=log:LOW..HIGH, with commas between them.
  """

  vary: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Member(NamedTuple):
  """The state of a population's members, beside their agents.

  Attributes:
    scores: `[members, 2]` float32, sum and number of returns since a member was
      last ready.
    parent: `[members]` int32, the member that had its parameters when the last
      line of metrics was written.
  """

  scores: types.Array
  parent: types.Array


class Population:
  """The members of a population: agents whose hyper-parameters differ.

  All members are ready at the same time, since the program has one clock, which
  counts resets, too. Scores are mean returns since they were last ready.
  """

  def __init__(
    self, config: Config, agent: base.Config, num_envs: int, seed: int
  ) -> None:
    """Reads `vary`; raises types.ConfigError if it does not fit the agent.

    A member has `num_envs` environments; `seed` is that of the run.
    """
    self._config, self._seed = config, seed
    self._spaces = populations.spaces(config.vary, agent, "--vary")
    self._period = max(1, config.ready_steps // num_envs)

  def begin(self, state: State) -> State:
    """Draws the hyper-parameters of all members, whose states are stacked."""
    values = dict(state.agent.hyperparameters)
    drawn = search_spaces.drawn(self._spaces, self._config.members, self._seed)
    for name in self._spaces:
      values[name] = jnp.array([float(x[name]) for x in drawn], jnp.float32)
    agent = dataclasses.replace(state.agent, hyperparameters=values)
    scores = jnp.zeros((self._config.members, 2))
    return state._replace(agent=agent, member=Member(scores, self._own))

  def evolve(
    self, state: State, output: Output, before: jax.Array, after: jax.Array
  ) -> State:
    """Adds returns to the scores; ready members exploit and explore.

    Args:
      state: stacked states of all members, on one core.
      output: results of all members on this core.
      before: `[]` int32, `Clock.time` before these results.
      after: `[]` int32, `Clock.time` after them.
    """
    returns = output.episode_return.reshape(self._config.members, -1)
    ended = ~jnp.isnan(returns)
    sums = jnp.stack([jnp.nansum(returns, 1), jnp.sum(ended, 1)], axis=1)
    scores, parent = state.member
    scores += losses.sum_over_cores(sums, sharding.CORES)

    def evolved(agent: base.AgentState) -> tuple[base.AgentState, jax.Array]:
      source, values = populations.evolve(
        self._config,
        self._key(after),
        scores[:, 0] / scores[:, 1],
        agent.hyperparameters,
        self._spaces,
      )
      other = dataclasses.replace(
        jax.tree.map(lambda x: x[source], agent),
        resets=agent.resets,
        hyperparameters=values,
      )
      return populations.inherited(agent, other), source

    due = before // self._period != after // self._period
    agent, source = jax.lax.cond(
      due, evolved, lambda x: (x, self._own), state.agent
    )
    member = Member(jnp.where(due, 0.0, scores), parent[source])
    return state._replace(agent=agent, member=member)

  def measure(self, state: State) -> tuple[dict[str, metrics.Value], State]:
    """Returns the hyper-parameters of each member, and its parent.

    In the state that is also returned, each member is its own parent.
    """
    line: dict[str, metrics.Value] = {}
    values = {k: state.agent.hyperparameters[k] for k in self._spaces}
    for name, column in {"parent": state.member.parent, **values}.items():
      for k, value in enumerate(np.asarray(column).tolist()):
        line[f"{metrics.OF_MEMBER}{k}_{name}"] = value
    member = state.member._replace(parent=self._own)
    return line, state._replace(member=member)

  @property
  def _own(self) -> jax.Array:
    return jnp.arange(self._config.members)

  def _key(self, time: jax.Array) -> jax.Array:
    # Not folded into the seed's own key, from which other keys are split.
    own = jax.random.fold_in(jax.random.key(self._seed), _STREAM)
    return jax.random.fold_in(own, jnp.uint32(time))
