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

import jax

from seedx import envs, launch, sharding, types
from seedx.acting import (
  local_actor,
  parameters,
  sessions,
  unroll_actor,
  unroll_server,
  unroll_store,
)
from seedx.agents import base
from seedx.learning import experience
from seedx.learning import learner as learner_lib
from seedx.runtime import process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.ServerConfig):
  """The options of an IMPALA run.

  Attributes:
    env: the environment.
    agent: that acts and learns.
    actors: processes that act.
    fetch_interval: env steps of an actor between two fetches of parameters; 0
      for a fetch after every unroll. The paper of Ape-X has 400.
    learner: devices that compute updates.
  """

  env: envs.Config = envs.Config()
  agent: base.Config
  actors: sessions.Config = sessions.Config()
  fetch_interval: int = 0
  learner: learner_lib.InboxConfig = learner_lib.InboxConfig()

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    super().__post_init__()
    types.check_ranges(self, fetch_interval=(0, 2**31 - 1))
    self.learner.check_batches(self.learner.parts)

  @property
  def plan(self) -> experience.Plan:
    """The experience that updates are computed from."""
    return experience.Plan(
      self.total_steps,
      self.learner.batch_steps,
      parts=self.learner.parts,
      hosts=self.learner.hosts,
      unroll_length=self.learner.unroll_length,
    )


def nodes(config: Config) -> list[launch.Node]:
  """The actors, to be launched anywhere that reaches the learner."""
  work = unroll_actor.Work(
    address=config.address,
    env=config.env,
    agent=config.agent,
    horizon=config.plan.horizon,
    actors=config.actors,
    unroll_length=config.learner.unroll_length,
    fetch_interval=config.fetch_interval,
    security=config.security,
  )
  return [
    launch.Node(
      "actor",
      unroll_actor.run,
      work,
      count=config.actors.num_actors,
      needs_jax=True,
    )
  ]


def learn(config: Config, context: process.Context) -> process.Process:
  """The learner process: takes unrolls in, updates, hands parameters out.

  Raises:
    types.ConfigError: the environment or a device does not exist, or the agent
      cannot learn so.
  """
  spec = envs.spec(config.env)
  agent = config.plan.agent(config.agent, spec, sharding.CORES)
  period = config.learner.unroll_length
  hosts = context.hosts
  learner_key, replay_key = jax.random.split(jax.random.key(config.seed))
  acted = hosts.acted(spec.frames_per_step, config.total_steps)
  source = config.plan.source(
    agent, period, config.learner.cores(), hosts.own_key(replay_key), acted
  )
  learning = learner_lib.Learner(
    agent,
    config.learner,
    source,
    learner_key,
    stop=context.stop,
    hosts=hosts,
  )
  seeds = hosts.counted(sessions.Seeds(config.seed, hosts.index))
  connected = sessions.Sessions(
    agent.exploration(config.actors.num_envs),
    acted,
    seeds,
    envs.returns_are_sums(config.env),
  )
  layout = unroll_store.Layout.of(agent, period, config.learner.share_size)
  unrolls = unroll_server.UnrollServer(
    local_actor.Programs(agent, spec, layout),
    connected,
    max_rows=config.actors.envs_per_actor,
    newest=learning.newest,
    sink=learning.inbox.put,
  )
  server = config.make_server(config.actors.num_actors)
  unrolls.bind(server)
  parameters.Source(learning.newest).bind(server)
  return process.Process(
    acted=acted,
    parts={"learner": learning, "acted": acted, "seeds": seeds},
    replay=learning.replay,
    policy=learning.policy,
    measures=[
      acted.measure,
      learning.measure,
      connected.measure,
      server.measure,
    ],
    done=lambda: acted.env_steps >= config.total_steps,
    threads={"learner": lambda: learning.run(unrolls.example)},
    server=server,
  )
