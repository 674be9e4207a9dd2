"""Computations on many cores, compared with one core."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from seedx import sharding, types
from seedx.agents import vtrace
from tests import conftest, running
from tests.agents import cases

LENGTH, CORES, PER_CORE = 6, 8, 2
SPEC = cases.VECTOR
# Clipping would hide gradients that are 8 times too large.
CONFIG = vtrace.Config(hidden_sizes=(8,), max_gradient_norm=1e9)


def test_every_core_computes_the_gradients_and_update_of_a_single_core():
  agent = CONFIG.make(SPEC)
  state = jax.jit(agent.init)(jax.random.key(0))
  # Episodes get shorter from core to core.
  ends = np.repeat(np.linspace(0.0, 0.9, CORES), PER_CORE)
  unroll = conftest.random_unroll(agent, SPEC, LENGTH, ends)
  first = unroll.inputs.timestep.step_type[1:] == 0
  learned = (~first).sum(0).reshape(CORES, PER_CORE).sum(1)
  assert learned[0] == 10 and len(set(learned.tolist())) >= 3
  expected = jax.jit(agent.gradients)(state, jax.random.key(0), unroll)
  gradients, output = jax.device_get(expected)
  agent = CONFIG.make(SPEC, axis_name=sharding.CORES)

  def update(state, rng_key, unroll):
    summed, output = agent.gradients(state, rng_key, unroll)
    results = summed, output, agent.apply(state, summed).params
    return jax.tree.map(lambda x: x[None], results)

  update = sharding.per_core(
    update,
    sharding.mesh(jax.devices()[:CORES]),
    (sharding.REPLICATED, sharding.REPLICATED, sharding.UNROLL),
    jax.sharding.PartitionSpec(sharding.CORES),
  )
  by_core = update(state, jax.random.key(0), unroll)
  *by_core, new_params = jax.device_get(by_core)
  for core in range(CORES):
    actual, actual_output = jax.tree.map(lambda x, i=core: x[i], by_core)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(
        a, b, rtol=1e-5, atol=1e-5 * float(np.abs(b).max())
      ),
      actual,
      gradients,
    )
    assert actual_output.weight == output.weight
    for name, value in output.metrics.items():
      np.testing.assert_allclose(
        actual_output.metrics[name], value, rtol=1e-5, atol=1e-6
      )
  for leaf in jax.tree.leaves(new_params):
    assert (leaf == leaf[:1]).all()


def test_assemble_puts_shards_in_order_without_copying():
  cores = [jax.devices()[i] for i in (5, 1, 7, 2)]
  shards = []
  for i, core in enumerate(cores):
    row = np.array([i, i + 0.5], np.float32)
    steps = np.tile(row, (3, 1))
    shard = types.Unroll(
      inputs={"a": steps, "image": np.tile(steps[..., None], 4)},
      action=steps,
      extras=(steps,),
      version=steps.astype(np.int32),
      core_state=(np.stack([row] * 5, axis=1), row),
    )
    shards.append(jax.device_put(shard, core))
  whole = sharding.assemble(shards, sharding.mesh(cores), sharding.UNROLL)
  chex.assert_trees_all_equal(whole, running.joined(shards))
  for i, core in enumerate(cores):
    for leaf, shard in zip(
      jax.tree.leaves(whole), jax.tree.leaves(shards[i]), strict=True
    ):
      (here,) = [s for s in leaf.addressable_shards if s.device == core]
      pointer = here.data.unsafe_buffer_pointer()
      assert pointer == shard.unsafe_buffer_pointer()


def test_the_parts_of_a_batch_are_equal_and_in_order():
  batch, spec = np.arange(12).reshape(2, 6), PartitionSpec(None, sharding.CORES)
  parts = [sharding.shard(batch, spec, k, 3) for k in range(3)]
  np.testing.assert_array_equal(parts, np.split(batch, 3, axis=1))
  with pytest.raises(types.ConfigError, match="that 4 parts divide, found 6"):
    sharding.shard(batch, spec, 0, 4)


@pytest.mark.parametrize(
  ("indices", "message"),
  [
    ([], r"different learner devices, found \[\]"),
    ([1, 2, 1], r"different learner devices, found \[1, 2, 1\]"),
    ([8], r"learner devices from 0 to 7, found \[8\]: .* 8 cpu devices"),
    ([0, -1], r"learner devices from 0 to 7, found \[0, -1\]"),
  ],
)
def test_missing_and_repeated_devices_are_refused(indices, message):
  devices = sharding.devices([3, 0], "learner")
  assert devices == [jax.devices()[3], jax.devices()[0]]
  with pytest.raises(types.ConfigError, match=message):
    sharding.devices(indices, "learner")


def test_put_moves_only_arrays_that_are_elsewhere():
  here, there = jax.devices()[:2]
  nest = {
    "here": jax.device_put(np.ones(2), here),
    "there": jax.device_put(np.ones(2), there),
    "replicated": sharding.replicate(np.ones(2), sharding.mesh([here])),
    "uncommitted": jnp.ones(2),
    "host": np.ones(2),
  }
  moved = sharding.put(nest, here)
  assert [k for k in nest if moved[k] is nest[k]] == ["here"]
  for leaf in moved.values():
    assert leaf.committed and leaf.devices() == {here}
    assert leaf.sharding == moved["here"].sharding
    np.testing.assert_array_equal(leaf, np.ones(2))
