"""Jitted programs for one update of an agent over all learner cores."""

from collections.abc import Callable

import dm_env
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from seedx import losses, sharding, types
from seedx.agents import base

# `types.Unroll`, or `types.Sample` for an agent that needs windows.
Batch = types.Unroll | types.Sample
# `(state, version, rng_key, batch) -> (state, LossOutput)`, of global arrays.
Program = Callable[
  [base.AgentState, jax.Array, jax.Array, Batch],
  tuple[base.AgentState, types.LossOutput],
]


def whole(agent: base.Agent, mesh: jax.sharding.Mesh) -> Program:
  """The agent's own `update`, on the whole batch."""

  def update(
    state: base.AgentState,
    version: jax.Array,
    rng_key: jax.Array,
    batch: Batch,
  ) -> tuple[base.AgentState, types.LossOutput]:
    state, output = agent.update(state, _core_key(rng_key), batch)
    return state, _with_lag(output, version, batch)

  return sharding.per_core(
    update,
    mesh,
    (sharding.REPLICATED,) * 3 + (specs(agent),),
    (sharding.REPLICATED, _LOSS_OUTPUT),
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
  ) -> tuple[base.AgentState, types.LossOutput]:
    weight = jnp.maximum(output.weight, 1e-8)
    params, metrics = jax.tree.map(
      lambda leaf: leaf / weight, (total.params, output.metrics)
    )
    moments = jax.tree.map(lambda leaf: leaf / micro_batches, total.moments)
    state = agent.apply(state, base.Gradients(params, moments))
    return state, types.LossOutput(output.weight, metrics)

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
  ) -> tuple[base.AgentState, types.LossOutput]:
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
