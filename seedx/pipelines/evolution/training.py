"""The learner of an evolution run, and its workers."""

import dataclasses
import threading
from collections.abc import Callable, Iterator

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

# Plays pairs with a state and its version; None if the run is over.
Play = Callable[[base.AgentState, int, np.ndarray], perturbed.Results | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.ServerConfig):
  """The options of an evolution run, which has one learner host.

  Attributes:
    population: the members, and the workers that play them.
    learner: devices that compute updates.
  """

  population: perturbed.Config = perturbed.Config()
  learner: learner_lib.DevicesConfig = learner_lib.DevicesConfig()

  def __post_init__(self) -> None:
    super().__post_init__()
    types.check_range("hosts", self.learner.hosts, 1, 1)
    check_divides(self.learner, self.population.pairs)

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
    made = Centre(self, context, self.learner, self.population)
    if count := self.population.num_workers:
      server = self.make_server(count)
      made.book.bind(server, made.newest)
      return made.process(None, server)
    player = perturbed.Player(
      self.agent.make(made.spec), self.env, self.population, made.seeds.take
    )

    def play(
      state: base.AgentState, version: int, pair: np.ndarray
    ) -> perturbed.Results | None:
      return player.play(state, version, pair, context.stop)

    return made.process(play, close=player.close)


def check_divides(learner: learner_lib.DevicesConfig, pairs: int) -> None:
  """Raises types.ConfigError if the learner devices do not divide the pairs."""
  if pairs % learner.num_cores:
    raise types.ConfigError(
      f"expected pairs that are a multiple of {learner.num_cores}, the number"
      f" of learner devices, found {pairs}"
    )


class Centre:
  """The learner of a run, and the book of its iterations.

  Attributes:
    spec: the environment's observations and actions.
    acted: counts of the members' env steps.
    seeds: seeds of environments.
    learning: learner of the centre.
    book: pairs and results of the iterations.
  """

  def __init__(
    self,
    config: process.Config,
    context: process.Context,
    learner: learner_lib.DevicesConfig,
    population: perturbed.Config,
  ) -> None:
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
    self.seeds = context.seeds(config.seed)
    self.learning = learner_lib.Learner(
      agent,
      learner,
      experience.Once(),
      context.keys(config.seed).learner,
      stop=context.stop,
    )
    self.book = populations.Iterations(
      population,
      seeding.Seeds(config.seed).take(0),
      evolution.no_totals(self.learning.state.statistics),
      self.acted,
      self.seeds,
    )
    self._publish()

  def newest(self) -> tuple[types.Tree, int]:
    """Returns the leaves of the newest state, and its version."""
    return self._newest

  def process(
    self,
    play: Play | None,
    server: serving.Server | None = None,
    close: Callable[[], None] = lambda: None,
  ) -> process.Process:
    """Returns the process; `play` plays in it, None if workers play."""
    ended = threading.Event()

    def learn() -> None:
      for _ in self._steps(None):
        pass
      ended.set()

    def closing() -> None:
      self.learning.finish()
      close()

    return process.Process(
      acted=self.acted,
      parts={
        "agent": self.learning,
        "acted": self.acted,
        "seeds": self.seeds,
      },
      begin=self.learning.begin,
      policy=self.learning.policy,
      measures=[
        self.acted,
        self.learning,
        self.book,
        *([server] if server else []),
      ],
      # Results of workers are waited for on another thread than the log's.
      threads={} if play else {"learner": learn},
      done=ended.is_set,
      steps=(lambda: self._steps(play)) if play else None,
      server=server,
      stopping=self.book.close,
      close=closing,
    )

  def _publish(self) -> None:
    leaves = jax.tree.leaves(self.learning.state)
    self._newest = leaves, self.learning.version

  def _steps(self, play: Play | None) -> Iterator[None]:
    """Trains; yields after each iteration."""
    learning, cores = self.learning, self.learning.cores
    specs = learning.agent.needs.specs
    self._publish()  # It may be restored.
    while not self.acted.is_done:
      for pair in self.book.begin(learning.version):
        if play is None:
          break
        results = play(learning.state, learning.version, pair)
        if results is None:
          return
        self.book.add(results)
      complete = self.book.collect()
      if complete is None:
        return
      batch = perturbed.fitness_of(complete, len(cores))
      shares = [
        sharding.put(sharding.shard(batch, specs, i, len(cores)), core)
        for i, core in enumerate(cores)
      ]
      learning.learn_from([types.Share(x) for x in shares])
      learning.publish()
      self._publish()
      yield
