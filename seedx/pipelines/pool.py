"""A pool of inference processes between thin actors and the learner.

    actor: EnvPool --.               .-- inference: act, store --.  unrolls
    actor: EnvPool ---< observations >-- inference: act, store ---> learner:
    actor: EnvPool --'  -> actions   '-- inference: act, store --'  updates
                                             ^---- parameters --------'

Inference processes do the acting half of a SEED learner. They send whole
unrolls to the learner, and fetch its newest parameters. Updates may draw
unrolls from a buffer of the newest ones, and so learn from each several times.

Berner et al. 2019, "Dota 2 with Large Scale Deep Reinforcement Learning",
https://arxiv.org/abs/1912.06680, figure 2; on one machine, Petrenko et al.
2020, "Sample Factory", https://arxiv.org/abs/2006.11751, figure 1.
"""

import dataclasses
import functools
from typing import Self

from seedx import envs, types
from seedx.acting import forwarded, inference_node, local_actor, thin_actor
from seedx.acting import inference as inference_lib
from seedx.agents import base
from seedx.launch import admission, topology
from seedx.learning import learner as learner_lib
from seedx.learning import learners, plans, sampled
from seedx.runtime import process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.ServerConfig):
  """The options of a run with a pool of inference processes.

  Attributes:
    num_inference: number of inference processes of each learner host.
    inference_addresses: their addresses; if empty, they register addresses as
      they join. With --role inference, the process's own address.
    actors: processes that step environments.
    inference: devices of each inference process.
    learner: devices that compute updates.
    buffer: buffer that updates draw from.
  """

  num_inference: int = types.setting(2, changes="resume", low=1, high=2**10)
  inference_addresses: tuple[str, ...] = types.setting(
    (), changes="process", labels=False
  )
  actors: thin_actor.Config = thin_actor.Config()
  inference: inference_lib.Config = inference_lib.Config()
  learner: learner_lib.InboxConfig = learner_lib.InboxConfig()
  buffer: sampled.Config = sampled.Config()

  def __post_init__(self) -> None:
    super().__post_init__()
    self.learner.check_batches(self.learner.parts)
    count = len(self.inference_addresses)
    if count not in (0, 1, self.num_inference):
      raise types.ConfigError(
        f"expected {self.num_inference} inference_addresses, as many as"
        f" num_inference, found {count}"
      )

  @property
  def plan(self) -> plans.Plan:
    """The run's amounts of experience."""
    batch_steps, num_envs = self.learner.batch_steps, self.actors.num_envs
    plan = self.learner.plan(self.total_steps, batch_steps, num_envs=num_envs)
    return dataclasses.replace(plan, reuse=self.buffer.reuse)

  @property
  def message_size(self) -> int:
    """Number of unrolls in a message: the part of a process in a share."""
    return max(1, self.learner.share_size // self.num_inference)

  def with_sockets(self, folder: str) -> Self:
    """Returns the config with a socket in `folder` for each missing address."""
    numbers = range(self.num_inference)
    sockets = tuple(f"unix:{folder}/inference-{k}" for k in numbers)
    addresses = self.inference_addresses or sockets
    config = super().with_sockets(folder)
    return dataclasses.replace(config, inference_addresses=addresses)

  def nodes(self) -> list[topology.Node]:
    """Returns the inference processes, and the actors."""
    actor = thin_actor.Work(
      self.address, self.env, self.actors, security=self.security
    )
    count, needs_jax = self.actors.num_actors, envs.is_functional(self.env)
    actors = topology.Node("actor", thin_actor.run, actor, count, needs_jax)
    processes, nodes = self.num_inference, []
    for k, address in enumerate(self.inference_addresses or [""] * processes):
      work = inference_node.Work(
        address=address,
        process=k,
        processes=processes,
        actor=actor,
        agent=self.agent,
        horizon=self.plan.horizon,
        inference=self.inference,
        unroll_length=self.learner.unroll_length,
        message_size=self.message_size,
      )
      role, run = f"inference-{k}", inference_node.run
      nodes.append(
        topology.Node(role, run, work, 1, True, processes, on_devices=True)
      )
    return [*nodes, actors]

  def learn(self, context: process.Context) -> process.Process:
    """Returns the learner process: unrolls in, updates, parameters out."""
    spec, cores = envs.spec(self.env), self.learner.cores()
    acted = context.acted(spec, self.total_steps)
    seeds, key = context.seeds(self.seed), context.keys(self.seed).replay
    source = functools.partial(self.buffer.source, cores, key)
    learning = learners.of(self, spec, context, acted, wrap=source)
    addresses = admission.Addresses(
      self.num_inference, self.inference_addresses, self.security
    )
    learns = self.learner.unroll_length, self.learner.share_size
    programs = local_actor.Programs.of(learning.agent, spec, *learns)
    service = forwarded.ForwardServer(
      programs,
      self._sizes(learning.agent),
      acted,
      seeds,
      addresses.at,
      newest=learning.newest,
      sink=learning.inbox.put,
    )
    server = self.make_server(self.actors.num_actors + self.num_inference)
    service.bind(server)
    return process.Process(
      acted=acted,
      parts={"agent": learning, "acted": acted, "seeds": seeds},
      begin=learning.begin,
      policy=learning.policy,
      measures=[acted, learning, service, server],
      threads={"learner": lambda: learning.run(programs.example)},
      server=server,
      addresses={"inference": addresses},
      stopping=learning.inbox.close,
    )

  def _sizes(self, agent: base.Agent) -> list[list[inference_lib.Sizes]]:
    """Returns the sizes of the devices of each inference process."""
    sizes = self.actors, self.learner.unroll_length, self.message_size
    each = range(self.num_inference)
    return [self.inference.sizes(agent, *sizes, k, len(each)) for k in each]
