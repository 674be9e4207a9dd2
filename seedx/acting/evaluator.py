"""The evaluator: plays whole episodes with parameters that stay the same."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import dm_env
import jax
import numpy as np

from seedx import envs, types
from seedx.agents import acting_step, base


@dataclasses.dataclass(frozen=True)
class Config:
  """What to play.

  Attributes:
    env: the environment.
    num_episodes: number of episodes of a `play`.
    greedy: take the best action; else sample as in training, without each
      environment's own exploration.
    num_envs: number of environments that step in parallel, at most; no more
      than there are episodes.
    max_episode_steps: env steps after which an episode is cut; its return so
      far counts.
    per_row: whether each environment acts with parameters of its own, so that
      every leaf of the acting parameters is `[num_envs, ...]`.
  """

  env: envs.Config
  num_episodes: int
  greedy: bool = True
  num_envs: int = 16
  max_episode_steps: int = 100_000
  per_row: bool = False

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    types.check_ranges(
      self,
      num_episodes=(1, 2**20),
      num_envs=(1, 2**16),
      max_episode_steps=(1, 2**63 - 1),
    )


class Played(NamedTuple):
  """Results of one `play`.

  Attributes:
    returns: `[num_episodes]` float64, raw returns of whole games in the order
      in which they ended; fewer if stopped.
    row: `[num_episodes]`, the environment that each was played in, from 0;
      `np.bincount(row, returns)` is the sum of each environment's returns.
    env_steps: env steps of all environments, whether they counted or not.
    cut: number of episodes that were cut at `max_episode_steps`.
  """

  returns: np.ndarray
  row: np.ndarray
  env_steps: int
  cut: int


class Evaluator:
  """Plays with an agent; it compiles once, for every `play`."""

  def __init__(self, agent: base.Agent, config: Config) -> None:
    """Makes the evaluator, and no environments.

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
    if config.per_row:
      agent = dataclasses.replace(agent, step=_per_row(agent.step))
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
    """Plays in new environments, and closes them; see `Player`."""
    with contextlib.closing(self.player(seed)) as player:
      return player.play(acting, stop)

  def player(self, seed: int) -> "Player":
    """A player, whose environments stay from one `play` to the next.

    Args:
      seed: environment k has the seed `seed + k`. Seeds of
        `seeds.evaluation_seed` are not used in training.
    """
    return Player(self._config, self._begin, seed)

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
    playing = self._begin(seed, environment)
    while True:
      yield playing.step(acting)

  def _begin(self, seed: int, environment: envs.Environment) -> "_Playing":
    state = acting_step.initial_state(
      self._agent, environment.spec, environment.num_envs
    )
    return _Playing(environment, self._act, state, jax.random.key(seed))


class Player:
  """Plays in environments that it keeps from one `play` to the next."""

  def __init__(
    self,
    config: Config,
    begin: Callable[[int, envs.Environment], "_Playing"],
    seed: int,
  ) -> None:
    """Makes no environments before `play`; see `Evaluator.player`."""
    self._config = config
    self._begin = begin
    self._seed = seed
    self._playing: _Playing | None = None

  def play(
    self, acting: types.Tree, stop: threading.Event | None = None
  ) -> Played:
    """Plays episodes, the same number in each environment.

    Counting the episodes that end first would favour short ones. A later call
    continues in the same environments: the episodes in progress are played to
    their end first, and do not count. Where one of them is too long, new
    environments with the next seeds replace all. Environments that are cheap to
    make may as well be made anew, by `Evaluator.play`, which saves these steps.

    Args:
      acting: the acting parameters; see `Config.per_row`.
      stop: ends it early.

    Raises:
      types.ConfigError: the environment cannot be made.
    """
    config = self._config
    counts = _Counts(config.max_episode_steps)
    left = _shares(config.num_episodes, config.num_envs)
    while left.any() and not (stop and stop.is_set()):
      playing = self._continued(len(left))
      counts.begin(left, playing.steps)
      while counts.missing() and not (stop and stop.is_set()):
        counts.add(playing.step(acting), playing.steps)
      left = counts.left
      if left.any():  # What a cut episode leaves is played in new environments.
        self.close()
      if not config.per_row:
        left = _shares(left.sum(), config.num_envs)
    return counts.played()

  def close(self) -> None:
    """Closes the environments; a later `play` makes new ones."""
    if self._playing is not None:
      self._playing.close()
      self._playing = None

  def _continued(self, num_envs: int) -> "_Playing":
    """The environments of the `play` before, or new ones."""
    playing = self._playing
    if playing is not None and (
      len(playing.steps) != num_envs
      or playing.steps.max() >= self._config.max_episode_steps
    ):
      self.close()
    if self._playing is None:
      environment = envs.make(self._config.env, num_envs, seed=self._seed)
      self._playing = self._begin(self._seed, environment)
      self._seed += num_envs
    return self._playing


class _Playing:
  """Environments in lock step, and the agent's state in each.

  Attributes:
    steps: `[N]`, env steps of the game in progress; 0 where none is.
  """

  def __init__(
    self,
    environment: envs.Environment,
    act: Callable[..., tuple[jax.Array, acting_step.ActingState]],
    state: acting_step.ActingState,
    rng_key: jax.Array,
  ) -> None:
    self.steps = np.zeros(environment.num_envs, np.int64)
    self._environment = environment
    self._act = act
    self._state = state
    self._rng_key = rng_key
    self._acted = 0
    self._rows: types.Rows | None = None
    environment.reset()

  def step(self, acting: types.Tree) -> types.Rows:
    """Acts on the rows of the step before; returns the next ones."""
    if self._rows is not None:
      action, self._state = self._act(
        acting,
        self._rng_key,
        np.uint32(self._acted),
        self._rows.timestep,
        self._state,
      )
      self._environment.send(self._rows.index, np.asarray(action))
      self._acted += 1
    rows = self._rows = self._environment.recv()
    self.steps += _stepped(rows)
    self.steps[~np.isnan(rows.episode_return)] = 0
    return rows

  def close(self) -> None:
    """Closes the environments."""
    self._environment.close()


class _Counts:
  """Counts the episodes of a `play`, in one set of environments or several.

  A cut episode is an environment's last: its remaining steps are not a whole
  episode.

  Attributes:
    left: `[N]`, number of episodes that each environment has still to play.
  """

  def __init__(self, max_episode_steps: int) -> None:
    self._most = max_episode_steps
    self._returns: list[float] = []
    self._row: list[int] = []
    self._env_steps = self._cut = 0

  def begin(self, left: np.ndarray, steps: np.ndarray) -> None:
    """Begins with other environments, or again with the same ones.

    Args:
      left: `[N]`, number of episodes to play in each.
      steps: `[N]`, see `_Playing`. Games in progress do not count.
    """
    self.left = left.copy()
    self._counting = steps == 0
    self._over = np.zeros(len(left), bool)
    self._return = np.zeros(len(left), np.float64)

  def missing(self) -> bool:
    """Whether an environment has episodes left and can play them."""
    return bool(self.left[~self._over].any())

  def add(self, rows: types.Rows, steps: np.ndarray) -> None:
    """Adds one step of all environments, and `_Playing.steps` after it."""
    self._env_steps += int(np.count_nonzero(_stepped(rows)))
    self._return += rows.timestep.reward
    ended = ~np.isnan(rows.episode_return)
    counts = self._counting & ~self._over & (self.left > 0)
    cut = counts & (steps >= self._most)
    self._add(counts & ended, rows.episode_return)
    self._add(cut, self._return)
    self._cut += int(np.count_nonzero(cut))
    self._over |= steps >= self._most
    self._counting |= ended
    self._return[ended] = 0.0

  def played(self) -> Played:
    """All results so far."""
    return Played(
      np.array(self._returns, np.float64),
      np.array(self._row, np.int64),
      self._env_steps,
      self._cut,
    )

  def _add(self, counts: np.ndarray, returns: np.ndarray) -> None:
    self._returns += returns[counts].tolist()
    self._row += np.flatnonzero(counts).tolist()
    self.left -= counts


def _shares(num_episodes: int, most_envs: int) -> np.ndarray:
  """`[N]`, number of episodes for each of at most `most_envs` environments."""
  return np.bincount(np.arange(num_episodes) % most_envs)


def _stepped(rows: types.Rows) -> np.ndarray:
  """`[N]` bool, whether a row is an env step and not a reset."""
  return rows.timestep.step_type != dm_env.StepType.FIRST


def _per_row(step: base.Step) -> base.Step:
  """A step for acting parameters `[B, ...]`, one set for each row."""

  def one(
    acting: types.Tree,
    rng_key: jax.Array,
    inputs: types.Inputs,
    core_state: types.Tree,
  ) -> tuple[types.AgentOutput, types.Tree]:
    batch = jax.tree.map(lambda x: x[None], (inputs, core_state))
    return jax.tree.map(lambda x: x[0], step(acting, rng_key, *batch))

  def each(
    acting: types.Tree,
    rng_key: jax.Array,
    inputs: types.Inputs,
    core_state: types.Tree,
  ) -> tuple[types.AgentOutput, types.Tree]:
    keys = jax.random.split(rng_key, len(inputs.timestep.reward))
    return jax.vmap(one)(acting, keys, inputs, core_state)

  return each
