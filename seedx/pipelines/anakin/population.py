"""A population on the device: exploit and explore inside the program."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seedx import losses, metrics, sharding, types
from seedx.agents import base
from seedx.learning import populations
from seedx.pipelines.anakin.program import Output, State

# Numbers that are folded into keys, above all times.
_STREAM, _START = 2**31, 2**32 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(populations.Config):
  """Options of a population on the device.

  Attributes:
    vary: hyper-parameters that differ between members, as NAME=LOW..HIGH or
      NAME=log:LOW..HIGH, with commas between them.
  """

  vary: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Population:
  """The members of a population: agents whose hyper-parameters differ.

  All members are ready at the same time, since the program has one clock, which
  counts resets, too. Scores are mean returns since they were last ready.
  """

  def __init__(
    self,
    config: Config,
    agent: base.Config,
    num_envs: int,
    seed: int,
  ) -> None:
    """Reads `vary`; raises types.ConfigError if it does not fit the agent.

    A member has `num_envs` environments; `seed` is that of the run.
    """
    self._config, self._seed = config, seed
    self._spaces = populations.spaces(config.vary, agent, "--vary")
    self._period = max(1, config.ready_steps // num_envs)
    self._parents = np.arange(config.members)
    self._values: dict[str, np.ndarray] = {}

  def begin(self, agent: base.AgentState) -> base.AgentState:
    """Draws the hyper-parameters of all members, whose states are stacked."""
    values = dict(agent.hyperparameters)
    for key, (name, space) in zip(
      jax.random.split(self._key(_START), len(self._spaces)),
      self._spaces.items(),
      strict=True,
    ):
      values[name] = populations.draw(key, values[name].shape, space)
    return dataclasses.replace(agent, hyperparameters=values)

  def evolve(
    self, state: State, output: Output, before: jax.Array, after: jax.Array
  ) -> tuple[State, jax.Array]:
    """Adds returns to the scores; ready members exploit and explore.

    Args:
      state: stacked states of all members, on one core.
      output: results of all members on this core.
      before: `[]` int32, `Clock.time` before these results.
      after: `[]` int32, `Clock.time` after them.

    Returns:
      The states; and `[members]` int32, the member that each has copied.
    """
    returns = output.episode_return.reshape(self._config.members, -1)
    ended = ~jnp.isnan(returns)
    sums = jnp.stack([jnp.nansum(returns, 1), jnp.sum(ended, 1)], axis=1)
    scores = state.scores + losses.sum_over_cores(sums, sharding.CORES)
    own = jnp.arange(self._config.members)

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
    agent, source = jax.lax.cond(due, evolved, lambda x: (x, own), state.agent)
    scores = jnp.where(due, 0.0, scores)
    return state._replace(agent=agent, scores=scores), source

  def note(self, source: types.Array, agent: base.AgentState) -> None:
    """Notes copies and hyper-parameters for the next line of metrics."""
    self._parents = self._parents[np.asarray(source)]
    values = agent.hyperparameters
    self._values = {name: np.asarray(values[name]) for name in self._spaces}

  def measure(self) -> dict[str, metrics.Value]:
    """Returns the hyper-parameters of each member, and its parent.

    The parent is the member that had its parameters at the line before.
    """
    line: dict[str, metrics.Value] = {}
    for k, parent in enumerate(self._parents):
      line[f"{metrics.OF_MEMBER}{k}_parent"] = int(parent)
      for name, values in self._values.items():
        line[f"{metrics.OF_MEMBER}{k}_{name}"] = float(values[k])
    self._parents = np.arange(len(self._parents))
    return line

  def _key(self, time: jax.Array | int) -> jax.Array:
    # Not folded into the seed's own key, from which other keys are split.
    own = jax.random.fold_in(jax.random.key(self._seed), _STREAM)
    return jax.random.fold_in(own, jnp.uint32(time))
