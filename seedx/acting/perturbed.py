"""Members of a population that play whole episodes, and their workers.

A worker opens the stream `RESULTS`, whose requests have the results of the
pairs in the reply before; the first request has none. When a new iteration has
begun, the worker fetches the fitness of the last one on the stream `FITNESS`
and makes the update itself. It fetches the agent's state when it joins, or has
missed an iteration. Both are streams of `parameters`.
"""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import dm_env
import jax
import numpy as np

from seedx import envs, trees, types, wire
from seedx.acting import evaluator, parameters, protocol
from seedx.agents import base, evolution

RESULTS, FITNESS = "results", "fitness"
# The number of a pair in messages without one.
NO_PAIR = -1


@dataclasses.dataclass(frozen=True)
class Population:
  """Settings of a population.

  Attributes:
    pairs: number of pairs in an iteration.
    max_episode_steps: number of env steps after which an episode is cut; its
      return so far counts.
  """

  pairs: int = types.setting(16, low=1, high=2**20)
  max_episode_steps: int = types.setting(100_000, low=1, high=2**31 - 1)

  def __post_init__(self) -> None:
    types.check_settings(self)


@dataclasses.dataclass(frozen=True)
class Config(Population):
  """Settings of playing a population.

  Attributes:
    num_workers: number of worker processes; 0 for playing in the learner's.
    pairs_per_worker: number of pairs that a worker plays at the same time,
      between two messages; each member has an environment.
    lease_seconds: seconds after which a worker's pairs are given to another
      one, too.
    rebuild: whether workers make updates themselves; if not, they fetch the
      parameters of each iteration.
  """

  num_workers: int = types.setting(2, changes="resume", low=0, high=2**20)
  pairs_per_worker: int = types.setting(8, low=1, high=2**20)
  lease_seconds: float = types.setting(
    60.0, changes="resume", low=0.0, high=types.MAX_SECONDS
  )
  rebuild: bool = types.setting(True, changes="resume")


class Lease(NamedTuple):
  """Pairs to play next: `version` and `pair` as in `evolution.Fitness`."""

  version: types.Array
  pair: types.Array


def no_results(totals: types.Tree, pairs: int = 1) -> evolution.Fitness:
  """Returns results without a number of pairs; `totals` has the shapes."""
  zeros = np.zeros((pairs, 2), np.float32)
  totals = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), totals)
  none = np.full(pairs, NO_PAIR, np.int32)
  return evolution.Fitness(
    np.int32(-1), none, zeros, zeros.astype(np.int32), totals
  )


def layouts(
  totals: types.Tree, config: Config
) -> tuple[wire.Layout, wire.Layout]:
  """Returns the layouts of results and of leases."""
  none = no_results(totals)
  results = wire.once(none)._replace(
    pair=none.pair[0], returns=none.returns[0], lengths=none.lengths[0]
  )
  lease, size = Lease(results.version, results.pair), config.pairs_per_worker
  return wire.Layout.of(results, size), wire.Layout.of(lease, size)


class Player:
  """Environments in which members play an episode each."""

  def __init__(
    self,
    agent: base.Agent,
    env: envs.Config,
    config: Config,
    take_seeds: Callable[[int], int],
    stop: threading.Event,
  ) -> None:
    """Makes the programs; the first call of `play` makes the environments.

    Args:
      agent: agent of a config of `evolution`, made without a mesh axis.
      env: the environment.
      config: settings.
      take_seeds: returns the first of a number of seeds.
      stop: event that ends the episodes.
    """
    self._env, self._seeds, self._stop = env, take_seeds, stop
    self._environment: envs.Environment | None = None
    self._pairs, self._cap = config.pairs_per_worker, config.max_episode_steps
    self._members = jax.jit(evolution.members)
    self._player = evaluator.Evaluator(
      agent, evaluator.Config(env=env, num_episodes=1, per_row=True)
    )
    self._count = jax.jit(
      functools.partial(evolution.count_observations, envs.spec(env))
    )

  def play(
    self, state: base.AgentState, version: int, pair: np.ndarray
  ) -> Iterator[evolution.Fitness]:
    """Plays an episode of both members of pairs, until stopped.

    Args:
      state: the centre's state.
      version: number of updates behind it.
      pair: `[P]` int32, numbers of the pairs.

    Yields:
      Results of `pairs_per_worker` pairs at a time.

    Raises:
      types.ConfigError: the environment cannot be made.
    """
    if self._environment is None:
      seed = self._seeds(2 * self._pairs)
      self._environment = envs.make(self._env, 2 * self._pairs, seed=seed)
    for part in np.split(pair, range(self._pairs, len(pair), self._pairs)):
      acting = self._members(state, np.resize(part, self._pairs))
      alive = np.arange(2 * self._pairs) < 2 * len(part)
      returns, lengths = np.zeros(len(alive)), np.zeros(len(alive), np.int32)
      totals = evolution.no_totals(state.statistics)
      for rows in self._player.steps(acting, 0, self._environment):
        if self._stop.is_set():
          return
        step_type, episode_return = rows.timestep.step_type, rows.episode_return
        lengths += alive & (step_type != int(dm_env.StepType.FIRST))
        returns += np.where(alive, rows.timestep.reward, 0.0)
        ended = alive & ~np.isnan(episode_return)
        returns[ended] = episode_return[ended]
        alive &= ~ended & (lengths < self._cap)
        if not alive.any():
          break
        if totals:
          counts = alive & (step_type != int(dm_env.StepType.LAST))
          totals = self._count(
            state.statistics, totals, rows.timestep.observation, counts
          )
      played = [x[: 2 * len(part)].reshape(-1, 2) for x in (returns, lengths)]
      yield evolution.Fitness(
        np.int32(version),
        part,
        np.float32(played[0]),
        played[1],
        jax.tree.map(np.asarray, totals),
      )

  def close(self) -> None:
    """Closes the environments."""
    if self._environment is not None:
      self._environment.close()


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of one worker.

  Attributes:
    address: address of the learner.
    env: the environment.
    agent: config of the agent, one of `evolution`.
    config: settings of playing.
    security: TLS and token of the connection.
  """

  address: str
  env: envs.Config
  agent: base.Config
  config: Config
  security: wire.Security = wire.LOCAL


def run(work: Work, stop: threading.Event) -> None:
  """Plays pairs until the run is over or `stop` is set.

  Raises:
    types.ConfigError: the environment cannot be made.
    wire.WireError: the learner refuses this worker.
  """
  agent = work.agent.make(envs.spec(work.env))
  initial = jax.jit(agent.init)(jax.random.key(0))
  none = no_results(evolution.no_totals(initial.statistics))
  update = jax.jit(agent.update)

  def session(client: wire.Client) -> None:
    with contextlib.ExitStack() as opened:
      centre = _Centre(client, update, initial, work.config, opened)
      leases = client.exchange(RESULTS, *layouts(none.totals, work.config))
      opened.callback(leases.close)
      first = protocol.first_seed(leases.welcome)
      player = Player(agent, work.env, work.config, lambda _: first, stop)
      opened.callback(player.close)
      results = none
      while not stop.is_set() and (lease := leases(results)) is not None:
        results = none
        centre.reach(int(lease.version))
        if lease.pair[0] != NO_PAIR and centre.version == lease.version:
          pair = np.array(lease.pair)
          played = player.play(centre.state, centre.version, pair)
          results = next(played, none)

  wire.until_done(work.address, session, stop, "worker", security=work.security)


class _Centre:
  """A worker's copy of the agent's state, in one session."""

  def __init__(
    self,
    client: wire.Client,
    update: Callable[..., tuple[base.AgentState, types.LossOutput]],
    state: base.AgentState,
    config: Config,
    opened: contextlib.ExitStack,
  ) -> None:
    self.state, self.version = state, -1
    self._update, self._rebuild = update, config.rebuild
    leaves, self._form = jax.tree.flatten(state)
    fitness = no_results(evolution.no_totals(state.statistics), config.pairs)
    device = jax.local_devices()[0]
    self._fetched = parameters.Copy(client, leaves, device)
    opened.callback(self._fetched.close)
    self._fitness = parameters.Copy(client, fitness, device, FITNESS)
    opened.callback(self._fitness.close)

  def reach(self, version: int) -> None:
    """Makes the update to a version, or fetches, unless the run is over."""
    if self._rebuild and 0 <= self.version == version - 1:
      last = self._fitness.newest()
      if last is not None and last.version == self.version:
        state, _ = self._update(self.state, jax.random.key(0), last.acting)
        # The learner skips an update that is not finite: then it is fetched.
        if trees.non_finite(jax.tree.leaves(state)) is None:
          self.state, self.version = state, version
    if self.version < version and (newest := self._fetched.newest()):
      self.state = jax.tree.unflatten(self._form, newest.acting)
      self.version = int(newest.version)
