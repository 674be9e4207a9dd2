"""A pool of inference processes between thin actors and the learner.

    actor: EnvPool --.               .-- inference: act, store --.  unrolls
    actor: EnvPool ---< observations >-- inference: act, store ---> learner:
    actor: EnvPool --'  -> actions   '-- inference: act, store --'  updates
                                             ^---- parameters --------'

Inference processes do the acting half of a SEED learner: they act for the
actors, and keep an unroll store. They send whole unrolls to the learner, and
fetch its newest parameters. So the learner receives no observations one by one,
and acting can use several processes and machines. Updates may draw unrolls from
a buffer of the newest ones, and so learn from each several times.

Berner et al. 2019, "Dota 2 with Large Scale Deep Reinforcement Learning",
https://arxiv.org/abs/1912.06680, figure 2; on one machine, Petrenko et al.
2020, "Sample Factory", https://arxiv.org/abs/2006.11751, figure 1.
"""

import dataclasses
from typing import Self

from seedx import envs, types, wire
from seedx.acting import (
  forwarded,
  inference_node,
  local_actor,
  thin_actor,
)
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
    num_inference: number of inference processes, over which the actors are
      divided; with several learner hosts, of each host.
    inference_addresses: addresses of the inference processes; if empty, they
      register addresses as they join. With --role inference, its own address.
    actors: processes that step environments.
    inference: devices of each inference process that compute actions.
    learner: devices that compute updates.
    buffer: the buffer that updates draw from.
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
    for address in self.inference_addresses:
      wire.check_address(address)

  @property
  def plan(self) -> plans.Plan:
    """The run's amounts of experience."""
    plan = self.learner.plan(
      self.total_steps,
      self.learner.batch_steps,
      num_envs=self.actors.num_envs,
    )
    return dataclasses.replace(plan, reuse=self.buffer.reuse)

  @property
  def message_size(self) -> int:
    """Number of unrolls in a message of an inference process."""
    size = self.learner.share_size
    return size // forwarded.num_parts(size, self.num_inference)

  def with_sockets(self, folder: str) -> Self:
    """Returns the config with a socket in `folder` for each missing address."""
    sockets = (
      f"unix:{folder}/inference-{k}" for k in range(self.num_inference)
    )
    addresses = self.inference_addresses or tuple(sockets)
    config = super().with_sockets(folder)
    return dataclasses.replace(config, inference_addresses=addresses)

  def nodes(self) -> list[topology.Node]:
    """Returns the inference processes, and the actors."""
    count = self.num_inference
    nodes = []
    for k, address in enumerate(self.inference_addresses or ("",) * count):
      work = inference_node.Work(
        address=address,
        learner=self.address,
        process=k,
        processes=count,
        env=self.env,
        agent=self.agent,
        horizon=self.plan.horizon,
        actors=self.actors,
        inference=self.inference,
        unroll_length=self.learner.unroll_length,
        message_size=self.message_size,
        security=self.security,
      )
      nodes.append(
        topology.Node(
          f"inference-{k}",
          inference_node.run,
          work,
          needs_jax=True,
          sharing=count,
        )
      )
    actor = thin_actor.Work(
      self.address, self.env, self.actors, security=self.security
    )
    count, needs_jax = self.actors.num_actors, envs.is_functional(self.env)
    return [
      *nodes,
      topology.Node("actor", thin_actor.run, actor, count, needs_jax),
    ]

  def learn(self, context: process.Context) -> process.Process:
    """Returns the learner process: unrolls in, updates, parameters out."""
    self._check_addresses()
    spec = envs.spec(self.env)
    acted = context.acted(spec, self.total_steps)
    seeds = context.seeds(self.seed)
    cores, key = self.learner.cores(), context.keys(self.seed).replay
    learning = learners.of(
      self,
      spec,
      context,
      acted,
      wrap=lambda once: self.buffer.source(once, cores, key),
    )
    addresses = admission.Addresses(
      self.num_inference, self.inference_addresses, self.security
    )
    service = forwarded.ForwardServer(
      local_actor.Programs.of(
        learning.agent,
        spec,
        self.learner.unroll_length,
        self.message_size,
      ),
      self.learner.share_size // self.message_size,
      self._slots(learning.agent),
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
      threads={"learner": lambda: learning.run(service.example)},
      server=server,
      addresses={"inference": addresses},
      stopping=learning.inbox.close,
    )

  def _check_addresses(self) -> None:
    found, expected = len(self.inference_addresses), self.num_inference
    if found and found != expected:
      raise types.ConfigError(
        f"expected {expected} inference_addresses, one for each of num_inference"
        f" processes, found {found}"
      )

  def _slots(self, agent: base.Agent) -> list[int]:
    """Returns the number of slots of each inference process."""
    sizes = self.inference.sizes(
      agent,
      self.actors,
      self.learner.unroll_length,
      self.message_size,
      self.num_inference,
    )
    slots = [x.layout.num_slots for x in sizes]
    devices = len(slots) // self.num_inference
    return [sum(slots[k : k + devices]) for k in range(0, len(slots), devices)]
