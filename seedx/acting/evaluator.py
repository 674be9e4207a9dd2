"""The evaluator: plays whole episodes with fixed parameters."""

import dataclasses
import itertools
import threading
from collections.abc import Iterator
from typing import NamedTuple

import dm_env
import jax
import numpy as np

from seedx import envs, types
from seedx.agents import acting_step, base


@dataclasses.dataclass(frozen=True)
class Config:
  """What to evaluate.

  Attributes:
    env: the environment.
    num_episodes: episodes to play.
    greedy: take the best action; else sample as in training, without each
      environment's own exploration.
    num_envs: environments played in parallel, at most.
    max_episode_steps: env steps after which an episode is cut; its return so
      far counts.
  """

  env: envs.Config
  num_episodes: int
  greedy: bool = True
  num_envs: int = 16
  max_episode_steps: int = 100_000

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    types.check_ranges(
      self,
      num_episodes=(1, 2**20),
      num_envs=(1, 2**16),
      max_episode_steps=(1, 2**63 - 1),
    )


class Played(NamedTuple):
  """Results of played episodes.

  Attributes:
    returns: `[num_episodes]`, raw returns of whole games; fewer if stopped.
    cut: how many episodes were cut at `max_episode_steps`.
  """

  returns: np.ndarray
  cut: int


class Evaluator:
  """Plays with an agent; it compiles once, for every `play`."""

  def __init__(self, agent: base.Agent, config: Config) -> None:
    """Makes the evaluator; `play` makes the environments.

    Raises:
      types.ConfigError: the agent has no greedy step.
    """
    if config.greedy:
      if agent.greedy is None:
        raise types.ConfigError(
          "expected an agent with a `greedy` step, found one without; let it"
          " sample its actions (--no-greedy)"
        )
      agent = dataclasses.replace(agent, step=agent.greedy)
    self._agent = agent
    self._config = config

    def act(
      acting: types.Tree,
      rng_key: jax.Array,
      step: jax.Array,
      timestep: dm_env.TimeStep,
      state: acting_step.ActingState,
    ) -> tuple[jax.Array, acting_step.ActingState]:
      taken = acting_step.take(
        agent,
        acting,
        jax.random.fold_in(rng_key, step),
        timestep,
        state,
        exploration=np.zeros(timestep.reward.shape, np.float32),
      )
      return taken.output.action, taken.acting_state

    self._act = jax.jit(act)

  def play(
    self, acting: types.Tree, seed: int, stop: threading.Event | None = None
  ) -> Played:
    """Plays episodes, the same number in each environment.

    Counting the episodes that end first would favour short ones.

    Args:
      acting: the acting parameters.
      seed: environment k has the seed `seed + k`. Seeds of
        `slots.evaluation_seed` are not used in training.
      stop: ends it early.

    Raises:
      types.ConfigError: the environment cannot be made.
    """
    config = self._config
    returns: list[float] = []
    cut = 0
    while len(returns) < config.num_episodes and not (stop and stop.is_set()):
      missing = config.num_episodes - len(returns)
      played = self._round(acting, seed, missing, stop)
      returns += played.returns.tolist()
      cut += played.cut
      seed += min(config.num_envs, missing)
    return Played(np.array(returns), cut)

  def _round(
    self,
    acting: types.Tree,
    seed: int,
    num_episodes: int,
    stop: threading.Event | None,
  ) -> Played:
    """Plays in new environments; fewer episodes than asked if some are cut."""
    num_envs = min(self._config.num_envs, num_episodes)
    environment = envs.make(self._config.env, num_envs, seed=seed)
    counts = _Counts(num_episodes, num_envs, self._config.max_episode_steps)
    try:
      for rows in self.steps(acting, seed, environment):
        counts.add(rows)
        if not counts.missing() or (stop and stop.is_set()):
          break
    finally:
      environment.close()
    return Played(np.array(counts.returns), counts.cut)

  def steps(
    self, acting: types.Tree, seed: int, environment: envs.Environment
  ) -> Iterator[types.Rows]:
    """Plays without end.

    Args:
      acting: the acting parameters.
      seed: of the agent's random numbers.
      environment: not yet reset; the caller closes it.

    Yields:
      Each step's rows, before the agent acts on them.
    """
    state = acting_step.initial_state(
      self._agent, environment.spec, environment.num_envs
    )
    rng_key = jax.random.key(seed)
    environment.reset()
    for step in itertools.count():
      rows = environment.recv()
      yield rows
      action, state = self._act(
        acting, rng_key, np.uint32(step), rows.timestep, state
      )
      environment.send(rows.index, np.asarray(action))


class _Counts:
  """Counts episodes, the same number of each environment.

  A cut episode is an environment's last: its remaining steps are not a whole
  episode.
  """

  def __init__(
    self, num_episodes: int, num_envs: int, max_episode_steps: int
  ) -> None:
    self.returns: list[float] = []
    self.cut = 0
    self._left = (num_episodes - 1 - np.arange(num_envs)) // num_envs + 1
    self._most = max_episode_steps
    self._steps = np.zeros(num_envs, np.int64)
    self._return = np.zeros(num_envs, np.float64)

  def missing(self) -> bool:
    """Whether episodes are left to play."""
    return bool(self._left.any())

  def add(self, rows: types.Rows) -> None:
    """Adds one step of all environments."""
    self._steps += rows.timestep.step_type != dm_env.StepType.FIRST
    self._return += rows.timestep.reward
    ended = ~np.isnan(rows.episode_return)
    counts = self._left > 0
    over = counts & ~ended & (self._steps >= self._most)
    counts &= ended
    self.returns += rows.episode_return[counts].tolist()
    self.returns += self._return[over].tolist()
    self.cut += int(np.count_nonzero(over))
    self._left -= counts
    self._left[over] = 0
    self._steps[ended] = 0
    self._return[ended] = 0.0
