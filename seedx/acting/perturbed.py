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
from typing import Any, NamedTuple

import dm_env
import jax
import numpy as np

from seedx import envs, trees, types, wire
from seedx.acting import parameters, protocol
from seedx.agents import acting_step, base, evolution

RESULTS, FITNESS = "results", "fitness"
# The number of a pair in messages without one.
NO_PAIR = -1


@dataclasses.dataclass(frozen=True)
class Config:
  """Settings of playing a population.

  Attributes:
    pairs: number of pairs in an iteration.
    num_workers: number of worker processes; 0 for playing in the learner's.
    envs_per_worker: number of environments of each worker.
    lease_pairs: number of pairs that a worker plays between two messages.
    lease_seconds: seconds after which a worker's pairs are given to another
      one, too.
    max_episode_steps: number of env steps after which an episode is cut; its
      return so far counts.
    rebuild: whether workers make updates themselves; if not, they fetch the
      parameters of each iteration.
  """

  pairs: int = types.setting(16, low=1, high=2**20)
  num_workers: int = types.setting(2, changes="resume", low=0, high=2**20)
  envs_per_worker: int = types.setting(16, low=1, high=2**20)
  lease_pairs: int = types.setting(8, changes="resume", low=1, high=2**16)
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
    wire.Layout.of(results, config.lease_pairs),
    wire.Layout.of(lease, config.lease_pairs),
    wire.Layout.of(once.version, 1),
    wire.Layout.of(results, config.pairs),
  )


class Player:
  """Environments in which members play whole episodes, one after another."""

  def __init__(
    self,
    agent: base.Agent,
    env: envs.Config,
    config: Config,
    take_seeds: Callable[[int], int],
    num_threads: int = 1,
  ) -> None:
    """Makes the environments.

    Args:
      agent: agent of a config of `evolution`, made without a mesh axis.
      env: the environment.
      config: settings.
      take_seeds: returns the first of a number of seeds.
      num_threads: see `envs.make`.

    Raises:
      types.ConfigError: the environment cannot be made.
    """
    self._env, self._config, self._seeds = env, config, take_seeds
    self._threads = num_threads
    self._spec = envs.spec(env)
    size = config.envs_per_worker
    start = acting_step.initial_state(agent, self._spec, size)

    def renewed(
      population: Any, state: base.AgentState, row: Any, pair: Any, side: Any
    ) -> Any:
      sigma = state.hyperparameters["sigma"]
      new = evolution.members(state.params, sigma, pair, side)
      params = jax.tree.map(
        lambda x, y: x.at[row].set(y, mode="drop"), population.params, new
      )
      return population._replace(params=params)

    self._renewed = jax.jit(renewed, donate_argnums=0)
    self._act = jax.jit(
      lambda *x: evolution.act(agent, self._spec, *x), donate_argnums=0
    )
    self._population = jax.jit(
      lambda state: evolution.Population(
        jax.tree.map(
          lambda x: jax.numpy.broadcast_to(x, (size, *x.shape)), state.params
        ),
        start,
        evolution.no_totals(state.statistics),
      )
    )
    # The member of each environment, an index of a pair and a side; -1 if none.
    self._member = np.full(size, -1)
    self._environment: envs.Environment | None = None
    self._playing: Any = None

  def play(
    self,
    state: base.AgentState,
    version: int,
    pair: np.ndarray,
    stop: threading.Event,
  ) -> Results | None:
    """Plays an episode of each member of pairs, `[K]`; None if stopped."""
    # Copies: `_act` donates them.
    start = jax.device_get(evolution.no_totals(state.statistics))
    if self._playing is None:
      self._playing = self._population(state)
    self._playing = self._playing._replace(totals=start)
    returns = np.zeros(2 * len(pair), np.float32)
    lengths = np.zeros(2 * len(pair), np.int32)
    left = [*range(2 * len(pair))[::-1]]
    while not stop.is_set():
      rows = self._rows if self._environment else self._reset()
      first = rows.timestep.step_type == int(dm_env.StepType.FIRST)
      row = np.flatnonzero(first & (self._member < 0))[: len(left)]
      self._member[row] = [left.pop() for _ in row]
      if len(row):
        self._renew(state, row, pair)
      counts = (self._member >= 0) & (
        rows.timestep.step_type != int(dm_env.StepType.LAST)
      )
      action, self._playing = self._act(
        self._playing, state.statistics, rows.timestep, counts
      )
      self._step(np.asarray(action))
      self._count(returns, lengths)
      if not left and np.all(self._member < 0):
        totals = jax.tree.map(np.asarray, self._playing.totals)
        shape = len(pair), 2
        return Results(
          np.int32(version),
          pair,
          returns.reshape(shape),
          lengths.reshape(shape),
          totals,
        )
    return None

  def close(self) -> None:
    """Closes the environments."""
    if self._environment is not None:
      self._environment.close()
      self._environment = None

  def _reset(self) -> types.Rows:
    size = len(self._member)
    self._environment = envs.make(
      self._env, size, seed=self._seeds(size), num_threads=self._threads
    )
    self._environment.reset()
    self._return, self._length = np.zeros(size), np.zeros(size, np.int32)
    self._rows = self._environment.recv()
    return self._rows

  def _renew(
    self, state: base.AgentState, row: np.ndarray, pair: np.ndarray
  ) -> None:
    # Padding to a power of two limits the number of compiled programs.
    size = 1 << (len(row) - 1).bit_length()
    member = np.pad(self._member[row], (0, size - len(row)))
    row = np.pad(row, (0, size - len(row)), constant_values=len(self._member))
    side = (member % 2).astype(np.int32)
    self._playing = self._renewed(
      self._playing, state, row, pair[member // 2], side
    )

  def _step(self, action: np.ndarray) -> None:
    assert self._environment is not None
    self._environment.send(self._rows.index, action)
    self._rows = rows = self._environment.recv()
    first = rows.timestep.step_type == int(dm_env.StepType.FIRST)
    self._return += rows.timestep.reward
    self._length += ~first

  def _count(self, returns: np.ndarray, lengths: np.ndarray) -> None:
    """Counts ended episodes, and starts anew if an episode has to be cut."""
    ended = ~np.isnan(self._rows.episode_return)
    cut = ~ended & (self._length >= self._config.max_episode_steps)
    result = np.where(ended, self._rows.episode_return, self._return)
    row = np.flatnonzero((ended | cut) & (self._member >= 0))
    returns[self._member[row]] = result[row]
    lengths[self._member[row]] = self._length[row]
    self._member[row] = -1
    self._return[ended] = self._length[ended] = 0
    # An environment without a member may never end its episode.
    if cut.any() and np.all(self._member < 0):
      self.close()


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
