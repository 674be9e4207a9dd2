"""A learner that makes the same updates as the learners of other hosts.

With each update, the hosts also sum their reports, see `runtime.hosts`: so all
act on the same numbers after the same update, and none waits between updates.
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
from seedx.runtime import hosts


class Inputs(NamedTuple):
  """The `updates.Inputs` over the cores of all hosts, and the hosts' reports.

  Attributes:
    reports: `[cores, ...]`, each host's report at its first core, and zeros at
      its other cores.
  """

  version: types.Array
  rng_key: types.Array
  batch: types.Tree
  reports: hosts.Report


class Result(NamedTuple):
  """An `updates.Result`, with `reports`, the sum of all hosts' reports."""

  state: base.AgentState | tuple[()]
  output: types.LossOutput
  skipped: jax.Array
  reports: hosts.Report


@dataclasses.dataclass(frozen=True)
class OnCore(updates.OnCore):
  """An update that also sums the hosts' reports.

  The state stays the same if no host has a batch.
  """

  @property
  def input_specs(self) -> Any:
    """Partition specs of an update's inputs over the cores."""
    reports: Any = PartitionSpec(sharding.CORES)
    return Inputs(**super().input_specs._asdict(), reports=reports)

  @property
  def result_specs(self) -> Any:
    """Partition specs of an update's result over the cores."""
    reports: Any = sharding.REPLICATED
    return Result(**super().result_specs._asdict(), reports=reports)

  def whole(self, state: base.AgentState, inputs: Inputs) -> Result:
    """Updates the state, and sums the reports."""
    result = super().whole(state, inputs)
    return _unless_idle(state, result, _summed(inputs.reports))

  def part(
    self, state: base.AgentState, inputs: Inputs, index: jax.Array, parts: int
  ) -> types.Tree:
    """Computes gradients; the first micro-batch also sums the reports."""
    total = super().part(state, inputs, index, parts)
    reports = jax.tree.map(
      lambda x: jnp.where(index == 0, x, 0), _summed(inputs.reports)
    )
    return total, reports

  def apply(self, state: base.AgentState, total: types.Tree) -> Result:
    """Applies the mean gradients, and returns the reports."""
    total, reports = total
    return _unless_idle(state, super().apply(state, total), reports)


class MultihostLearner(learner.Learner):
  """A learner that learns from the batches of all hosts.

  All hosts need the same `rng_key`. Only one thread may call `learn` or `run`.
  """

  def __init__(
    self,
    agent: base.Agent,
    config: learner.DevicesConfig,
    source: experience.Experience,
    rng_key: jax.Array,
    *,
    hosts: hosts.Hosts,
    **options: Any,
  ) -> None:
    """Makes the learner of one host; see `learner.Learner` for the arguments.

    Raises:
      types.ConfigError: as in `learner.Learner`, or a device does not exist on
        one of the hosts.
    """
    self._hosts = hosts
    # Each core's part of an empty batch.
    self._nothing: list[types.Tree] = []
    super().__init__(agent, config, source, rng_key, **options)

  def run(self, example: Callable[[], types.Share]) -> None:
    """Learns from the inbox until all hosts agree to stop."""
    try:
      super().run(example)
    finally:
      self._hosts.over.set()  # The hosts cannot agree without this host.

  def warm_up(self, shares: Sequence[types.Share]) -> None:
    """Compiles the update on all hosts, then runs it without an effect.

    The hosts meet in between, because a running update waits at most half a
    minute for the other hosts.
    """
    self._nothing = self._zeros(shares)
    inputs = self._with_report(self._hosts.empty_report(), self._nothing)
    self._update.compile(self._state, inputs)
    self._hosts.meet("compiled")
    jax.block_until_ready(self._update(self._state, inputs))

  def learn_from(self, shares: Sequence[types.Share]) -> None:
    """Makes at least one update, and the same number on all hosts."""
    if not self._nothing:
      self.warm_up(shares)
    version = self.version
    for batch in self.source(shares):
      self.learn(batch)
    if self.version == version:
      self.learn(None)

  def measure(self) -> dict[str, metrics.Value]:
    """Returns the fields of `learner.Learner`, and those of the hosts."""
    line = super().measure()
    # Only the result of an update shows whether another host had a batch.
    finished = self.version - len(self._pending)
    learner_steps = finished - self._skipped.updates - self._idle
    of_hosts = self._hosts.measure()
    return {**line, "learner_steps": learner_steps, **of_hosts}

  def _all_cores(self, config: learner.DevicesConfig) -> Sequence[jax.Device]:
    cores, indices = [], config.learner_devices
    for host in range(jax.process_count()):
      local = jax.local_devices(process_index=host)
      if max(indices) >= len(local):
        raise types.ConfigError(
          f"expected the devices {list(indices)} on each host, found"
          f" {len(local)} devices on host {host}"
        )
      cores += [local[index] for index in indices]
    return cores

  def _on_core(self, agent: base.Agent) -> updates.OnCore:
    return OnCore(agent)

  def _is_over(self) -> bool:
    return self._hosts.over.is_set()

  def _batches(self) -> Iterator[experience.Batch | None]:
    """Yields the batches of the inbox, and None for updates without one.

    The other hosts wait for this one in each update, so it takes part without
    a batch when it is starved or wants to stop.
    """
    since, starved = time.monotonic(), False
    while True:
      # A starved host waits once, not in every update.
      at_once = starved and self._hosts.has_batch
      due = since + (0.0 if at_once else self._hosts.starved_seconds)
      shares = self.inbox.get(max(0.0, due - time.monotonic()))
      for batch in self.source(shares) if shares else ():
        yield batch
        since, starved = time.monotonic(), False
        due = since + self._hosts.starved_seconds
      if self._stop.is_set() or time.monotonic() >= due:
        yield None
        since, starved = time.monotonic(), True

  def _inputs_of(self, batch: experience.Batch | None) -> Inputs:
    # Without this meeting, the update would wait on the device for other hosts,
    # and inference for the update.
    self._hosts.meet("update")
    report = self._hosts.report(batch is not None)
    return self._with_report(report, batch.parts if batch else self._nothing)

  def _with_report(
    self, report: hosts.Report, parts: Sequence[types.Tree]
  ) -> Inputs:
    # The sum over all cores thus has each host's report once.
    of_cores = [report, *(self._hosts.empty_report() for _ in self.cores[1:])]
    shards = [
      jax.device_put(jax.tree.map(lambda leaf: leaf[None], x), core)
      for x, core in zip(of_cores, self.cores, strict=True)
    ]
    each = PartitionSpec(sharding.CORES)
    reports = sharding.assemble(shards, self._mesh, each)
    return Inputs(**self._inputs(parts)._asdict(), reports=reports)

  def _batches_in(self, result: Result) -> int:
    return int(result.reports.batches)

  def _read(self, result: Result) -> None:
    self._hosts.add_reports(result.reports)


def _summed(reports: hosts.Report) -> hosts.Report:
  of_core = jax.tree.map(lambda leaf: leaf[0], reports)
  return losses.sum_over_cores(of_core, sharding.CORES)


def _unless_idle(
  before: base.AgentState, result: updates.Result, reports: hosts.Report
) -> Result:
  """Returns the result, with the old state if no host had a batch."""
  state = jax.tree.map(
    lambda old, new: jnp.where(reports.batches > 0, new, old),
    before,
    result.state,
  )
  return Result(state, result.output, result.skipped, reports)
