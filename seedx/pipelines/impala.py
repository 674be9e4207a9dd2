"""IMPALA: actors with a copy of the parameters, and one learner.

    actor: EnvPool <-> act --.     unrolls      .-> bounded queues -> update
    actor: EnvPool <-> act ----- over gRPC ----<    (sharded over cores)  |
    actor: EnvPool <-> act --'  <- parameters   '--- newest parameters <--'

Actors compute actions on their CPUs, send whole unrolls, and fetch newer
parameters between unrolls: after each one, or every `fetch_interval` env steps.
Actors wait while the learner's queue is full. An unroll is some updates old
when the learner uses it. V-trace corrects for this age, and the metric
`policy_lag` is the mean number of these updates.

Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance
Weighted Actor-Learner Architectures", https://arxiv.org/abs/1802.01561, figure
1.
"""

import dataclasses
import functools

from seedx import envs, types
from seedx.acting import local_actor, protocol, unroll_actor, unroll_server
from seedx.agents import models
from seedx.launch import topology
from seedx.learning import experience, learners, plans
from seedx.learning import learner as learner_lib
from seedx.runtime import process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.ServerConfig):
  """The options of an IMPALA run.

  Attributes:
    actors: processes that act.
    fetch_interval: number of env steps of an actor, over all its environments,
      between two fetches of parameters; 0 for a fetch after every unroll.
      Actors with one environment have 100 in Ape-X (Horgan et al. 2018, section
      4.1: 400 frames), and 400 in R2D2 (Kapturowski et al. 2019, table 2).
    learner: devices that compute updates.
  """

  actors: protocol.Actors = protocol.Actors()
  fetch_interval: int = types.setting(0, low=0, high=2**31 - 1)
  learner: learner_lib.InboxConfig = learner_lib.InboxConfig()

  def __post_init__(self) -> None:
    super().__post_init__()
    self.learner.check_batches(self.learner.parts)

  @property
  def plan(self) -> plans.Plan:
    """The run's amounts of experience."""
    return self.learner.plan(
      self.total_steps,
      self.learner.batch_steps,
      num_envs=self.actors.num_envs,
    )

  def source(
    self, experience: experience.Experience, context: process.Context
  ) -> experience.Experience:
    """Returns the learner's source of batches, from that of the plan."""
    del context
    return experience

  def nodes(self) -> list[topology.Node]:
    """Returns the actors, on any machines that can connect to the learner."""
    work = unroll_actor.Work(
      address=self.address,
      env=self.env,
      agent=models.on_cpu(self.agent),
      horizon=self.plan.horizon,
      actors=self.actors,
      unroll_length=self.learner.unroll_length,
      fetch_interval=self.fetch_interval,
      security=self.security,
    )
    count = self.actors.num_actors
    return [
      topology.Node("actor", unroll_actor.run, work, count, needs_jax=True)
    ]

  def learn(self, context: process.Context) -> process.Process:
    """Returns the learner process: unrolls in, updates, parameters out."""
    spec = envs.spec(self.env)
    acted = context.acted(spec, self.total_steps)
    seeds = context.seeds(self.seed)
    learning = learners.of(
      self, spec, context, acted, wrap=lambda x: self.source(x, context)
    )
    service = unroll_server.UnrollServer(
      local_actor.Programs.of(
        learning.agent,
        spec,
        self.learner.unroll_length,
        self.learner.share_size,
      ),
      self.actors,
      acted,
      seeds,
      self.env,
      newest=learning.newest,
      sink=learning.inbox.put,
    )
    server = self.make_server(self.actors.num_actors)
    service.bind(server)
    return process.Process(
      acted=acted,
      parts={"agent": learning, "acted": acted, "seeds": seeds},
      begin=learning.begin,
      replay=learning.replay,
      refill=functools.partial(
        self.plan.refill, learning.agent.needs, learning.leave_out
      ),
      policy=learning.policy,
      measures=[acted, learning, service, server],
      threads={"learner": lambda: learning.run(service.example)},
      server=server,
      stopping=learning.inbox.close,
    )
