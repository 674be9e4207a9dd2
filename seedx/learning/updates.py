"""Jitted programs for one update of an agent over all learner cores."""

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

from seedx import losses, sharding, types
from seedx.agents import base

_LEAST_WEIGHT = 1e-8


class Order(NamedTuple):
  """What an update is computed from, beside the agent's state.

  Attributes:
    version: `[]` int32, updates before this one.
    rng_key: `[...]` uint32, the data of a key for all updates.
    batch: over all cores.
  """

  version: types.Array
  rng_key: types.Array
  batch: types.Tree


class Result(NamedTuple):
  """What an update returns.

  Attributes:
    state: after the update; () where it is not needed any more.
    output: of the agent.
    skipped: `[]` bool, see `keep_finite`.
  """

  state: base.AgentState | tuple[()]
  output: types.LossOutput
  skipped: jax.Array


class Program(Protocol):
  """An update over all cores."""

  def __call__(self, state: base.AgentState, order: Any) -> Any:
    """Returns the result of an `Order`."""

  def compile(self, state: base.AgentState, order: Any) -> None:
    """Compiles all that runs on several cores, without running it."""


def keep_finite(
  before: types.Tree, after: types.Tree, axis_name: str | None = None
) -> tuple[types.Tree, jax.Array]:
  """Skips an update that is not finite.

  Args:
    before: the state before the update.
    after: the state after it.
    axis_name: the mesh axis over whose cores the update is made, or None.

  Returns:
    `after`, or `before` if a NaN or an infinity is in `after` on any core; and
    `[]` bool, whether the update was skipped so.
  """
  wrong = sum(
    jnp.sum(~jnp.isfinite(leaf), dtype=jnp.float32)
    for leaf in jax.tree.leaves(after)
    if jnp.issubdtype(leaf.dtype, jnp.inexact)
  )
  skipped = losses.sum_over_cores(jnp.float32(wrong), axis_name) > 0
  state = jax.tree.map(
    lambda old, new: jnp.where(skipped, old, new), before, after
  )
  return state, skipped


def computed(
  agent: base.Agent,
  state: base.AgentState,
  rng_key: jax.Array,
  batch: types.Tree,
) -> tuple[base.Gradients, jax.Array, types.LossOutput]:
  """The first half of an update whose halves are made in different places.

  Args:
    agent: made without a mesh axis.
    state: the parameters to compute gradients with.
    rng_key: for this batch.
    batch: what to learn from.

  Returns:
    The gradients; `[]`, the share of the batch that is env steps, for
    `applied`; and the agent's output.
  """
  gradients, output = agent.gradients(state, rng_key, batch)
  return gradients, output.weight / agent.needs.steps(batch), output


def applied(
  agent: base.Agent,
  state: base.AgentState,
  gradients: base.Gradients,
  share: jax.Array | float,
) -> tuple[base.AgentState, jax.Array]:
  """The other half: applies gradients to a state, unless that is not finite.

  Args:
    agent: has the gradients' `apply`.
    state: the state now, maybe some updates after the gradients' own.
    gradients: of one batch, or a part of them, of this part of the state.
    share: see `base.AgentState.counted`.

  Returns:
    The state after them; and `[]` bool, whether they were skipped.
  """
  return keep_finite(state, agent.apply(state, gradients).count_resets(share))


@dataclasses.dataclass(frozen=True)
class OnCore:
  """An agent's update as each core makes it, in the axis `sharding.CORES`.

  A subclass may exchange more with each update.

  Attributes:
    agent: made with that axis.
  """

  agent: base.Agent

  @property
  def order_specs(self) -> Any:
    """The partition specs of an order over the cores."""
    one: Any = sharding.REPLICATED
    return Order(version=one, rng_key=one, batch=self.agent.needs.specs)

  @property
  def result_specs(self) -> Any:
    """The partition specs of a result over the cores."""
    one: Any = sharding.REPLICATED
    each: Any = PartitionSpec(sharding.CORES)
    output = types.LossOutput(weight=one, metrics=one, priorities=each)
    return Result(state=one, output=output, skipped=one)

  def whole(self, state: base.AgentState, order: Any) -> Any:
    """The agent's own `update`.

    Args:
      state: before it, the same on all cores.
      order: with this core's part of the batch.

    Returns:
      A `Result`, with the state before the update where that after it is not
      finite.
    """
    agent = self.agent
    after, output = agent.update(state, _core_key(order), order.batch)
    after = after.count_resets(output.weight / self._steps(order.batch))
    after, skipped = keep_finite(state, after, sharding.CORES)
    output = self._with_lag(output, order.version, order.batch)
    return Result(after, output, skipped)

  def part(
    self, state: base.AgentState, order: Any, index: jax.Array, parts: int
  ) -> types.Tree:
    """The gradients of a micro-batch, for `apply`.

    Args:
      state: before the update.
      order: with this core's part of the batch.
      index: `[]` int32, of the micro-batch.
      parts: number of micro-batches.

    Returns:
      A nest of sums over micro-batches; the agent's outputs in it are times
      their weight.
    """
    batch = sharding.shard(order.batch, self.agent.needs.specs, index, parts)
    key = jax.random.fold_in(_core_key(order), index)
    gradients, output = self.agent.gradients(state, key, batch)
    output = self._with_lag(output, order.version, batch)
    # Avoids 0 / 0 where a micro-batch has no weight.
    weight = jnp.maximum(output.weight, _LEAST_WEIGHT)
    gradients, metrics = jax.tree.map(
      lambda leaf: leaf * weight, (gradients, output.metrics)
    )
    return gradients, types.LossOutput(weight, metrics), self._steps(batch)

  def apply(self, state: base.AgentState, total: types.Tree) -> Any:
    """Applies the mean of all micro-batches' gradients.

    Args:
      state: before the update.
      total: the sum of all that `part` returned.
    """
    gradients, (weight, metrics, _), steps = total
    mean, metrics = jax.tree.map(
      lambda leaf: leaf / weight, (gradients, metrics)
    )
    if "gradient_norm" in metrics:  # Of the mean, not the mean of norms.
      metrics["gradient_norm"] = optax.global_norm(mean.params)
    after, skipped = applied(self.agent, state, mean, weight / steps)
    return Result(after, types.LossOutput(weight, metrics), skipped)

  def _steps(self, batch: types.Tree) -> jax.Array:
    """Env steps, `[]`, of a batch without resets, over all cores."""
    steps = jnp.float32(self.agent.needs.steps(batch))
    return losses.sum_over_cores(steps, sharding.CORES)

  def _with_lag(
    self, output: types.LossOutput, version: types.Array, batch: types.Tree
  ) -> types.LossOutput:
    """Adds the policy lag: mean updates since the experience was acted."""
    lag = self.agent.needs.lag(batch, version)
    if lag is None:
      return output
    total, count = losses.sum_over_cores(lag, sharding.CORES)
    mean = total / jnp.maximum(count, 1e-8)
    return output._replace(metrics=output.metrics | {"policy_lag": mean})


class Whole:
  """The agent's own `update`, on the whole batch."""

  def __init__(self, on_core: OnCore, mesh: jax.sharding.Mesh) -> None:
    """Compiles nothing yet."""
    specs = sharding.REPLICATED, on_core.order_specs
    self._update = sharding.per_core(
      on_core.whole, mesh, specs, on_core.result_specs
    )

  def __call__(self, state: base.AgentState, order: Any) -> Any:
    """Updates a state; see `Program`."""
    return self._update(state, order)

  def compile(self, state: base.AgentState, order: Any) -> None:
    """Compiles the update; see `Program`."""
    self._update.lower(state, order).compile()


class Accumulated:
  """Gradient accumulation: one `apply` of the mean gradient of micro-batches.

  The mean is weighted by `LossOutput.weight`.
  """

  def __init__(
    self, on_core: OnCore, mesh: jax.sharding.Mesh, micro_batches: int
  ) -> None:
    """Compiles nothing yet."""

    def part(state: base.AgentState, order: Any, index: jax.Array) -> Any:
      return on_core.part(state, order, index, micro_batches)

    one = sharding.REPLICATED
    self._micro_batches = micro_batches
    self._part = sharding.per_core(
      part, mesh, (one, on_core.order_specs, one), one
    )
    self._add = jax.jit(
      lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0
    )
    self._apply = jax.jit(on_core.apply)

  def __call__(self, state: base.AgentState, order: Any) -> Any:
    """Updates a state; see `Program`."""
    total = self._part(state, order, np.int32(0))
    for index in range(1, self._micro_batches):
      # Waiting lets an inference step run on the device in between.
      jax.block_until_ready(total)
      more = self._part(state, order, np.int32(index))
      total = self._add(total, more)
    return self._apply(state, total)

  def compile(self, state: base.AgentState, order: Any) -> None:
    """Compiles the gradients of a micro-batch; see `Program`."""
    self._part.lower(state, order, np.int32(0)).compile()


def _core_key(order: Any) -> jax.Array:
  """A key for this update and this core."""
  rng_key = jax.random.wrap_key_data(jnp.asarray(order.rng_key))
  key = jax.random.fold_in(rng_key, order.version)
  return jax.random.fold_in(key, jax.lax.axis_index(sharding.CORES))
