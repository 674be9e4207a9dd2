"""Members of a population that play whole episodes, and their workers.

A worker opens the stream `RESULTS`, whose requests have the results of the
pairs in the reply before; the first request has none. When a new iteration has
begun, the worker fetches the fitness of the last one on the stream `FITNESS`
and makes the update itself. It fetches the agent's state on the stream of
`parameters` when it joins, or has missed an iteration.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import NamedTuple

import dm_env
import jax
import numpy as np

from seedx import envs, trees, types, wire
from seedx.acting import parameters, protocol
from seedx.agents import base, evolution

RESULTS, FITNESS = "results", "fitness"
# The number of a pair in messages without one.
NO_PAIR = -1


@dataclasses.dataclass(frozen=True)
class Config:
  """Settings of playing a population.

  Attributes:
    pairs: number of pairs in an iteration.
    num_workers: number of worker processes; 0 for playing in the learner's.
    pairs_per_worker: number of pairs that a worker plays at the same time,
      between two messages; each member has an environment.
    lease_seconds: seconds after which a worker's pairs are given to another
      one, too.
    max_episode_steps: number of env steps after which an episode is cut; its
      return so far counts.
    rebuild: whether workers make updates themselves; if not, they fetch the
      parameters of each iteration.
  """

  pairs: int = types.setting(16, low=1, high=2**20)
  num_workers: int = types.setting(2, changes="resume", low=0, high=2**20)
  pairs_per_worker: int = types.setting(8, low=1, high=2**20)
  lease_seconds: float = types.setting(
    60.0, changes="resume", low=0.0, high=types.MAX_SECONDS
  )
  max_episode_steps: int = types.setting(100_000, low=1, high=2**31 - 1)
  rebuild: bool = types.setting(True, changes="resume")

  def __post_init__(self) -> None:
    types.check_settings(self)


class Results(NamedTuple):
  """The results of K pairs.

  Attributes:
    version: `[]` int32, number of updates behind the centre.
    pair: `[K]` int32, see `evolution.Fitness`; also the next ones.
    returns: `[K, 2]` float32.
    lengths: `[K, 2]` int32, env steps of the episodes.
    totals: see `evolution.Totals`.
  """

  version: types.Array
  pair: types.Array
  returns: types.Array
  lengths: types.Array
  totals: types.Tree


class Lease(NamedTuple):
  """Pairs to play next: `version` and `pair` as in `Results`."""

  version: types.Array
  pair: types.Array


def no_results(totals: types.Tree) -> Results:
  """Returns results without a pair; `totals` has the shapes."""
  zeros = np.zeros((1, 2), np.float32)
  totals = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), totals)
  none = np.full(1, NO_PAIR, np.int32)
  return Results(np.int32(-1), none, zeros, zeros.astype(np.int32), totals)


def layouts(totals: types.Tree, config: Config) -> tuple[wire.Layout, ...]:
  """Returns the layouts of results, leases, requests of fitness and fitness."""
  row = jax.tree.map(lambda x: x[0], no_results(totals)[1:4])
  once = wire.once(no_results(totals))
  results = Results(once.version, row[0], row[1], row[2], once.totals)
  lease = Lease(once.version, row[0])
  return (
    wire.Layout.of(results, config.pairs_per_worker),
    wire.Layout.of(lease, config.pairs_per_worker),
    wire.Layout.of(once.version, 1),
    wire.Layout.of(results, config.pairs),
  )


class Player:
  """Environments in which members play an episode each."""

  def __init__(
    self,
    agent: base.Agent,
    env: envs.Config,
    config: Config,
    take_seeds: Callable[[int], int],
  ) -> None:
    """Makes the programs; the first call of `play` makes the environments.

    Args:
      agent: agent of a config of `evolution`, made without a mesh axis.
      env: the environment.
      config: settings.
      take_seeds: returns the first of a number of seeds.
    """
    self._env, self._seeds, spec = env, take_seeds, envs.spec(env)
    self._environment: envs.Environment | None = None
    self._pairs, self._cap = config.pairs_per_worker, config.max_episode_steps
    self._population = jax.jit(lambda *x: evolution.population(agent, spec, *x))
    self._act = jax.jit(
      lambda *x: evolution.act(agent, spec, *x), donate_argnums=0
    )

  def play(
    self,
    state: base.AgentState,
    version: int,
    pair: np.ndarray,
    stop: threading.Event,
  ) -> Results | None:
    """Plays an episode of both members of pairs; returns None if stopped.

    Args:
      state: the centre's state.
      version: number of updates behind it.
      pair: `[K]` int32, at most `pairs_per_worker` pairs.
      stop: event that ends the episodes.

    Raises:
      types.ConfigError: the environment cannot be made.
    """
    size = 2 * self._pairs
    if self._environment is None:
      seed = self._seeds(size)
      self._environment = envs.make(self._env, size, seed=seed)
    playing = self._population(state, np.resize(pair, self._pairs))
    alive = np.arange(size) < 2 * len(pair)
    returns, lengths = np.zeros(size), np.zeros(size, np.int32)
    self._environment.reset()
    while not stop.is_set():
      index, timestep, episode_return, _ = self._environment.recv()
      lengths += alive & (timestep.step_type != int(dm_env.StepType.FIRST))
      returns += np.where(alive, timestep.reward, 0.0)
      ended = alive & ~np.isnan(episode_return)
      returns[ended] = episode_return[ended]
      alive &= ~ended & (lengths < self._cap)
      if not alive.any():
        totals = jax.tree.map(np.asarray, playing.totals)
        played = [x[: 2 * len(pair)].reshape(-1, 2) for x in (returns, lengths)]
        return Results(
          np.int32(version), pair, np.float32(played[0]), played[1], totals
        )
      counts = alive & (timestep.step_type != int(dm_env.StepType.LAST))
      action, playing = self._act(playing, state.statistics, timestep, counts)
      self._environment.send(index, np.asarray(action))
    return None

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
  centre = _Centre(agent, initial)

  def session(client: wire.Client) -> None:
    with contextlib.ExitStack() as opened:
      leases = centre.open(client, work.config, opened)
      first = protocol.first_seed(leases.welcome)
      player = Player(agent, work.env, work.config, lambda _: first)
      opened.callback(player.close)
      results: Results | None = no_results(centre.totals)
      while results is not None and (lease := leases(results)) is not None:
        results = no_results(centre.totals)
        if not centre.reach(int(lease.version)):
          return
        if lease.pair[0] != NO_PAIR and centre.version == lease.version:
          results = player.play(
            centre.state, centre.version, np.array(lease.pair), stop
          )

  wire.until_done(work.address, session, stop, "worker", security=work.security)


class _Centre:
  """A worker's copy of the agent's state."""

  def __init__(self, agent: base.Agent, state: base.AgentState) -> None:
    self.state, self.version = state, -1
    self.totals = evolution.no_totals(state.statistics)
    self._update = jax.jit(agent.update)

  def open(
    self, client: wire.Client, config: Config, opened: contextlib.ExitStack
  ) -> wire.Stream:
    """Opens a session's streams; returns that of `RESULTS`."""
    results, lease, version, fitness = layouts(self.totals, config)
    leaves, self._form = jax.tree.flatten(self.state)
    self._fetched = parameters.Copy(client, leaves, jax.local_devices()[0])
    self._fitness = client.exchange(FITNESS, version, fitness)
    leases = client.exchange(RESULTS, results, lease)
    for stream in (self._fetched, self._fitness, leases):
      opened.callback(stream.close)
    self.version, self._rebuild = -1, config.rebuild
    return leases

  def reach(self, version: int) -> bool:
    """Makes the update to a version, or fetches; False if the run is over."""
    if self._rebuild and 0 <= self.version == version - 1:
      fitness = self._fitness(np.int32(self.version))
      if fitness is None:
        return False
      if fitness.version == self.version:
        state, _ = self._update(
          self.state, jax.random.key(0), fitness_of(fitness, 1)
        )
        # The learner skips an update that is not finite: then it is fetched.
        if trees.non_finite(jax.tree.leaves(state)) is None:
          self.state, self.version = state, version
    if self.version < version:
      newest = self._fetched.newest()
      if newest is None:
        return False
      self.state = jax.tree.unflatten(self._form, newest.acting)
      self.version = int(newest.version)
    return True


def fitness_of(results: Results, cores: int) -> evolution.Fitness:
  """Returns the results of an iteration as a batch for a number of cores."""
  totals = jax.tree.map(
    lambda x: np.concatenate(
      [x[None], np.zeros((cores - 1, *x.shape), x.dtype)]
    ),
    results.totals,
  )
  steps = results.lengths.sum(axis=1).astype(np.float32)
  returns = np.array(results.returns)
  return evolution.Fitness(np.array(results.pair), returns, steps, totals)
