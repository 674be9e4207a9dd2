"""The evaluator: plays whole episodes with fixed parameters."""

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Iterator
from typing import NamedTuple

import dm_env
import jax
import numpy as np

from seedx import envs, types
from seedx.acting import playing
from seedx.agents import acting_step, base


@dataclasses.dataclass(frozen=True)
class Config(playing.Config):
  """Settings of an evaluator.

  Attributes:
    env: the environment.
    num_episodes: number of episodes of each `play`.
    per_row: whether each environment has its own acting parameters, in leaves
      of `[num_envs, ...]`.
  """

  env: envs.Config
  num_episodes: int
  per_row: bool = False

  def __post_init__(self) -> None:
    super().__post_init__()
    types.check_range("num_episodes", self.num_episodes, 1, 2**20)


class Results(NamedTuple):
  """Results of one `play`.

  Attributes:
    returns: `[num_episodes]` float64, raw returns of whole games in the order
      in which they ended; fewer if stopped.
    row: `[num_episodes]`, environment of each episode, from 0;
      `np.bincount(row, returns)` is the sum of each environment's returns.
    env_steps: number of env steps, including those of unfinished episodes.
    cut: number of episodes that were cut at `max_episode_steps`.
    info: `[num_episodes, E]` float64, entries of the last `info` of each
      episode, see `types.Rows`; NaN for no value, as in a cut episode.
  """

  returns: np.ndarray
  row: np.ndarray
  env_steps: int
  cut: int
  info: np.ndarray


class Evaluator:
  """Evaluator of an agent, with one compiled program for every `play`."""

  def __init__(self, agent: base.Agent, config: Config) -> None:
    """Makes the program; each `play` makes its environments.

    Raises:
      types.ConfigError: the agent has no greedy step.
    """
    if config.greedy:
      if agent.greedy is None:
        raise types.ConfigError(
          "expected an agent with a `greedy` step, found one without; sample"
          " its actions instead (--no-greedy)"
        )
      agent = dataclasses.replace(agent, step=agent.greedy)
    if config.per_row:
      agent = acting_step.per_row(agent)
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
    self,
    acting: types.Tree,
    seed: int,
    stop: threading.Event | None = None,
    env_steps: int | None = None,
  ) -> Results:
    """Plays episodes, whose number in each environment is fixed.

    Counting the episodes that end first would favour short ones. Each `play`
    makes new environments, because unfinished episodes of the
    previous `play` could not count.

    Args:
      acting: acting parameters; see `Config.per_row`.
      seed: seed of environment 0, and of the agent's random numbers;
        environment k has `seed + k`. Training does not use the seeds of
        `seeding.evaluation_seed`.
      stop: event that ends the play early.
      env_steps: env steps of the run, for `envs.at`; None for the environment
        as it was configured.

    Raises:
      types.ConfigError: the environment cannot be made.
    """
    config = self._config
    env = config.env if env_steps is None else envs.at(config.env, env_steps)
    counts = _Counts(config.max_episode_steps, len(config.env.log_info))
    left = playing.divided(config.num_episodes, config.num_envs)
    while left.any() and not (stop and stop.is_set()):
      counts.begin(left)
      environment = envs.make(env, len(left), seed=seed)
      with contextlib.closing(environment):
        for rows in self.steps(acting, seed, environment):
          counts.add(rows)
          if not counts.missing() or (stop and stop.is_set()):
            break
      seed += len(left)
      left = counts.left  # Episodes that remain after cuts.
      if not config.per_row:
        left = playing.divided(left.sum(), config.num_envs)
    return counts.played()

  def steps(
    self, acting: types.Tree, seed: int, environment: envs.Environment
  ) -> Iterator[types.Rows]:
    """Resets the environment, and plays without an end.

    Args:
      acting: acting parameters.
      seed: seed of the agent's random numbers.
      environment: environment to reset and step; the caller closes it.

    Yields:
      Rows of each step, before the agent acts on them.
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
  """Counts of a `play`, over one or several sets of environments.

  After a cut, the environment's episodes do not count, because the rest of the
  cut episode is not a whole one.

  Attributes:
    left: `[N]`, number of episodes that each environment still has to play.
  """

  def __init__(self, max_episode_steps: int, num_info: int) -> None:
    self._max_steps = max_episode_steps
    self._num_info = num_info
    self._info: list[np.ndarray] = []
    self._returns: list[float] = []
    self._row: list[int] = []
    self._env_steps = self._cut = 0

  def begin(self, left: np.ndarray) -> None:
    """Begins to play `left[k]` episodes in each new environment k."""
    self.left = left.copy()
    self._over = np.zeros(len(left), bool)
    self._steps = np.zeros(len(left), np.int64)
    self._return = np.zeros(len(left), np.float64)

  def missing(self) -> bool:
    """Returns whether an environment has episodes left and can play them."""
    return bool(self.left[~self._over].any())

  def add(self, rows: types.Rows) -> None:
    """Counts the rows of one time step."""
    stepped = rows.timestep.step_type != dm_env.StepType.FIRST
    self._env_steps += int(np.count_nonzero(stepped))
    self._steps += stepped
    self._return += rows.timestep.reward
    ended = ~np.isnan(rows.episode_return)
    counts = ~self._over & (self.left > 0)
    cut = counts & ~ended & (self._steps >= self._max_steps)
    self._add(counts & ended, rows.episode_return, rows.info)
    self._add(cut, self._return, rows.info)
    self._cut += int(np.count_nonzero(cut))
    self._over |= cut
    self._steps[ended] = 0
    self._return[ended] = 0.0

  def played(self) -> Results:
    """Returns the episodes counted so far."""
    return Results(
      np.array(self._returns, np.float64),
      np.array(self._row, np.int64),
      self._env_steps,
      self._cut,
      np.array(self._info, np.float64).reshape(
        len(self._returns), self._num_info
      ),
    )

  def _add(
    self, counts: np.ndarray, returns: np.ndarray, info: types.Tree
  ) -> None:
    self._returns += returns[counts].tolist()
    if self._num_info:
      self._info += [*info[counts]]
    self._row += np.flatnonzero(counts).tolist()
    self.left -= counts
