"""PPO's updates: minibatches, epochs, advantages, statistics."""

import dataclasses
import functools

import dm_env
import jax
import numpy as np
import pytest

from seedx import sharding, types
from seedx.agents import base, models, policy_model, ppo
from tests import conftest
from tests.agents import cases
from tests.losses import references

LENGTH, BATCH = 6, 8
VECTOR = cases.VECTOR
KINDS = {
  "vector": (VECTOR, {}),
  "image": (cases.IMAGE, {"stack_frames": 3, "max_gradient_norm": 1.0}),
  "recurrent": (VECTOR, {"recurrent": True, "lstm_size": 4}),
}
KEY = jax.random.key(0)
# Several optimizer steps in each update, and a learning rate that ends at 0.
SEVERAL = {
  **{"epochs": 2, "minibatches": 4},
  **{"learning_rate_end": 0.0, "horizon": base.Horizon(100, 3)},
}


def config_of(kind="vector", **fields):
  options = {
    "hidden_sizes": (8,),
    "epochs": 1,
    "minibatches": 1,
    # With this epsilon, small gradients and rounding errors make small steps.
    "adam_epsilon": 1.0,
    "max_gradient_norm": 1e6,
    "learning_rate": 1.0,
    "discount": 0.9,
    "reward_scale": 1.0,
    "entropy_cost": 0.01,
  }
  return ppo.Config(**{**options, **KINDS[kind][1], **fields})


@functools.cache
def agent_of(kind="vector", axis=None, horizon=None, **fields):
  return config_of(kind, **fields).make(KINDS[kind][0], axis, horizon)


@functools.cache
def jitted(method, kind="vector", **fields):
  return jax.jit(getattr(agent_of(kind, **fields), method))


@functools.cache
def state_of(kind="vector", **fields):
  """Returns a state whose policy is far from uniform."""
  config = config_of(kind, **fields)
  return cases.random_state(agent_of(kind, **fields), config)


@functools.cache
def unroll_of(kind="vector", seed=1):
  """Returns an unroll with random core states, as if within episodes."""
  spec = KINDS[kind][0]
  ends = np.linspace(0.0, 0.7, BATCH)
  unroll = conftest.random_unroll(agent_of(kind), spec, LENGTH, ends, seed)
  rng = np.random.default_rng(seed)
  core_state = jax.tree.map(
    lambda x: (rng.uniform(0, 1, x.shape) * (200 if x.ndim == 4 else 1)).astype(
      x.dtype
    ),
    unroll.core_state,
  )
  return unroll._replace(core_state=core_state)


def assert_close(actual, expected, rtol=1e-4):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(
      a, b, rtol=rtol, atol=rtol * float(np.abs(b).max()) + 1e-7
    ),
    actual,
    expected,
  )


def moved(new, old):
  return jax.tree.map(np.subtract, new.params, old.params)


# One step on the whole batch


@pytest.mark.parametrize(
  "kind", conftest.slow_but([("vector",)], [("vector",), ("recurrent",)])
)
def test_one_step_on_the_whole_batch_applies_its_gradients(kind):
  state, unroll = state_of(kind), unroll_of(kind)
  gradients, output = jitted("gradients", kind)(state, KEY, unroll)
  expected = jitted("apply", kind)(state, gradients)
  actual, update_output = jitted("update", kind)(state, KEY, unroll)
  assert_close(moved(actual, state), moved(expected, state), rtol=1e-3)
  assert cases.difference(actual.params, state.params) > 1e-3
  assert_close(update_output.metrics, output.metrics)
  assert update_output.weight == output.weight
  first = unroll.inputs.timestep.step_type[1:] == dm_env.StepType.FIRST
  assert first.sum() > 0
  assert output.weight == np.sum(~first)


def test_at_a_ratio_of_1_the_gradients_are_those_of_a2c():
  """NumPy computes and normalizes the advantages."""
  state = cases.with_hyperparameters(state_of(), td_lambda=0.8)
  unroll = unroll_of()
  policy = config_of().policy(VECTOR)

  @jax.jit
  def evaluated(params):
    variables = models.Variables(params, ())
    return policy.evaluate(variables, unroll, state.hyperparameters)

  acted = jax.tree.map(np.asarray, evaluated(state.params))
  log_prob = np.concatenate([acted.log_prob, np.zeros((1, BATCH), np.float32)])
  names = ("values", "step_type", "reward", "discount")
  streams = [
    {name: getattr(acted, name)[:, b] for name in names} for b in range(BATCH)
  ]
  advantage = np.stack(
    [references.gae(x, None, lambda_=0.8) for x in streams], axis=1
  )
  weight = np.stack([references.weights(x) for x in streams], axis=1)
  target = advantage + acted.values[:-1]
  taken = advantage[weight > 0]
  normalized = (advantage - taken.mean()) / taken.std()

  @jax.jit
  @jax.grad
  def expected(params):
    now = evaluated(params)
    steps = (
      -normalized * now.log_prob
      + 0.5 * 0.5 * (target - now.values[:-1]) ** 2
      - 0.01 * now.entropy
    )
    return (steps * weight).sum() / weight.sum()

  as_acted = unroll._replace(extras=policy_model.Extras(log_prob))
  actual, other = (
    jitted("gradients")(state, KEY, x)[0].params for x in (as_acted, unroll)
  )
  assert_close(actual, expected(state.params), rtol=1e-3)
  assert cases.difference(actual, other) > 1e-3


# Minibatches


def test_minibatches_depend_on_the_key_and_updates_count_batches():
  unroll, update = unroll_of(), jitted("update", **SEVERAL)
  one, output = update(state_of(), KEY, unroll)
  other, _ = update(state_of(), jax.random.key(1), unroll)
  assert cases.difference(one.params, other.params) > 1e-5
  again, _ = update(one, KEY, unroll)
  assert (one.updates, again.updates) == (1, 2)
  # The weight counts a step once, not once per epoch.
  assert output.weight == np.sum(unroll.inputs.timestep.step_type[1:] != 0)


@pytest.mark.parametrize(
  ("kind", "minibatches", "size"), [("vector", 7, 40), ("recurrent", 5, 8)]
)
def test_minibatches_that_do_not_divide_the_batch_are_refused(
  kind, minibatches, size
):
  agent = agent_of(kind, minibatches=minibatches)
  message = f"divide the {size} .*found {minibatches}"
  with pytest.raises(types.ConfigError, match=message):
    jax.eval_shape(agent.update, state_of(kind), KEY, unroll_of(kind))


# Advantages


def test_equal_advantages_have_no_gradient():
  unroll = jax.tree.map(np.zeros_like, unroll_of())
  unroll.inputs.timestep.step_type[:] = dm_env.StepType.MID
  zeros = jax.tree.map(np.zeros_like, state_of().params)
  state = dataclasses.replace(state_of(), params=zeros)
  gradients, _ = jitted("gradients")(state, KEY, unroll)
  assert cases.difference(gradients.params, zeros) < 1e-6


def test_each_epoch_draws_minibatches_and_normalizes_each():
  calls = []

  def spy(values, weights, axis_name):
    out = original(values, weights, axis_name)
    jax.debug.callback(
      lambda *x: calls.append(x), out, weights, values, ordered=True
    )
    return out

  original = ppo._normalized
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(ppo, "_normalized", spy)
    agent = config_of(epochs=2, minibatches=4).make(VECTOR)
    jax.block_until_ready(jax.jit(agent.update)(state_of(), KEY, unroll_of()))
    jax.effects_barrier()
  assert len(calls) == 8
  for advantage, weights, _ in calls:
    assert weights.shape == (1, 10)
    mean = np.average(advantage, weights=weights)
    assert mean == pytest.approx(0.0, abs=1e-5)
    square = np.average(advantage**2, weights=weights)
    assert square == pytest.approx(1.0, rel=1e-3)
  # A step is recognized by its advantage.
  epochs = np.reshape([values for *_, values in calls], (2, 4, 10))
  assert len(np.unique(epochs[0])) > 25
  np.testing.assert_array_equal(*(np.sort(epoch.ravel()) for epoch in epochs))
  assert np.mean(epochs[0] != epochs[1]) > 0.5


# Epochs


def test_the_learning_rate_reaches_its_end_when_the_run_ends():
  state, steps = cases.with_hyperparameters(state_of(), learning_rate=1e-2), []
  for _ in range(5):
    old_params = state.params
    state, _ = jitted("update", **SEVERAL)(state, KEY, unroll_of())
    steps.append(cases.difference(state.params, old_params))
  assert min(steps[:3]) > 1e-5
  assert steps[2] < steps[0] / 2
  assert max(steps[3:]) < 1e-6


def test_start_counts_the_optimizer_steps_of_the_given_updates():
  state = agent_of(**SEVERAL).start(state_of().params, 7)
  assert state.updates == 7
  assert state.optimizer_state[-1].count == 7 * 8


def updated_params(state, **fields):
  return jitted("update", **fields)(state, KEY, unroll_of())[0].params


@pytest.mark.slow
def test_clip_values_changes_the_loss():
  # In the first step the values have not changed, so none is clipped.
  for epochs in (1, 2):
    fields = {} if epochs == 1 else {"epochs": epochs}
    plain, clipped = (
      updated_params(state_of(), **fields, **x)
      for x in ({}, {"clip_values": True})
    )
    assert (cases.difference(plain, clipped) > 1e-4) == (epochs == 2)


# The limit of the divergence, `target_kl`


def on_policy(fields):
  """Returns the unroll as if the learned parameters had acted."""
  policy = config_of(**fields).policy(VECTOR)

  @jax.jit
  def evaluated(state, unroll):
    variables = models.Variables(state.params, ())
    return policy.evaluate(variables, unroll, state.hyperparameters).log_prob

  log_prob = evaluated(state_of(), unroll_of())
  log_prob = np.concatenate([log_prob, np.zeros((1, BATCH), np.float32)])
  return unroll_of()._replace(extras=policy_model.Extras(log_prob))


def test_an_update_ends_at_the_first_minibatch_above_target_kl():
  """Means over 2 and over 3 minibatches give each minibatch's divergence."""
  unroll, rate = on_policy({}), {"learning_rate": 0.05}
  state = cases.with_hyperparameters(state_of(), **rate)
  updated = {
    epochs: jitted("update", epochs=epochs)(state, KEY, unroll)
    for epochs in (2, 3)
  }
  sums = {k: k * float(x.metrics["approx_kl"]) for k, (_, x) in updated.items()}
  second, third = sums[2], sums[3] - sums[2]  # The first divergence is 0.
  assert 0 < second < 0.9 * third
  fields = {"epochs": 4, "target_kl": (second + third) / 2}
  limited, output = jax.jit(config_of(**fields).make(VECTOR).update)(
    state, KEY, unroll
  )
  expected, expected_output = updated[2]
  assert output.metrics["optimizer_steps"] == 2
  assert_close(moved(limited, state), moved(expected, state), rtol=1e-3)
  assert output.weight == expected_output.weight
  mean = float(output.metrics["approx_kl"])
  assert mean == pytest.approx((second + third) / 3, rel=1e-2)
  # The schedule also counts the optimizer steps that were skipped.
  assert limited.optimizer_state[-1].count == 4
  assert limited.updates == 1


@pytest.mark.slow
def test_a_limit_that_is_not_reached_changes_nothing():
  limited = {**SEVERAL, "target_kl": 1e3}
  expected, plain = jitted("update", **SEVERAL)(state_of(), KEY, unroll_of())
  actual, output = jitted("update", **limited)(state_of(), KEY, unroll_of())
  assert_close(moved(actual, state_of()), moved(expected, state_of()))
  metrics = dict(output.metrics)
  assert metrics.pop("optimizer_steps") == 8
  assert_close(metrics, plain.metrics)
  assert output.weight == plain.weight
  # Before the first step, the divergence from the policy that acted is already
  # above this limit.
  tiny = {**SEVERAL, "target_kl": 1e-6}
  state, output = jitted("update", **tiny)(state_of(), KEY, unroll_of())
  assert cases.difference(state.params, state_of().params) == 0
  assert output.metrics["optimizer_steps"] == 0


def test_a_limit_needs_a_loss_that_measures_the_divergence():
  def loss(*arguments):
    return ppo.loss(*arguments)._replace(diagnostics={})

  agent = ppo.make(VECTOR, config_of(target_kl=0.1), loss)
  with pytest.raises(types.ConfigError, match="approx_kl"):
    jax.eval_shape(agent.update, state_of(), KEY, unroll_of())


@pytest.mark.slow
def test_4_cores_end_at_the_same_minibatch():
  fields = {"epochs": 4, "target_kl": 1.4e-4}
  state = cases.with_hyperparameters(state_of(), learning_rate=0.05)
  unroll = on_policy({})
  agent = agent_of(axis=sharding.CORES, **fields)
  update = sharding.per_core(
    agent.update,
    sharding.mesh(jax.devices()[:4]),
    (sharding.REPLICATED, sharding.REPLICATED, sharding.UNROLL),
    sharding.REPLICATED,
  )
  actual, output = update(state, KEY, unroll)
  expected, one_output = jitted("update", **fields)(state, KEY, unroll)
  steps = output.metrics["optimizer_steps"]
  assert 0 < steps == one_output.metrics["optimizer_steps"] < 4
  assert_close(moved(actual, state), moved(expected, state), rtol=1e-3)
  assert output.weight == one_output.weight


# Custom losses


@pytest.mark.parametrize(
  "kind", conftest.slow_but([("vector",)], [("vector",), ("image",)])
)
def test_a_custom_loss_gets_the_old_and_the_new_policy(kind):
  """The two policies differ only after the first step."""

  def loss(evaluated, minibatch, hyperparameters):
    steps = ppo.loss(evaluated, minibatch, hyperparameters)
    old = minibatch.entries.before
    kl = old.policy.distribution.kl_divergence(evaluated.policy.distribution)
    log_prob = old.policy.distribution.log_prob(minibatch.entries.action)
    diagnostics = {
      "kl": kl * steps.weight,
      "wrong": jax.numpy.abs(log_prob - old.log_prob) * steps.weight,
    }
    return steps._replace(diagnostics=steps.diagnostics | diagnostics)

  divergences = {}
  for epochs in (1, 2):
    config = config_of(kind, epochs=epochs)
    agent = ppo.make(KINDS[kind][0], config, loss)
    state, output = jax.jit(agent.update)(state_of(kind), KEY, unroll_of(kind))
    divergences[epochs] = float(output.metrics["kl"])
    assert output.metrics["wrong"] < 1e-5
  assert abs(divergences[1]) < 1e-5 < 1e-3 < divergences[2]
  expected, _ = jitted("update", kind, epochs=2)(
    state_of(kind), KEY, unroll_of(kind)
  )
  assert_close(moved(state, state_of(kind)), moved(expected, state_of(kind)))


@pytest.mark.slow
def test_statistics_change_only_after_all_epochs():
  fields = {"epochs": 2, "minibatches": 2}
  normalizing = jitted("update", normalize_observations=True, **fields)
  state = state_of(normalize_observations=True, **fields)
  first, second = unroll_of(seed=1), unroll_of(seed=2)
  shift = np.float32([2.0, 0.0, -3.0, 1.0])
  first, second = (
    with_observation(x, 3.0 * x.inputs.timestep.observation + shift)
    for x in (first, second)
  )
  state, _ = normalizing(state, KEY, first)
  mean, variance = state.statistics.mean[0], state.statistics.variance[0]
  # The observations of the steps that are learned from.
  learned, other = (
    x.inputs.timestep.observation[:-1][x.inputs.timestep.step_type[1:] != 0]
    for x in (first, second)
  )
  np.testing.assert_allclose(mean, learned.mean(0), rtol=1e-4)
  np.testing.assert_allclose(variance, learned.var(0), rtol=1e-3)
  # Without normalization, the agent gets observations normalized in NumPy.
  normalized = (second.inputs.timestep.observation - mean) / np.sqrt(variance)
  assert np.abs(normalized).max() < 10
  expected, _ = jitted("update", **fields)(
    dataclasses.replace(state, statistics=()),
    KEY,
    with_observation(second, normalized.astype(np.float32)),
  )
  actual, _ = normalizing(state, KEY, second)
  assert_close(moved(actual, state), moved(expected, state), rtol=2e-3)
  assert cases.difference(actual.params, state.params) > 1e-3
  # Both batches have the same weight in the mean.
  np.testing.assert_allclose(
    actual.statistics.mean[0], (mean + other.mean(0)) / 2, rtol=1e-4
  )


def with_observation(unroll, observation):
  timestep = unroll.inputs.timestep._replace(observation=observation)
  return unroll._replace(inputs=unroll.inputs._replace(timestep=timestep))


def test_a_setting_out_of_range_is_refused_with_its_name():
  wrong = {"td_lambda": 1.5, "clip_epsilon": -0.1}
  wrong |= {"epochs": 0, "minibatches": 0, "target_kl": -0.1}
  for name, value in wrong.items():
    with pytest.raises(types.ConfigError, match=f"expected {name}"):
      config_of(**{name: value})
