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

from seedx import envs, launch
from seedx import replay as replay_lib
from seedx.acting import inference as inference_lib
from seedx.acting import inference_server, thin_actor
from seedx.agents import base
from seedx.learning import learner as learner_lib
from seedx.learning import learners
from seedx.learning import plan as plan_lib
from seedx.runtime import process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.ServerConfig):
  """The options of a SEED run.

  Attributes:
    env: the environment.
    agent: that acts and learns.
    actors: processes that step environments.
    inference: devices that compute actions.
    learner: devices that compute updates.
    replay: if the agent learns from a replay.
  """

  env: envs.Config = envs.Config()
  agent: base.Config
  actors: thin_actor.Config = thin_actor.Config()
  inference: inference_lib.Config = inference_lib.Config()
  learner: learner_lib.InboxConfig = learner_lib.InboxConfig()
  replay: replay_lib.Config | None = None

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    super().__post_init__()
    self.learner.check_batches(self.learner.parts_of_unrolls(self.replay))

  @property
  def plan(self) -> plan_lib.Plan:
    """The experience that updates are computed from."""
    batch_steps, parts = self.learner.batch_steps, self.learner.parts
    return plan_lib.Plan(
      self.total_steps,
      batch_steps,
      self.replay,
      parts,
      self.learner.hosts,
      self.learner.unroll_length,
    )


def nodes(config: Config) -> list[launch.Node]:
  """The actors, to be launched anywhere that reaches the learner."""
  work = thin_actor.Work(
    config.address, config.env, config.actors, security=config.security
  )
  return [
    launch.Node(
      *("actor", thin_actor.run, work, config.actors.num_actors),
      needs_jax=envs.is_functional(config.env),
    )
  ]


def learn(config: Config, context: process.Context) -> process.Process:
  """The learner process: server, inference, unrolls, updates.

  Raises:
    types.ConfigError: no such environment or device, or an unfit agent.
  """
  spec = envs.spec(config.env)
  acted = context.acted(spec, config.total_steps)
  seeds = context.seeds(config.seed)
  learning = learners.of(
    config, spec, context, acted, acting_on=config.inference.devices()
  )
  acting = inference_lib.Devices(
    config.inference,
    learning.agent,
    spec,
    config.actors,
    period=config.learner.unroll_length,
    share_size=config.learner.share_size,
    newest=learning.newest,
    sink=learning.inbox.put,
    rng_key=context.keys(config.seed).acting,
  )
  connected = inference_server.InferenceServer(acting, acted, seeds, config.env)
  server = config.make_server(config.actors.num_actors)
  connected.bind(server)
  return process.Process(
    acted=acted,
    parts={"agent": learning, "acted": acted, "seeds": seeds},
    replay=learning.replay,
    policy=learning.policy,
    measures=[acted.measure, learning.measure, acting.measure, server.measure],
    done=lambda: acted.env_steps >= config.total_steps,
    threads={
      "learner": lambda: learning.run(acting.example),
      **acting.threads,
    },
    server=server,
    close=acting.close,
  )
