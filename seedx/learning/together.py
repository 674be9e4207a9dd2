"""A learner that makes the same updates as those of other hosts.

See `runtime.hosts` for what hosts tell each other with each update.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from seedx import losses, metrics, sharding, types
from seedx.agents import base
from seedx.learning import experience, learner, updates
from seedx.runtime import hosts as hosts_lib


class Order(NamedTuple):
  """An `updates.Order` over the cores of all hosts, and what hosts say.

  Attributes:
    version: see there.
    rng_key: see there.
    batch: see there.
    said: for each core what its host says with its first core, `[cores, ...]`.
  """

  version: types.Array
  rng_key: types.Array
  batch: types.Tree
  said: hosts_lib.Report


class Result(NamedTuple):
  """An `updates.Result`, and what all hosts say together.

  Attributes:
    state: see there.
    output: see there.
    skipped: see there.
    said: the sum over all hosts.
  """

  state: base.AgentState | tuple[()]
  output: types.LossOutput
  skipped: jax.Array
  said: hosts_lib.Report


@dataclasses.dataclass(frozen=True)
class OnCore(updates.OnCore):
  """An update that also sums what the hosts say.

  Where no host has a batch, the state stays as it is.
  """

  @property
  def order_specs(self) -> Any:
    """See `updates.OnCore`."""
    said: Any = PartitionSpec(sharding.CORES)
    return Order(**super().order_specs._asdict(), said=said)

  @property
  def result_specs(self) -> Any:
    """See `updates.OnCore`."""
    said: Any = sharding.REPLICATED
    return Result(**super().result_specs._asdict(), said=said)

  def whole(self, state: base.AgentState, order: Order) -> Result:
    """See `updates.OnCore`."""
    result = super().whole(state, order)
    return _unless_idle(state, result, _heard(order.said))

  def part(
    self, state: base.AgentState, order: Order, index: jax.Array, parts: int
  ) -> types.Tree:
    """See `updates.OnCore`; the first micro-batch has what the hosts say."""
    total = super().part(state, order, index, parts)
    said = jax.tree.map(
      lambda x: jnp.where(index == 0, x, 0), _heard(order.said)
    )
    return total, said

  def apply(self, state: base.AgentState, total: types.Tree) -> Result:
    """See `updates.OnCore`."""
    total, said = total
    return _unless_idle(state, super().apply(state, total), said)


class Together(learner.Learner):
  """A learner whose updates are of the batches of all hosts.

  Only one thread may call `learn`, or `run`. The same `rng_key` is needed on
  all hosts.
  """

  def __init__(
    self,
    agent: base.Agent,
    config: learner.Config,
    source: experience.Experience,
    rng_key: jax.Array,
    *,
    hosts: hosts_lib.Hosts,
    **options: Any,
  ) -> None:
    """See `learner.Learner`.

    Args:
      agent: see there.
      config: see there.
      source: see there.
      rng_key: see there.
      hosts: make the same updates.
      **options: see there.

    Raises:
      types.ConfigError: as there, or where a device does not exist on a host.
    """
    self._hosts = hosts
    # A part of a batch without experience, for each core.
    self._nothing: list[types.Tree] = []
    super().__init__(agent, config, source, rng_key, **options)

  def run(self, example: Callable[[], types.Share]) -> None:
    """Learns from the inbox until all hosts agree to stop."""
    try:
      super().run(example)
    finally:
      self._hosts.over.set()  # Without this host, none agrees on anything.

  def warm_up(self, shares: Sequence[types.Share]) -> None:
    """Compiles the update on all hosts, and then runs it once.

    They wait for each other no longer than half a minute in the first call.
    """
    parts = self._source.example(shares).parts
    self._nothing = [jax.tree.map(jnp.zeros_like, part) for part in parts]
    order = self._with_said(hosts_lib.empty_report(), self._nothing)
    self._update.compile(self._state, order)
    self._hosts.meet("compiled")
    jax.block_until_ready(self._update(self._state, order))

  def learn_from(self, shares: Sequence[types.Share]) -> None:
    """Makes the updates to which one share per core leads, at least one.

    Shares must lead to as many on the other hosts.
    """
    if not self._nothing:
      self.warm_up(shares)
    steps = self.steps
    for batch in self._source(shares):
      self.learn(batch)
    if self.steps == steps:
      self.learn(None)

  def measure(self) -> dict[str, metrics.Value]:
    """See `learner.Learner`."""
    line = super().measure()
    # Whether other hosts had a batch is known of those that have been read.
    known = self.steps - len(self._pending)
    learner_steps = known - self._skipped.updates - self._idle
    own = self._hosts.measure()
    return {**line, "learner_steps": learner_steps, **own}

  def _all_cores(self, config: learner.Config) -> Sequence[jax.Device]:
    found, indices = [], config.learner_devices
    for host in range(jax.process_count()):
      local = jax.local_devices(process_index=host)
      if max(indices) >= len(local):
        raise types.ConfigError(
          f"expected the devices {list(indices)} on each host, found"
          f" {len(local)} devices on host {host}"
        )
      found += [local[index] for index in indices]
    return found

  def _on_core(self, agent: base.Agent) -> updates.OnCore:
    return OnCore(agent)

  def _is_over(self) -> bool:
    return self._hosts.over.is_set()

  def _batches(self) -> Iterator[experience.Batch | None]:
    """The batches of the inbox.

    None where this host has had none for too long, or wants to stop: the others
    wait for it in their next update.
    """
    since, starved = time.monotonic(), False
    while True:
      # A starved host waits once, not in every update.
      at_once = starved and self._hosts.has_batch
      due = since + (0.0 if at_once else self._hosts.starved_seconds)
      found = self.inbox.get(max(0.0, due - time.monotonic()))
      for batch in self._source(found) if found else ():
        yield batch
        since, starved = time.monotonic(), False
        due = since + self._hosts.starved_seconds
      if self._stop.is_set() or time.monotonic() >= due:
        yield None
        since, starved = time.monotonic(), True

  def _order_of(self, batch: experience.Batch | None) -> Order:
    # Else the exchange would wait for others, and acting here for the exchange.
    self._hosts.meet("update")
    said = self._hosts.report(batch is not None)
    return self._with_said(said, batch.parts if batch else self._nothing)

  def _with_said(
    self, said: hosts_lib.Report, parts: Sequence[types.Tree]
  ) -> Order:
    # The first core says it for the host.
    of_cores = [said, *(hosts_lib.empty_report() for _ in self.cores[1:])]
    shards = [
      jax.device_put(jax.tree.map(lambda leaf: leaf[None], x), core)
      for x, core in zip(of_cores, self.cores, strict=True)
    ]
    each = PartitionSpec(sharding.CORES)
    together = sharding.assemble(shards, self._mesh, each)
    return Order(**self._order(parts)._asdict(), said=together)

  def _batches_in(self, result: Result) -> int:
    return int(result.said.batches)

  def _read(self, result: Result) -> None:
    self._hosts.add_reports(result.said)


def _heard(said: hosts_lib.Report) -> hosts_lib.Report:
  """What all hosts say together, of what each core's says."""
  own = jax.tree.map(lambda leaf: leaf[0], said)
  return losses.sum_over_cores(own, sharding.CORES)


def _unless_idle(
  before: base.AgentState, result: updates.Result, said: hosts_lib.Report
) -> Result:
  """The result, with the state before the update where no host had a batch."""
  state = jax.tree.map(
    lambda old, new: jnp.where(said.batches > 0, new, old), before, result.state
  )
  return Result(state, result.output, result.skipped, said)
