"""Many cores learn what one does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from jax.sharding import PartitionSpec

from seedx import losses, sharding, types
from seedx.agents import vtrace

LENGTH, CORES, PER_CORE = 6, 8, 2
SPEC = types.EnvironmentSpec(
  specs.Array((4,), np.float32), specs.DiscreteArray(3)
)
# Plain gradients are compared: 8 times too much must not be clipped away.
CONFIG = vtrace.Config(hidden_sizes=(8,), max_gradient_norm=1e9)
ON_CORES = PartitionSpec(sharding.CORES)


def assert_close(actual, expected, rtol=1e-5):
  def check(a, b):
    np.testing.assert_allclose(
      a, b, rtol=rtol, atol=rtol * float(np.abs(b).max())
    )

  jax.tree.map(check, actual, expected)


@pytest.fixture(scope="module")
def one_core(make_unroll):
  """The whole batch on one core: agent, state, unroll, gradients, output."""
  agent = CONFIG.make(SPEC)
  state = jax.jit(agent.init)(jax.random.key(0))
  # Episodes get shorter from core to core.
  ends = np.repeat(np.linspace(0.0, 0.9, CORES), PER_CORE)
  unroll = make_unroll(agent, SPEC, LENGTH, ends)
  first = unroll.inputs.timestep.step_type[1:] == 0
  learned = (~first).sum(0).reshape(CORES, PER_CORE).sum(1)
  assert learned[0] == 10
  assert len(set(learned.tolist())) >= 3
  gradients, output = jax.jit(agent.gradients)(state, jax.random.key(0), unroll)
  return agent, state, unroll, *jax.device_get((gradients, output))


def many_cores(function, num_cores):
  """The function on each core; its results have a first axis of cores."""
  return sharding.per_core(
    lambda *arguments: jax.tree.map(lambda x: x[None], function(*arguments)),
    sharding.mesh(jax.devices()[:num_cores]),
    (sharding.REPLICATED, sharding.REPLICATED, sharding.UNROLL),
    ON_CORES,
  )


def test_every_core_has_the_gradients_and_the_update_of_one(one_core):
  _, state, unroll, gradients, output = one_core
  agent = CONFIG.make(SPEC, axis_name=sharding.CORES)

  def update(state, rng_key, unroll):
    summed, output = agent.gradients(state, rng_key, unroll)
    return summed, output, agent.apply(state, summed).params

  *found, adam = many_cores(update, CORES)(state, jax.random.key(0), unroll)
  found = jax.device_get(found)
  for core in range(CORES):
    actual, actual_output = jax.tree.map(lambda x, i=core: x[i], found)
    assert_close(actual, gradients)
    assert actual_output.weight == output.weight
    for name, value in output.metrics.items():
      np.testing.assert_allclose(
        actual_output.metrics[name], value, rtol=1e-5, atol=1e-6
      )
  for leaf in jax.tree.leaves(jax.device_get(adam)):
    assert (leaf == leaf[:1]).all()


def test_mean_of_per_core_means_would_be_seen(one_core):
  # The test above can fail: without the sums over cores it does.
  agent, state, unroll, gradients, _ = one_core

  def mean_of_means(state, rng_key, unroll):
    per_core, _ = agent.gradients(state, rng_key, unroll)
    return jax.lax.pmean(per_core, sharding.CORES)

  wrong = many_cores(mean_of_means, 2)(state, jax.random.key(0), unroll)
  wrong = jax.tree.map(lambda x: x[0], jax.device_get(wrong))
  with pytest.raises(AssertionError):
    assert_close(wrong, gradients, rtol=1e-2)


def test_sum_over_cores_adds_and_without_an_axis_does_nothing():
  mesh = sharding.mesh(jax.devices())
  total = sharding.per_core(
    lambda x: losses.sum_over_cores({"a": x.sum()}, sharding.CORES),
    mesh,
    (ON_CORES,),
    sharding.REPLICATED,
  )(jnp.arange(16.0))
  assert total == {"a": 120.0}
  nest = {"a": jnp.ones(2)}
  assert losses.sum_over_cores(nest, None) is nest


def test_per_core_sees_its_shard():
  mesh = sharding.mesh(jax.devices())

  def shard(x):
    assert x.shape == (2, 3)
    return x * jax.lax.axis_index(sharding.CORES)

  out = sharding.per_core(shard, mesh, (ON_CORES,), ON_CORES)(jnp.ones((16, 3)))
  np.testing.assert_array_equal(out[:, 0], np.repeat(np.arange(8.0), 2))


def test_replicate_puts_a_nest_on_every_core():
  mesh = sharding.mesh(jax.devices()[2:5])
  nest = sharding.replicate({"a": np.arange(3)}, mesh)
  shards = nest["a"].addressable_shards
  assert {s.device for s in shards} == set(jax.devices()[2:5])
  for shard in shards:
    np.testing.assert_array_equal(shard.data, [0, 1, 2])


# Assembling


def shards_on(cores, rows=2):
  """An unroll on each core; everything is core * 100 + row."""
  shards = []
  for i, core in enumerate(cores):
    row = i * 100.0 + np.arange(rows, dtype=np.float32)
    steps = np.tile(row, (3, 1))
    shard = types.Unroll(
      inputs={"a": steps, "image": np.tile(steps[..., None], 4)},
      action=steps,
      extras=(steps,),
      version=steps.astype(np.int32),
      core_state=(np.stack([row] * 5, axis=1), row),
    )
    shards.append(jax.device_put(shard, core))
  return shards


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [5, 1, 7, 2]])
def test_assemble_puts_shards_in_order_without_copying(order):
  cores = [jax.devices()[i] for i in order]
  mesh = sharding.mesh(cores)
  shards = shards_on(cores)
  whole = sharding.assemble(shards, mesh, sharding.UNROLL)
  row = [0, 1, 100, 101, 200, 201, 300, 301]
  expected = np.tile(np.array(row, np.float32), (3, 1))
  np.testing.assert_array_equal(whole.inputs["a"], expected)
  np.testing.assert_array_equal(whole.inputs["image"][..., 3], expected)
  np.testing.assert_array_equal(whole.action, expected)
  np.testing.assert_array_equal(whole.extras[0], expected)
  np.testing.assert_array_equal(whole.version, expected)
  np.testing.assert_array_equal(whole.core_state[0], expected[:1].T @ [[1] * 5])
  np.testing.assert_array_equal(whole.core_state[1], row)
  for i, core in enumerate(cores):
    for leaf, shard in zip(
      jax.tree.leaves(whole), jax.tree.leaves(shards[i]), strict=True
    ):
      (here,) = [s for s in leaf.addressable_shards if s.device == core]
      pointer = here.data.unsafe_buffer_pointer()
      assert pointer == shard.unsafe_buffer_pointer()


def test_assembled_unroll_is_what_a_program_expects():
  cores = jax.devices()[:4]
  mesh = sharding.mesh(cores)
  whole = sharding.assemble(shards_on(cores), mesh, sharding.UNROLL)
  program = sharding.per_core(
    lambda unroll: jnp.stack([unroll.action[0, 0], unroll.core_state[1][0]]),
    mesh,
    (sharding.UNROLL,),
    ON_CORES,
  )
  np.testing.assert_array_equal(
    program(whole), [0, 0, 100, 100, 200, 200, 300, 300]
  )


def test_shards_of_different_sizes_are_refused():
  cores = jax.devices()[:2]
  shards = [shards_on(cores)[0], shards_on(cores, rows=3)[1]]
  with pytest.raises(ValueError, match="shape"):
    sharding.assemble(shards, sharding.mesh(cores), sharding.UNROLL)


# Devices


def test_devices_come_in_the_order_asked_for():
  assert sharding.devices([3, 0], "learner") == [
    *(jax.local_devices()[3], jax.local_devices()[0])
  ]


@pytest.mark.parametrize(
  ("indices", "message"),
  [
    ([], r"different learner devices, found \[\]"),
    ([1, 2, 1], r"different learner devices, found \[1, 2, 1\]"),
    ([8], r"learner devices from 0 to 7, found \[8\]: .* 8 cpu devices"),
    ([0, -1], r"learner devices from 0 to 7, found \[0, -1\]"),
  ],
)
def test_devices_that_are_not_there_are_refused(indices, message):
  with pytest.raises(types.ConfigError, match=message):
    sharding.devices(indices, "learner")
