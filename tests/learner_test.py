"""The learner: micro-batches, cores, and what it counts."""

import dataclasses
import itertools
import threading

import jax
import numpy as np
import pytest
from dm_env import specs

from seedx import sharding, types
from seedx.agents import base, vtrace
from seedx.runtime import learner

LENGTH, BATCH = 6, 16
SPEC = types.EnvironmentSpec(
  specs.Array((4,), np.float32), specs.DiscreteArray(3)
)


def plain(agent, rate):
  """The agent with params - rate * gradients in the place of Adam."""

  def apply(state, gradients):
    params = jax.tree.map(
      lambda p, g: p - rate * g, state.params, gradients.params
    )
    return dataclasses.replace(state, params=params, updates=state.updates + 1)

  update = base.composed_update(agent.gradients, apply)
  return dataclasses.replace(agent, apply=apply, update=update)


@pytest.fixture(scope="module")
def parts(make_unroll):
  """An agent that learns by plain gradients, its state, and an unroll."""
  config = vtrace.Config(hidden_sizes=(16,))
  # So large a rate that the parameters after are made of the gradients.
  agent = plain(vtrace.make(SPEC, config, sharding.CORES), rate=100.0)
  state = jax.jit(agent.init)(jax.random.key(0))
  # Every micro-batch of every core has another number of resets.
  unroll = make_unroll(agent, SPEC, LENGTH, np.linspace(0.0, 0.9, BATCH))
  return agent, state, unroll


def make(parts, num_cores=1, micro_batches=1):
  agent, state, _ = parts
  mesh = sharding.mesh(jax.devices()[:num_cores])
  return learner.Learner(agent, mesh, state, jax.random.key(1), micro_batches)


def on_cores(unroll, cores):
  """The shards of an unroll, each on its core."""
  size = BATCH // len(cores)

  def shard(i):
    rows = slice(i * size, (i + 1) * size)
    steps = jax.tree.map(lambda x: x[:, rows], tuple(unroll[:-1]))
    core_state = jax.tree.map(lambda x: x[rows], unroll.core_state)
    return types.Unroll._make([*steps, core_state])

  return [jax.device_put(shard(i), core) for i, core in enumerate(cores)]


def run(learner_, unrolls, publish=lambda acting, version: None):
  """Learns each unroll once, to the end."""
  batches = [on_cores(x, learner_.cores) for x in unrolls]
  learner_.run(batches, publish, threading.Event())


def experience(unroll):
  """How many steps are no reset, counted one by one."""
  step_type = unroll.inputs.timestep.step_type
  return sum(
    int(step_type[t, b] != 0) for t in range(1, LENGTH) for b in range(BATCH)
  )


def assert_close(actual, expected, rtol=1e-5):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(
      a, b, rtol=rtol, atol=rtol * float(np.abs(b).max())
    ),
    actual,
    expected,
  )


@pytest.fixture(scope="module")
def whole(parts):
  """What one core makes of the whole batch at once."""
  it = make(parts)
  run(it, [parts[2]])
  return it


@pytest.mark.parametrize(
  ("num_cores", "micro_batches"), [(1, 4), (2, 1), (2, 4), (8, 2)]
)
def test_parts_and_cores_learn_what_the_whole_does(
  parts, whole, num_cores, micro_batches
):
  it = make(parts, num_cores, micro_batches)
  run(it, [parts[2]])
  assert_close(it.state.params, whole.state.params)
  assert it.learned_steps == whole.learned_steps
  assert it.state.updates == 1
  for name in ("loss_policy_gradient", "loss_value", "loss_entropy"):
    assert it.metrics[name] == pytest.approx(whole.metrics[name], rel=1e-4)
  assert not np.allclose(
    jax.tree.leaves(whole.state.params)[-1],
    jax.tree.leaves(parts[1].params)[-1],
  )


@pytest.mark.parametrize(
  ("num_cores", "micro_batches"), [(1, 1), (2, 1), (2, 4)]
)
def test_learned_steps_are_counted_exactly(
  parts, make_unroll, num_cores, micro_batches
):
  agent, _, unroll = parts
  other = make_unroll(agent, SPEC, LENGTH, np.full(BATCH, 0.3), seed=5)
  it = make(parts, num_cores, micro_batches)
  run(it, [unroll, other, unroll])
  assert it.steps == 3
  expected = 2 * experience(unroll) + experience(other)
  assert it.learned_steps == expected
  assert 0 < expected < 3 * BATCH * (LENGTH - 1)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_policy_lag_is_in_updates_over_the_steps_learned(parts, micro_batches):
  # No resets, so that every step weighs the same.
  unroll = parts[2]
  timestep = unroll.inputs.timestep
  timestep = timestep._replace(step_type=np.ones_like(timestep.step_type))
  unroll = unroll._replace(inputs=unroll.inputs._replace(timestep=timestep))
  version = np.arange(LENGTH)[:, None] - 10 * np.arange(BATCH)
  version[-1] = 10**6  # The last step only bootstraps.
  unroll = unroll._replace(version=version.astype(np.int32))
  it = make(parts, 2, micro_batches)
  # The mean of time 0..4 is 2; of rows 0..15, 7.5: version -73 on average.
  run(it, [unroll])
  assert it.metrics["policy_lag"] == pytest.approx(73.0, rel=1e-5)
  run(it, [unroll, unroll])
  assert it.metrics["policy_lag"] == pytest.approx(75.0, rel=1e-5)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_every_update_is_published_with_its_version(parts, micro_batches):
  agent, _, unroll = parts
  it, published = make(parts, 2, micro_batches), []

  def publish(acting, version):
    published.append((version, jax.device_get(acting)))
    assert version == it.steps

  run(it, [unroll, unroll], publish)
  assert [version for version, _ in published] == [1, 2]
  (_, first), (_, last) = published
  jax.tree.map(np.testing.assert_array_equal, last, agent.acting(it.state))
  kernel = jax.tree.leaves(first)[-1] - jax.tree.leaves(last)[-1]
  assert np.abs(kernel).max() > 1e-3


def test_stop_ends_it_after_the_update_under_way(parts):
  it, stop = make(parts), threading.Event()
  batch = on_cores(parts[2], it.cores)
  it.run(itertools.repeat(batch), lambda acting, version: stop.set(), stop)
  assert it.steps == 1
  assert it.learned_steps == experience(parts[2])


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_warm_up_changes_nothing_but_saves_compiling(parts, micro_batches):
  it = make(parts, 1, micro_batches)
  batch = on_cores(parts[2], it.cores)
  it.warm_up(batch)
  assert (it.steps, it.learned_steps, it.metrics) == (0, 0, {})
  jax.tree.map(np.testing.assert_array_equal, it.state.params, parts[1].params)
  compiled = []

  def listen(event, seconds, **_):
    if event == "/jax/core/compile/backend_compile_duration":
      compiled.append(seconds)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    run(it, [parts[2]])
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
  assert compiled == []
  assert it.steps == 1


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_every_update_and_core_has_a_key_of_its_own(parts, micro_batches):
  agent, state, unroll = parts

  def gradients(state, rng_key, batch):
    grads, output = agent.gradients(state, rng_key, batch)
    noise = jax.random.uniform(rng_key)
    everyone = jax.lax.all_gather(noise, sharding.CORES)
    metrics = {"first": everyone[0], "second": everyone[1]}
    return grads, output._replace(metrics=metrics)

  noisy = dataclasses.replace(
    agent,
    gradients=gradients,
    update=base.composed_update(gradients, agent.apply),
  )
  it = make((noisy, state, unroll), 2, micro_batches)
  seen = []
  for _ in range(2):
    run(it, [unroll])
    seen += [it.metrics["first"], it.metrics["second"]]
  assert len(set(seen)) == 4


@pytest.mark.parametrize(("num_cores", "micro_batches"), [(1, 1), (2, 4)])
def test_policy_lag_leaves_resets_out(parts, num_cores, micro_batches):
  """However the batch is cut, and however uneven its resets are."""
  unroll = parts[2]
  version = -np.arange(LENGTH * BATCH, dtype=np.int32).reshape(LENGTH, BATCH)
  it = make(parts, num_cores, micro_batches)
  run(it, [unroll._replace(version=version)])
  weight = unroll.inputs.timestep.step_type[1:] != 0
  expected = -(version[:-1] * weight).sum() / weight.sum()
  assert it.metrics["policy_lag"] == pytest.approx(expected, rel=1e-5)
  assert abs(expected + version[:-1].mean()) > 0.1


def test_micro_batches_that_do_not_divide_the_batch_are_refused(parts):
  with pytest.raises(types.ConfigError, match="at least 1 micro-batch"):
    make(parts, micro_batches=0)
  with pytest.raises(types.ConfigError, match="3 parts divide"):
    run(make(parts, micro_batches=3), [parts[2]])


def test_an_agent_that_loops_has_no_micro_batches(parts):
  agent, state, unroll = parts
  looping = dataclasses.replace(agent, applies_once=False)
  with pytest.raises(types.ConfigError, match="minibatches of its own"):
    make((looping, state, unroll), micro_batches=2)
