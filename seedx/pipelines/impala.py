"""IMPALA: actors with a copy of the parameters, and one learner.

    actor: EnvPool <-> act --.     unrolls      .-> bounded queues -> update
    actor: EnvPool <-> act ----- over gRPC ----<    (sharded over cores)  |
    actor: EnvPool <-> act --'  <- parameters   '--- newest parameters <--'

Actors compute actions by themselves, on their CPUs, send whole unrolls, and
fetch newer parameters between unrolls: after each, or every `fetch_interval`
env steps. They wait while the learner's queue is full. So unrolls are some
updates old when the learner uses them: V-trace corrects for that, and the
metric `policy_lag` says how many. Espeholt et al. 2018, "IMPALA: Scalable
Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
https://arxiv.org/abs/1802.01561, figure 1.
"""

import dataclasses

from seedx import envs, launch, types
from seedx.acting import local_actor, slots, unroll_actor, unroll_server
from seedx.learning import learner as learner_lib
from seedx.learning import learners
from seedx.learning import plan as plan_lib
from seedx.runtime import process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.ServerConfig):
  """The options of an IMPALA run.

  Attributes:
    actors: processes that act.
    fetch_interval: env steps of an actor between two fetches of parameters; 0
      for a fetch after every unroll. The paper of Ape-X has 400.
    learner: devices that compute updates.
  """

  actors: slots.Config = slots.Config()
  fetch_interval: int = 0
  learner: learner_lib.InboxConfig = learner_lib.InboxConfig()

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    super().__post_init__()
    types.check_ranges(self, fetch_interval=(0, 2**31 - 1))
    self.learner.check_batches(self.learner.parts)

  @property
  def plan(self) -> plan_lib.Plan:
    """The experience that updates are computed from."""
    return self.learner.plan(self.total_steps, self.learner.batch_steps)

  def nodes(self) -> list[launch.Node]:
    """The actors, to be launched anywhere that reaches the learner."""
    work = unroll_actor.Work(
      address=self.address,
      env=self.env,
      agent=self.agent,
      horizon=self.plan.horizon,
      actors=self.actors,
      unroll_length=self.learner.unroll_length,
      fetch_interval=self.fetch_interval,
      security=self.security,
    )
    count = self.actors.num_actors
    return [launch.Node("actor", unroll_actor.run, work, count, needs_jax=True)]

  def learn(self, context: process.Context) -> process.Process:
    """The learner process: takes unrolls in, updates, hands parameters out.

    Raises:
      types.ConfigError: no such environment or device, or an unfit agent.
    """
    spec = envs.spec(self.env)
    acted = context.acted(spec, self.total_steps)
    seeds = context.seeds(self.seed)
    learning = learners.of(self, spec, context, acted)
    own = self.learner
    unrolls = unroll_server.UnrollServer(
      local_actor.Programs.of(
        learning.agent, spec, own.unroll_length, own.share_size
      ),
      self.actors,
      acted,
      seeds,
      self.env,
      newest=learning.newest,
      sink=learning.inbox.put,
    )
    server = self.make_server(self.actors.num_actors)
    unrolls.bind(server)
    return process.Process(
      acted=acted,
      parts={"agent": learning, "acted": acted, "seeds": seeds},
      replay=learning.replay,
      policy=learning.policy,
      measures=[acted, learning, unrolls, server],
      threads={"learner": lambda: learning.run(unrolls.example)},
      server=server,
      stopping=learning.inbox.close,
    )
