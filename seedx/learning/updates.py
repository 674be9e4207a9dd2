"""Jitted programs that update an agent over all learner cores."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

from seedx import losses, sharding, types
from seedx.agents import base

_LEAST_WEIGHT = 1e-8


class Inputs(NamedTuple):
  """Inputs of an update, besides the agent's state.

  Attributes:
    version: `[]` int32, number of updates before this one.
    rng_key: `[...]` uint32, data of the random key from which every update
      derives its own.
    batch: batch, sharded over all cores.
  """

  version: types.Array
  rng_key: types.Array
  batch: types.Tree


class Result(NamedTuple):
  """Result of an update.

  Attributes:
    state: state after the update; () when it is not needed any more.
    output: output of the agent's loss.
    skipped: `[]` bool, whether the update was skipped, see `keep_finite`.
  """

  state: base.AgentState | tuple[()]
  output: types.LossOutput
  skipped: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Metrics:
  """The metrics of an update in one array: each returned array costs time.

  Attributes:
    names: names of the metrics.
    values: `[len(names)]` float32.
  """

  names: tuple[str, ...] = dataclasses.field(metadata={"static": True})
  values: types.Array

  @classmethod
  def of(cls, metrics: Mapping[str, types.Array]) -> "Metrics":
    """Joins scalars into one array, in the order of their names."""
    names = tuple(sorted(metrics))
    values = [metrics[name] for name in names]
    return cls(names, jnp.array(values, jnp.float32))

  def copied(self) -> dict[str, float]:
    """Copies the metrics to the host."""
    values = np.asarray(self.values).tolist()
    return dict(zip(self.names, values, strict=True))


class Program(Protocol):
  """An update over all cores."""

  def __call__(self, state: base.AgentState, inputs: Any) -> Any:
    """Makes the update, and returns its `Result` with `Metrics`."""

  def compile(self, state: base.AgentState, inputs: Any) -> None:
    """Compiles the program that runs on all cores, without running it."""


def keep_finite(
  before: types.Tree, after: types.Tree, axis_name: str | None = None
) -> tuple[types.Tree, jax.Array]:
  """Skips an update whose result has a NaN or an infinity on any core.

  Args:
    before: state before the update.
    after: state after the update.
    axis_name: mesh axis of the cores; None outside of a mesh.

  Returns:
    `after`, or `before` if the update is skipped; and `[]` bool, whether it is
    skipped.
  """
  num_wrong = sum(
    _count(~jnp.isfinite(leaf))
    for leaf in jax.tree.leaves(after)
    if jnp.issubdtype(leaf.dtype, jnp.inexact)
  )
  skipped = losses.sum_over_cores(jnp.float32(num_wrong), axis_name) > 0
  state = jax.tree.map(
    lambda old, new: jnp.where(skipped, old, new), before, after
  )
  return state, skipped


def _count(flags: jax.Array) -> jax.Array:
  """Returns the number of true flags, `[]` float32.

  On a CPU, sums over one axis at a time take half as long as one sum, since XLA
  vectorizes those over a leading axis.
  """
  count = flags.astype(jnp.float32)
  while count.ndim:
    count = jnp.sum(count, axis=0)
  return count


def compute_gradients(
  agent: base.Agent,
  state: base.AgentState,
  rng_key: jax.Array,
  batch: types.Tree,
) -> tuple[base.Gradients, jax.Array, types.LossOutput]:
  """Computes gradients that `apply_gradients` may apply to another state.

  The agent must be made without a mesh axis.

  Returns:
    The gradients; `[]`, the fraction of the batch's steps that are env steps;
    and the output of the agent's loss.
  """
  gradients, output = agent.gradients(state, rng_key, batch)
  return gradients, output.weight / agent.needs.steps(batch), output


def apply_gradients(
  agent: base.Agent,
  state: base.AgentState,
  gradients: base.Gradients,
  fraction: jax.Array | float,
) -> tuple[base.AgentState, jax.Array]:
  """Applies gradients to a state, unless the result is not finite.

  Args:
    agent: the agent that learns.
    state: state to update; it may be newer than in `compute_gradients`.
    gradients: gradients of all or some of the state's parameters.
    fraction: `[]`, fraction of the batch's steps that are env steps.

  Returns:
    The state after the update; and `[]` bool, whether the update was skipped.
  """
  return keep_finite(
    state, agent.apply(state, gradients).count_resets(fraction)
  )


@dataclasses.dataclass(frozen=True)
class OnCore:
  """An agent's update on each core of the mesh axis `sharding.CORES`.

  A subclass may have more inputs and results.

  Attributes:
    agent: agent made with this mesh axis.
  """

  agent: base.Agent

  @property
  def input_specs(self) -> Any:
    """Partition specs of an update's inputs over the cores."""
    one: Any = sharding.REPLICATED
    return Inputs(version=one, rng_key=one, batch=self.agent.needs.specs)

  @property
  def result_specs(self) -> Any:
    """Partition specs of an update's result over the cores."""
    one: Any = sharding.REPLICATED
    each: Any = PartitionSpec(sharding.CORES)
    output = types.LossOutput(weight=one, metrics=one, priorities=each)
    return Result(state=one, output=output, skipped=one)

  def whole(self, state: base.AgentState, inputs: Any) -> Any:
    """Updates a state with the agent's `update` on this core's part of a batch.

    The state is the same on all cores. It is not donated: an update that is not
    finite keeps it, so donation would save no memory.
    """
    agent = self.agent
    after, output = agent.update(state, _core_key(inputs), inputs.batch)
    after = after.count_resets(output.weight / self._steps(inputs.batch))
    after, skipped = keep_finite(state, after, sharding.CORES)
    output = self._with_lag(output, inputs.version, inputs.batch)
    return Result(after, output, skipped)

  def part(
    self, state: base.AgentState, inputs: Any, index: jax.Array, parts: int
  ) -> types.Tree:
    """Computes the gradients of one micro-batch.

    Args:
      state: state before the update.
      inputs: inputs of the update, with this core's part of the batch.
      index: `[]` int32 index of the micro-batch.
      parts: number of micro-batches.

    Returns:
      A nest whose sum over micro-batches is the input of `apply`. Gradients and
      metrics are multiplied by the micro-batch's weight.
    """
    batch = sharding.shard(inputs.batch, self.agent.needs.specs, index, parts)
    key = jax.random.fold_in(_core_key(inputs), index)
    gradients, output = self.agent.gradients(state, key, batch)
    output = self._with_lag(output, inputs.version, batch)
    # Avoids 0 / 0 in `apply` if no micro-batch has a weight.
    weight = jnp.maximum(output.weight, _LEAST_WEIGHT)
    gradients, metrics = jax.tree.map(
      lambda leaf: leaf * weight, (gradients, output.metrics)
    )
    return gradients, types.LossOutput(weight, metrics), self._steps(batch)

  def apply(self, state: base.AgentState, total: types.Tree) -> Any:
    """Applies mean gradients; `total` is the sum of the results of `part`."""
    gradients, (weight, metrics, _), steps = total
    mean, metrics = jax.tree.map(
      lambda leaf: leaf / weight, (gradients, metrics)
    )
    metrics |= _norms_of_mean(mean.params, metrics)
    after, skipped = apply_gradients(self.agent, state, mean, weight / steps)
    return Result(after, types.LossOutput(weight, metrics), skipped)

  def _steps(self, batch: types.Tree) -> jax.Array:
    """Returns `[]`, the number of steps in all cores' batches, with resets."""
    steps = jnp.float32(self.agent.needs.steps(batch))
    return losses.sum_over_cores(steps, sharding.CORES)

  def _with_lag(
    self, output: types.LossOutput, version: types.Array, batch: types.Tree
  ) -> types.LossOutput:
    """Adds the policy lag, averaged over env steps, to the metrics."""
    lag = self.agent.needs.lag(batch, version)
    if lag is None:
      return output
    total, count = losses.sum_over_cores(lag, sharding.CORES)
    mean = total / jnp.maximum(count, 1e-8)
    return output._replace(metrics=output.metrics | {"policy_lag": mean})


class Whole:
  """Program that calls the agent's `update` on the whole batch."""

  def __init__(self, on_core: OnCore, mesh: jax.sharding.Mesh) -> None:
    specs = sharding.REPLICATED, on_core.input_specs
    self._update = sharding.per_core(
      packed(on_core.whole), mesh, specs, on_core.result_specs
    )

  def __call__(self, state: base.AgentState, inputs: Any) -> Any:
    return self._update(state, inputs)

  def compile(self, state: base.AgentState, inputs: Any) -> None:
    """Compiles the update."""
    self._update.lower(state, inputs).compile()


class Accumulation:
  """Program that applies the mean of the micro-batches' gradients.

  The mean is weighted by `LossOutput.weight`.
  """

  def __init__(
    self, on_core: OnCore, mesh: jax.sharding.Mesh, micro_batches: int
  ) -> None:
    def part(state: base.AgentState, inputs: Any, index: jax.Array) -> Any:
      return on_core.part(state, inputs, index, micro_batches)

    one = sharding.REPLICATED
    self._micro_batches = micro_batches
    self._part = sharding.per_core(
      part, mesh, (one, on_core.input_specs, one), one
    )
    self._add = jax.jit(
      lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0
    )
    self._apply = jax.jit(packed(on_core.apply))

  def __call__(self, state: base.AgentState, inputs: Any) -> Any:
    total = self._part(state, inputs, np.int32(0))
    for index in range(1, self._micro_batches):
      # Inference on the same device can run between two micro-batches.
      jax.block_until_ready(total)
      more = self._part(state, inputs, np.int32(index))
      total = self._add(total, more)
    return self._apply(state, total)

  def compile(self, state: base.AgentState, inputs: Any) -> None:
    """Compiles the program that computes a micro-batch's gradients."""
    self._part.lower(state, inputs, np.int32(0)).compile()


def _norms_of_mean(
  gradients: types.Tree, metrics: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
  """Returns the norms of mean gradients, which replace means of norms."""
  parts = {"gradient_norm": gradients}
  if isinstance(gradients, Mapping):
    parts |= {f"gradient_norm_{key}": x for key, x in gradients.items()}
  return {
    # A norm that is NaN stays unknown, see `optimizers.Optimizer.measure`.
    name: jnp.where(jnp.isnan(metrics[name]), jnp.nan, optax.global_norm(part))
    for name, part in parts.items()
    if name in metrics
  }


def packed(update: Callable[..., Any]) -> Callable[..., Any]:
  """Returns the function with its metrics in one array, see `Metrics`."""

  def packed(*arguments: Any) -> Any:
    result = update(*arguments)
    metrics = Metrics.of(result.output.metrics)
    return result._replace(output=result.output._replace(metrics=metrics))

  return packed


def _core_key(inputs: Any) -> jax.Array:
  rng_key = jax.random.wrap_key_data(jnp.asarray(inputs.rng_key))
  key = jax.random.fold_in(rng_key, inputs.version)
  return jax.random.fold_in(key, jax.lax.axis_index(sharding.CORES))
