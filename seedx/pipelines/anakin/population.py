"""A population on the device: exploit and explore inside the program."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedx import losses, metrics, sharding
from seedx.agents import base
from seedx.learning import populations
from seedx.pipelines.anakin.program import Output, State

# Numbers that are folded into keys, above all times.
_STREAM, _START = 2**31, 2**32 - 1


class Scores(NamedTuple):
  """The episodes that have ended since the members were last ready.

  Attributes:
    total: `[members]` float32, sum of their returns.
    episodes: `[members]` float32, number of them.
  """

  total: jax.Array
  episodes: jax.Array


class Population:
  """The members of a population: agents whose hyper-parameters differ.

  All members are ready at the same time, since they share the program's clock.
  """

  def __init__(
    self, config: populations.Config, agent: base.Config, num_envs: int
  ) -> None:
    """Reads the search; raises types.ConfigError if the agent lacks one.

    Args:
      config: options of the population.
      agent: config of the agent.
      num_envs: number of environments of each member.
    """
    self._config = config
    self._spaces = config.spaces(agent)
    self._period = max(1, config.ready_steps // num_envs)
    self._parents = np.arange(config.members)
    self._values: dict[str, np.ndarray] = {}

  def begin(self, agent: base.AgentState, seed: int) -> base.AgentState:
    """Draws the hyper-parameters of all members, whose states are stacked."""
    values = dict(agent.hyperparameters)
    keys = jax.random.split(_key(seed, _START), len(self._spaces))
    for key, (name, space) in zip(keys, self._spaces.items(), strict=True):
      values[name] = populations.draw(key, values[name].shape, space)
    return dataclasses.replace(agent, hyperparameters=values)

  def scores(self) -> Scores:
    """Returns the scores before the first episode has ended."""
    return Scores(*np.zeros((2, self._config.members), np.float32))

  def is_due(self, before: Any, after: Any) -> Any:
    """Returns whether members are ready; times are steps of an environment."""
    return before // self._period != after // self._period

  def evolve(
    self,
    state: State,
    output: Output,
    seed: int,
    before: jax.Array,
    after: jax.Array,
  ) -> tuple[State, jax.Array]:
    """Counts episodes; if members are ready, lets them exploit and explore.

    Args:
      state: stacked states of all members, on one core.
      output: results since the time `before`, with an axis of members.
      seed: seed of the run.
      before: `[]` int32, see `is_due`.
      after: `[]` int32.

    Returns:
      The states; and `[members]` int32, the member that each has copied.
    """
    ended = ~jnp.isnan(output.episode_return)
    sums = Scores(
      jnp.sum(output.episode_return, axis=(1, 2, 3), where=ended),
      jnp.sum(ended, axis=(1, 2, 3)).astype(jnp.float32),
    )
    sums = losses.sum_over_cores(sums, sharding.CORES)
    state = state._replace(scores=jax.tree.map(jnp.add, state.scores, sums))
    own = jnp.arange(self._config.members)

    def evolved(state: State) -> tuple[State, jax.Array]:
      scores: Scores = state.scores
      copy_key, explore_key = jax.random.split(_key(seed, after))
      source = self._config.sources(copy_key, scores.total / scores.episodes)
      other = jax.tree.map(lambda x: x[source], state.agent)
      agent = dataclasses.replace(
        populations.inherited(state.agent, other),
        resets=state.agent.resets,
        hyperparameters=self._config.explored(
          explore_key, other.hyperparameters, self._spaces, source != own
        ),
      )
      fresh = jax.tree.map(jnp.zeros_like, scores)
      return state._replace(agent=agent, scores=fresh), source

    due = self.is_due(before, after)
    return jax.lax.cond(due, evolved, lambda state: (state, own), state)

  def note(self, source: np.ndarray, agent: base.AgentState) -> None:
    """Notes copies and hyper-parameters for the next line of metrics."""
    self._parents = self._parents[source]
    self._values = {
      name: np.asarray(agent.hyperparameters[name]) for name in self._spaces
    }

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


def _key(seed: int, time: jax.Array | int) -> jax.Array:
  # Not folded into the seed's own key, which other keys are split from.
  own = jax.random.fold_in(jax.random.key(seed), _STREAM)
  return jax.random.fold_in(own, jnp.uint32(time))
