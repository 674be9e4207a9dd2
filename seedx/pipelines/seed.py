"""SEED: thin actors, and one learner process that acts for all of them.

    actor: EnvPool --.  observations   .-> batcher -> act -> unroll store -.
    actor: EnvPool ---- over gRPC ----<    (on each inference device)      |
    actor: EnvPool --'  <- actions     '-                       unrolls    |
                                                                           v
                    parameters <- update, sharded over cores <- bounded queues

Espeholt et al. 2019, "SEED RL: Scalable and Efficient Deep-RL with Accelerated
Central Inference", https://arxiv.org/abs/1910.06591, figures 1 and 3.
"""

import dataclasses
import functools

from seedx import envs
from seedx import replay as replay_lib
from seedx.acting import inference as inference_lib
from seedx.acting import inference_server, thin_actor
from seedx.launch import topology
from seedx.learning import learner as learner_lib
from seedx.learning import learners, plans
from seedx.runtime import process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.ServerConfig):
  """The options of a SEED run.

  Attributes:
    actors: processes that step environments.
    inference: devices that compute actions.
    learner: devices that compute updates.
    replay: the replay; None for an agent that learns without one.
  """

  actors: thin_actor.Config = thin_actor.Config()
  inference: inference_lib.Config = inference_lib.Config()
  learner: learner_lib.InboxConfig = learner_lib.InboxConfig()
  replay: replay_lib.Config | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    self.learner.check_batches(self.learner.parts_of_unrolls(self.replay))

  @property
  def plan(self) -> plans.Plan:
    """The run's amounts of experience."""
    return self.learner.plan(
      self.total_steps,
      self.learner.batch_steps,
      self.replay,
      self.actors.num_envs,
    )

  def nodes(self) -> list[topology.Node]:
    """Returns the actors, on any machines that can connect to the learner."""
    work = thin_actor.Work(
      self.address, self.env, self.actors, security=self.security
    )
    count, needs_jax = self.actors.num_actors, envs.is_functional(self.env)
    return [topology.Node("actor", thin_actor.run, work, count, needs_jax)]

  def learn(self, context: process.Context) -> process.Process:
    """Returns the learner process: server, inference, unrolls, updates."""
    spec = envs.spec(self.env)
    acted = context.acted(spec, self.total_steps)
    seeds = context.seeds(self.seed)
    learning = learners.of(
      self, spec, context, acted, acting_on=self.inference.devices()
    )
    inference = inference_lib.Devices(
      self.inference,
      learning.agent,
      spec,
      self.actors,
      acted,
      returns_are_sums=envs.returns_are_sums(self.env),
      period=self.learner.unroll_length,
      share_size=self.learner.share_size,
      newest=learning.newest,
      sink=learning.inbox.put,
      waiting=learning.blocking.waiting,
      rng_key=context.keys(self.seed).acting,
    )
    service = inference_server.InferenceServer(inference, seeds, acted)
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
      measures=[acted, learning, inference, server],
      threads={
        "learner": lambda: learning.run(inference.example),
        **inference.threads,
      },
      server=server,
      stopping=learning.inbox.close,
      close=inference.close,
    )
