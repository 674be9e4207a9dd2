"""The learner of an evolution run, and its workers."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import jax
import numpy as np

from seedx import envs, sharding, types
from seedx.acting import perturbed, populations
from seedx.agents import base, evolution, models
from seedx.launch import topology
from seedx.learning import experience
from seedx.learning import learner as learner_lib
from seedx.runtime import process, seeding
from seedx.wire import serving

# Plays pairs with a state and its version; ends early if the run is over.
Play = Callable[[base.AgentState, int, np.ndarray], Iterable[evolution.Fitness]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(process.Config):
  """The options of every evolution run, which has one learner host.

  Attributes:
    population: the members.
    learner: devices that compute updates; they also play without processes.
  """

  population: perturbed.Population = perturbed.Population()
  learner: learner_lib.DevicesConfig = learner_lib.DevicesConfig()

  def __post_init__(self) -> None:
    super().__post_init__()
    types.check_range("hosts", self.learner.hosts, 1, 1)
    if self.population.pairs % self.learner.num_cores:
      raise types.ConfigError(
        f"expected pairs that are a multiple of {self.learner.num_cores}, the"
        f" number of learner devices, found {self.population.pairs}"
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options, process.ServerConfig):
  """The options of an evolution run in processes.

  Attributes:
    population: the members, and the workers that play them.
  """

  population: perturbed.Config = perturbed.Config()

  def nodes(self) -> list[topology.Node]:
    """Returns the workers, if there are any."""
    count = self.population.num_workers
    work = perturbed.Work(
      address=self.address,
      env=self.env,
      agent=models.on_cpu(self.agent),
      config=self.population,
      security=self.security,
    )
    node = topology.Node("worker", perturbed.run, work, count, needs_jax=True)
    return [node] if count else []

  def learn(self, context: process.Context) -> process.Process:
    """Returns the learner process: returns in, updates."""
    centre = Centre(self, context)
    seeds = context.seeds(self.seed)
    if count := self.population.num_workers:
      server = self.make_server(count)
      centre.book.bind(server, centre.newest, self.population, seeds)
      return centre.process(seeds, lambda *_: (), server)
    player = perturbed.Player(
      self.agent.make(centre.spec),
      self.env,
      self.population,
      seeds.take,
      context.stop,
    )
    return centre.process(seeds, player.play, ending=player.close)


class Centre:
  """The learner of a run, and the book of its iterations.

  Attributes:
    spec: the environment's observations and actions.
    acted: counts of the members' env steps.
    learning: learner of the centre.
    book: pairs and results of the iterations.
  """

  def __init__(self, config: Options, context: process.Context) -> None:
    """Makes the learner's state.

    Raises:
      types.ConfigError: the environment or a device does not exist, or the
        agent does not learn from returns.
    """
    self.spec = envs.spec(config.env)
    agent = config.agent.make(self.spec, sharding.CORES)
    if not isinstance(agent.needs, evolution.Needs):
      raise types.ConfigError(
        "expected an agent that learns from the returns of a population, ES or"
        f" ARS, found {type(config.agent).__module__}"
      )
    self.acted = context.acted(self.spec, config.total_steps)
    self.acted.rates_policy = False
    self.learning = learner_lib.Learner(
      agent,
      config.learner,
      experience.Once(),
      context.keys(config.seed).learner,
      stop=context.stop,
    )
    self._stop = context.stop
    self.book = populations.Iterations(
      config.population.pairs,
      seeding.Seeds(config.seed).take(0),
      evolution.no_totals(self.learning.state.statistics),
      self.acted,
      context.stop,
    )

  def newest(self) -> tuple[types.Tree, int]:
    """Returns the leaves of the newest computed state, and its version."""
    saved = self.learning.saved()
    return jax.tree.leaves(saved.agent), int(saved.counts["steps"])

  def process(
    self,
    seeds: seeding.Seeds,
    play: Play,
    server: serving.Server | None = None,
    ending: Callable[[], None] = lambda: None,
  ) -> process.Process:
    """Returns the process; `play` returns nothing if workers play."""
    return process.Process(
      acted=self.acted,
      parts={"agent": self.learning, "acted": self.acted, "seeds": seeds},
      begin=self.learning.begin,
      policy=self.learning.policy,
      measures=[self.acted, self.learning, self.book, *filter(None, [server])],
      steps=lambda: self._steps(play),
      server=server,
      ending=ending,
      close=self.learning.finish,
    )

  def _steps(self, play: Play) -> Iterator[None]:
    """Trains; yields after each iteration, and while it waits for workers."""
    while not self.acted.is_done:
      pair = self.book.begin(self.learning.version)
      for results in play(self.learning.state, self.learning.version, pair):
        self.book.add(results)
      while (fitness := self.book.collect()) is None:
        if self._stop.is_set():
          return
        yield
      self.learning.learn_from(self.learning.shares(fitness))
      yield
