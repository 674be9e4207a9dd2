"""Jitted programs for one update of an agent over all learner cores."""

from collections.abc import Callable

import dm_env
import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from seedx import losses, sharding, types
from seedx.agents import base

# `types.Unroll`, or `types.Sample` for an agent that needs windows.
Batch = types.Unroll | types.Sample
# `(state, version, rng_key, batch) -> (state, LossOutput, skipped)`, of global
# arrays; see `keep_finite`.
Program = Callable[
  [base.AgentState, jax.Array, jax.Array, Batch],
  tuple[base.AgentState, types.LossOutput, jax.Array],
]


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


def whole(agent: base.Agent, mesh: jax.sharding.Mesh) -> Program:
  """The agent's own `update`, on the whole batch."""

  def update(
    state: base.AgentState,
    version: jax.Array,
    rng_key: jax.Array,
    batch: Batch,
  ) -> tuple[base.AgentState, types.LossOutput, jax.Array]:
    after, output = agent.update(state, _core_key(rng_key), batch)
    state, skipped = keep_finite(state, after, sharding.CORES)
    return state, _with_lag(output, version, batch), skipped

  return sharding.per_core(
    update,
    mesh,
    (sharding.REPLICATED,) * 3 + (specs(agent),),
    (sharding.REPLICATED, _LOSS_OUTPUT, sharding.REPLICATED),
  )


def accumulated(
  agent: base.Agent, mesh: jax.sharding.Mesh, micro_batches: int
) -> Program:
  """Gradient accumulation: one `apply` of the mean gradient of micro-batches.

  The mean is weighted by `LossOutput.weight`; of moments it is plain, since all
  micro-batches have as many observations.
  """

  def part(
    state: base.AgentState,
    version: jax.Array,
    rng_key: jax.Array,
    batch: Batch,
    index: jax.Array,
  ) -> tuple[base.Gradients, types.LossOutput]:
    batch = sharding.shard(batch, specs(agent), index, micro_batches)
    key = jax.random.fold_in(_core_key(rng_key), index)
    gradients, output = agent.gradients(state, key, batch)
    output = _with_lag(output, version, batch)
    params, metrics = jax.tree.map(
      lambda leaf: leaf * output.weight, (gradients.params, output.metrics)
    )
    return gradients._replace(params=params), types.LossOutput(
      output.weight, metrics
    )

  def finish(
    state: base.AgentState, total: base.Gradients, output: types.LossOutput
  ) -> tuple[base.AgentState, types.LossOutput, jax.Array]:
    weight = jnp.maximum(output.weight, 1e-8)
    params, metrics = jax.tree.map(
      lambda leaf: leaf / weight, (total.params, output.metrics)
    )
    if "gradient_norm" in metrics:  # Of the mean, not the mean of norms.
      metrics["gradient_norm"] = optax.global_norm(params)
    moments = jax.tree.map(lambda leaf: leaf / micro_batches, total.moments)
    after = agent.apply(state, base.Gradients(params, moments))
    state, skipped = keep_finite(state, after)
    return state, types.LossOutput(output.weight, metrics), skipped

  one = sharding.REPLICATED
  gradients_of = sharding.per_core(
    part, mesh, (one, one, one, specs(agent), one), one
  )
  add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0)
  finish = jax.jit(finish)

  def update(
    state: base.AgentState,
    version: jax.Array,
    rng_key: jax.Array,
    batch: Batch,
  ) -> tuple[base.AgentState, types.LossOutput, jax.Array]:
    total = gradients_of(state, version, rng_key, batch, jnp.int32(0))
    for index in range(1, micro_batches):
      # Waiting lets an inference step run on the device in between.
      jax.block_until_ready(total)
      more = gradients_of(state, version, rng_key, batch, jnp.int32(index))
      total = add(total, more)
    return finish(state, *total)

  return update


_LOSS_OUTPUT = types.LossOutput._make(
  [
    sharding.REPLICATED,
    sharding.REPLICATED,
    PartitionSpec(sharding.CORES),
  ]
)


def _core_key(rng_key: jax.Array) -> jax.Array:
  return jax.random.fold_in(rng_key, jax.lax.axis_index(sharding.CORES))


def specs(agent: base.Agent) -> types.Tree:
  """The partition specs of the agent's batches."""
  return sharding.UNROLL if agent.needs.window is None else sharding.SAMPLE


def _with_lag(
  output: types.LossOutput, version: jax.Array, batch: Batch
) -> types.LossOutput:
  """Adds the policy lag: mean updates since the experience was acted."""
  unroll = batch.unroll if isinstance(batch, types.Sample) else batch
  first = unroll.inputs.timestep.step_type[1:] == int(dm_env.StepType.FIRST)
  weight = 1.0 - first.astype(jnp.float32)
  lag = (version - unroll.version[:-1]).astype(jnp.float32)
  share = losses.mean_share(lag, weight, sharding.CORES)
  mean = losses.sum_over_cores(share, sharding.CORES)
  return output._replace(metrics=output.metrics | {"policy_lag": mean})
