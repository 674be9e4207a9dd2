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

import jax

from seedx import envs, launch, sharding
from seedx.acting import (
  batcher,
  inference_server,
  protocol,
  sessions,
  thin_actor,
)
from seedx.acting import inference as inference_lib
from seedx.agents import base
from seedx.learning import experience
from seedx.learning import learner as learner_lib
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
  replay: experience.ReplayConfig | None = None

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    super().__post_init__()
    self.learner.check_batches(self.learner.parts_of_unrolls(self.replay))

  @property
  def plan(self) -> experience.Plan:
    """The experience that updates are computed from."""
    batch_steps, parts = self.learner.batch_steps, self.learner.parts
    return experience.Plan(
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
  hosts, period = context.hosts, config.learner.unroll_length
  spec = envs.spec(config.env)
  agent = config.plan.agent(config.agent, spec, sharding.CORES)
  devices = sharding.devices(config.inference.inference_devices, "inference")
  sizes = config.inference.sizes(
    agent,
    config.actors,
    rows_per_actor=config.actors.rows,
    period=period,
    share_size=config.learner.share_size,
  )
  keys = jax.random.split(jax.random.key(config.seed), 2 + len(devices))
  replay_key, *acting_keys = map(hosts.own_key, keys[1:])
  acted = hosts.acted(spec.frames_per_step, config.total_steps)
  learning = learner_lib.Learner(
    agent,
    config.learner,
    config.plan.source(
      agent, period, config.learner.cores(), replay_key, acted
    ),
    keys[0],
    acting_on=devices,
    stop=context.stop,
    hosts=hosts,
  )
  waits, replies = inference_lib.waits(len(devices)), batcher.Replies()
  acting = [
    inference_lib.Inference(
      *(agent, spec, device, own),
      newest=learning.newest,
      sink=learning.inbox.put,
      rng_key=key,
      waits=waits,
      replies=replies,
    )
    for device, own, key in zip(devices, sizes, acting_keys, strict=True)
  ]
  seeds = hosts.counted(sessions.Seeds(config.seed, hosts.index))
  connected = inference_server.InferenceServer(
    acting, sizes, acted, seeds, envs.returns_are_sums(config.env)
  )
  server = config.make_server(config.actors.num_actors)
  layouts = protocol.act_layouts(spec, sizes[0].max_rows)
  server.bind_stream(protocol.ACT, connected, *layouts)
  return process.Process(
    acted=acted,
    parts={"learner": learning, "acted": acted, "seeds": seeds},
    replay=learning.replay,
    policy=learning.policy,
    measures=[
      *(acted.measure, learning.measure),
      *(waits.shares, replies.measure, server.measure),
    ],
    done=lambda: acted.env_steps >= config.total_steps,
    threads={
      "learner": lambda: learning.run(acting[0].example),
      **{f"inference-{i}": each.run for i, each in enumerate(acting)},
    },
    server=server,
    stopping=learning.inbox.close,
    close=lambda: inference_lib.close(acting),
  )
