"""Jitted programs for one update of an agent over all learner cores."""

import functools
from typing import NamedTuple, Protocol

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

from seedx import losses, sharding, types
from seedx.agents import base
from seedx.runtime import hosts

# `types.Unroll`, or `types.Sample` for an agent that needs windows.
Batch = types.Unroll | types.Sample
# Sums over micro-batches, each times its weight; and their `steps_of`.
_Total = tuple[base.Gradients, types.LossOutput, jax.Array]


class Order(NamedTuple):
  """What an update is computed from, beside the agent's state.

  Attributes:
    version: `[]` int32, updates before this one.
    rng_key: `[...]` uint32, the data of a key for all updates.
    batch: over the cores of all hosts.
    said: for each core what its host says with its first core, `[cores, ...]`;
      () where there is one host.
  """

  version: types.Array
  rng_key: types.Array
  batch: Batch
  said: hosts.Said | tuple[()] = ()


class Result(NamedTuple):
  """What an update returns.

  Attributes:
    state: after the update; () where it is not needed any more.
    output: of the agent.
    skipped: `[]` bool, see `keep_finite`.
    said: by all hosts together; () where there is one.
  """

  state: base.AgentState | tuple[()]
  output: types.LossOutput
  skipped: jax.Array
  said: hosts.Said | tuple[()]


class Program(Protocol):
  """An update over the cores of all hosts."""

  def __call__(self, state: base.AgentState, order: Order) -> Result:
    """Updates a state."""

  def compile(self, state: base.AgentState, order: Order) -> None:
    """Compiles what exchanges something with other hosts.

    They wait for each other no longer than half a minute in the first call, so
    all of them should have done this before.
    """


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
  agent: base.Agent, state: base.AgentState, rng_key: jax.Array, batch: Batch
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
  return gradients, output.weight / steps_of(agent, batch), output


def applied(
  agent: base.Agent,
  state: base.AgentState,
  gradients: base.Gradients,
  share: jax.Array | float,
) -> tuple[base.AgentState, jax.Array]:
  """The other half: applies gradients to a state, unless that is not finite.

  Args:
    agent: made without a mesh axis.
    state: the state now, maybe some updates after the gradients' own.
    gradients: of one batch, or a part of them, of this part of the state.
    share: see `base.AgentState.counted`.

  Returns:
    The state after them; and `[]` bool, whether they were skipped.
  """
  return keep_finite(state, agent.apply(state, gradients).counted(share))


def on_core(agent: base.Agent, state: base.AgentState, order: Order) -> Result:
  """The agent's own update of a core, inside the mesh axis `sharding.CORES`.

  Args:
    agent: made with that axis.
    state: before it, the same on all cores.
    order: with this core's part of the batch.

  Returns:
    The state after it, unless it is not finite.
  """
  after, output = agent.update(state, _core_key(order), order.batch)
  steps = losses.sum_over_cores(steps_of(agent, order.batch), sharding.CORES)
  after = after.counted(output.weight / steps)
  after, skipped = keep_finite(state, after, sharding.CORES)
  said = _heard(order.said)
  output = _with_lag(output, order.version, order.batch)
  return Result(_unless_idle(state, after, said), output, skipped, said)


def steps_of(agent: base.Agent, batch: Batch) -> jax.Array:
  """Env steps, `[]`, that the agent learns from in a batch without resets."""
  if isinstance(batch, types.Sample):
    size = len(batch.importance_weight) * agent.needs.learned_steps
  else:
    length, size = batch.version.shape
    size *= length - 1
  return jnp.float32(size)


class Whole:
  """The agent's own `update`, on the whole batch."""

  def __init__(self, agent: base.Agent, mesh: jax.sharding.Mesh) -> None:
    """Compiles nothing yet."""
    one = sharding.REPLICATED
    self._update = sharding.per_core(
      functools.partial(on_core, agent),
      mesh,
      (one, _specs_of_order(agent)),
      Result._make([one, _LOSS_OUTPUT, one, one]),
    )

  def __call__(self, state: base.AgentState, order: Order) -> Result:
    """Updates a state; see `Program`."""
    return self._update(state, order)

  def compile(self, state: base.AgentState, order: Order) -> None:
    """Compiles the update; see `Program`."""
    self._update.lower(state, order).compile()


class Accumulated:
  """Gradient accumulation: one `apply` of the mean gradient of micro-batches.

  The mean is weighted by `LossOutput.weight`.
  """

  def __init__(
    self, agent: base.Agent, mesh: jax.sharding.Mesh, micro_batches: int
  ) -> None:
    """Compiles nothing yet."""

    def part(
      state: base.AgentState, order: Order, index: jax.Array
    ) -> tuple[_Total, hosts.Said | tuple[()]]:
      batch = sharding.shard(order.batch, specs(agent), index, micro_batches)
      key = jax.random.fold_in(_core_key(order), index)
      gradients, output = agent.gradients(state, key, batch)
      output = _with_lag(output, order.version, batch)
      # Also of nothing, moments have a mean.
      weight = jnp.maximum(output.weight, _LEAST_WEIGHT)
      gradients, metrics = jax.tree.map(
        lambda leaf: leaf * weight, (gradients, output.metrics)
      )
      steps = losses.sum_over_cores(steps_of(agent, batch), sharding.CORES)
      total = gradients, types.LossOutput(weight, metrics), steps
      return total, _heard(order.said)

    def finish(
      state: base.AgentState, total: _Total, said: hosts.Said | tuple[()]
    ) -> Result:
      gradients, (weight, metrics, _), steps = total
      mean, metrics = jax.tree.map(
        lambda leaf: leaf / weight, (gradients, metrics)
      )
      if "gradient_norm" in metrics:  # Of the mean, not the mean of norms.
        metrics["gradient_norm"] = optax.global_norm(mean.params)
      after = agent.apply(state, mean).counted(weight / steps)
      after, skipped = keep_finite(state, after)
      output = types.LossOutput(weight, metrics)
      return Result(_unless_idle(state, after, said), output, skipped, said)

    one = sharding.REPLICATED
    self._micro_batches = micro_batches
    self._part = sharding.per_core(
      part, mesh, (one, _specs_of_order(agent), one), one
    )
    self._add = jax.jit(
      lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0
    )
    self._finish = jax.jit(finish)

  def __call__(self, state: base.AgentState, order: Order) -> Result:
    """Updates a state; see `Program`."""
    total, said = self._part(state, order, np.int32(0))
    for index in range(1, self._micro_batches):
      # Waiting lets an inference step run on the device in between.
      jax.block_until_ready(total)
      more, _ = self._part(state, order, np.int32(index))
      total = self._add(total, more)
    return self._finish(state, total, said)

  def compile(self, state: base.AgentState, order: Order) -> None:
    """Compiles the gradients of a micro-batch; see `Program`."""
    self._part.lower(state, order, np.int32(0)).compile()


_LEAST_WEIGHT = 1e-8
_LOSS_OUTPUT = types.LossOutput._make(
  [
    sharding.REPLICATED,
    sharding.REPLICATED,
    PartitionSpec(sharding.CORES),
  ]
)


def _specs_of_order(agent: base.Agent) -> types.Tree:
  one = sharding.REPLICATED
  return Order._make([one, one, specs(agent), PartitionSpec(sharding.CORES)])


def _core_key(order: Order) -> jax.Array:
  """A key for this update and this core."""
  rng_key = jax.random.wrap_key_data(jnp.asarray(order.rng_key))
  key = jax.random.fold_in(rng_key, order.version)
  return jax.random.fold_in(key, jax.lax.axis_index(sharding.CORES))


def _heard(said: hosts.Said | tuple[()]) -> hosts.Said | tuple[()]:
  """What all hosts say together, of what each core's says."""
  if not said:
    return ()
  own = jax.tree.map(lambda leaf: leaf[0], said)
  return losses.sum_over_cores(own, sharding.CORES)


def _unless_idle(
  before: types.Tree, after: types.Tree, said: hosts.Said | tuple[()]
) -> types.Tree:
  """The state before the update where no host had a batch for it."""
  if not said:
    return after
  return jax.tree.map(
    lambda old, new: jnp.where(said.batches > 0, new, old), before, after
  )


def specs(agent: base.Agent) -> types.Tree:
  """The partition specs of the agent's batches."""
  return sharding.UNROLL if agent.needs.window is None else sharding.SAMPLE


def _with_lag(
  output: types.LossOutput, version: types.Array, batch: Batch
) -> types.LossOutput:
  """Adds the policy lag: mean updates since the experience was acted."""
  unroll = batch.unroll if isinstance(batch, types.Sample) else batch
  first = unroll.inputs.timestep.step_type[1:] == int(dm_env.StepType.FIRST)
  weight = 1.0 - first.astype(jnp.float32)
  lag = (version - unroll.version[:-1]).astype(jnp.float32)
  total, count = losses.sum_over_cores(
    (jnp.sum(lag * weight), jnp.sum(weight)), sharding.CORES
  )
  mean = total / jnp.maximum(count, 1e-8)
  return output._replace(metrics=output.metrics | {"policy_lag": mean})
