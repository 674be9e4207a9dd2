"""Rainbow: its components, distributions and noise."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import losses, networks, types
from seedx.agents import acting_step, dqn, rainbow
from tests import conftest
from tests.agents import cases

SPEC = cases.VECTOR
ROWS = 16


def config_of(**fields):
  defaults = {"hidden_sizes": (8,), "num_atoms": 11, "reward_scale": 1.0}
  return rainbow.Config(**defaults | fields)


@functools.cache
def agent_of(**fields):
  return config_of(**fields).make(SPEC)


@functools.cache
def jitted(method, **fields):
  return jax.jit(getattr(agent_of(**fields), method))


@functools.cache
def state_of(**fields):
  return cases.random_state(agent_of(**fields), config_of(**fields))


@functools.cache
def sample_of(**fields):
  agent, ends = agent_of(**fields), np.linspace(0, 0.5, ROWS)
  unroll = conftest.random_unroll(agent, SPEC, agent.needs.window, ends)
  return types.Sample(unroll, np.linspace(0.5, 1.0, ROWS).astype(np.float32))


# Components


PLAIN = {"noise_scale": 0.0, "n_step": 2, "dueling": False}
# With these settings, programs are small.
NOISY = {"n_step": 1, "dueling": False}


def test_rainbow_without_any_component_is_dqn():
  off = {"double": False, "dueling": False, "n_step": 1}
  config = dqn.Config(
    hidden_sizes=(8,), reward_scale=1.0, epsilon_end=0.0, epsilon_steps=0, **off
  )
  off |= {"num_atoms": 0, "noise_scale": 0.0}
  expected = config.make(SPEC)
  arguments = state_of(**off), jax.random.key(3), sample_of(**off)
  for ours, theirs in zip(
    jax.tree.leaves(jitted("gradients", **off)(*arguments)),
    jax.tree.leaves(jax.jit(expected.gradients)(*arguments)),
    strict=True,
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)


def test_a_dueling_network_has_a_layer_for_the_value():
  def sizes(**fields):
    params = jax.eval_shape(agent_of(**fields).init, jax.random.key(0)).params
    return sorted(x.shape for x in jax.tree.leaves(params))

  single, dueling = (sizes(**PLAIN | {"dueling": x}) for x in (False, True))
  # 11 atoms for each of 3 actions, and 11 for the value.
  assert (8, 33) in single and (8, 33) in dueling
  assert (8, 11) in dueling and (8, 11) not in single
  assert sizes(**{"noise_scale": 0.0, "n_step": 2}) == dueling  # The default.


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"num_atoms": 1}, "at least 2 num_atoms"),
    ({"value_min": 3.0, "value_max": 3.0}, "found 11 from 3.0 to 3.0"),
    ({"rescale": True}, "rescale False and huber_delta 0"),
    ({"huber_delta": 1.0}, "rescale False and huber_delta 0"),
  ],
)
def test_unsupported_settings_are_refused(fields, message):
  with pytest.raises(types.ConfigError, match=message):
    config_of(**fields)


# Distributions


@pytest.mark.parametrize("double", [False, True])
def test_the_loss_compares_distributions_of_the_networks(double):
  agent, state, sample = (f(**PLAIN) for f in (agent_of, state_of, sample_of))
  atoms = np.linspace(-10, 10, 11, dtype=np.float32)
  inputs, window = sample.unroll.inputs, agent.needs.window
  acting = agent.acting(state)

  def outputs(params):
    variables = acting.variables._replace(params=params)
    output, _ = jitted("greedy", **PLAIN)(
      acting._replace(variables=variables),
      jax.random.key(0),
      jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), inputs),
      agent.initial_core_state(window * ROWS),
    )
    return jax.tree.map(
      lambda x: np.reshape(x, (window, ROWS, *x.shape[1:])),
      output.extras.outputs,
    )

  online, target = outputs(state.params), outputs(state.target_params)
  likely = np.exp(online.logits - online.logits.max(-1, keepdims=True))
  likely /= likely.sum(-1, keepdims=True)
  np.testing.assert_allclose(
    online.q_values, likely @ atoms, rtol=1e-4, atol=1e-5
  )
  loss_of = functools.partial(
    losses.categorical_q_learning, atoms=atoms, n=2, double=double
  )
  expected = jax.jit(jax.vmap(loss_of, in_axes=1, out_axes=1))(
    *online,
    *target,
    sample.unroll.action[:-1].astype(np.int32),
    inputs.timestep.step_type.astype(np.int32),
    inputs.timestep.reward,
    inputs.timestep.discount * np.float32(0.99),
  )
  gradients = jitted("gradients", double=double, **PLAIN)
  _, output = gradients(state, jax.random.key(0), sample)
  weight, loss = (np.asarray(x)[0] for x in (expected.weight, expected.loss))
  mean = np.sum(loss * sample.importance_weight * weight)
  np.testing.assert_allclose(
    output.metrics["loss"], mean / weight.sum(), rtol=1e-4
  )
  np.testing.assert_allclose(output.priorities, loss, rtol=1e-3, atol=1e-5)


# Noise


SCALE = 0.7
FEATURES = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
LAYER = networks.NoisyDense(3, SCALE)


@functools.cache
def layer_params():
  return jax.jit(LAYER.init)(jax.random.key(0), FEATURES)


def test_noise_has_the_variance_of_its_factors():
  params = layer_params()

  @jax.jit
  def drawn(key):
    def draw(key):
      return LAYER.apply(params, FEATURES, rngs={"noise": key})

    outputs = jax.vmap(draw)(jax.random.split(key, 20_000))
    return outputs.mean(axis=0), outputs.var(axis=0)

  actual_mean, actual_variance = drawn(jax.random.key(1))
  sigma = SCALE / 6**0.5
  # Each of the two factors has E |e| = sqrt(2 / pi).
  factor = (2 / np.pi) ** 0.5
  variance = sigma**2 * factor * (1 + factor * (FEATURES**2).sum(-1))
  mean = jax.jit(LAYER.apply)(params, FEATURES)
  layer = params["params"]["Dense_0"]
  np.testing.assert_allclose(
    mean, FEATURES @ layer["kernel"] + layer["bias"], rtol=1e-5, atol=1e-6
  )
  np.testing.assert_allclose(
    actual_mean, mean, atol=5 * (variance.max() / 20_000) ** 0.5
  )
  np.testing.assert_allclose(
    actual_variance, np.repeat(variance[..., None], 3, -1), rtol=0.1
  )


def test_noise_differs_between_streams_but_not_between_steps():
  same = np.repeat(FEATURES[:1, :1], 4, 0).repeat(5, 1)
  apply = jax.jit(LAYER.apply)
  outputs = apply(layer_params(), same, rngs={"noise": jax.random.key(2)})
  np.testing.assert_array_equal(outputs, np.repeat(outputs[:1], 4, 0))
  assert len(np.unique(outputs[0], axis=0)) == 5


def acted(core_state, first, seed):
  """Takes a step with equal observations; returns its output and core state."""
  acting = agent_of(**NOISY).acting(state_of(**NOISY))
  inputs = acting_step.zero_inputs(SPEC, ROWS)
  inputs.timestep.step_type[:] = 0 if first else 1
  inputs.timestep.observation[:] = 1.0
  step = jitted("step", **NOISY)
  return step(acting, jax.random.key(seed), inputs, core_state)


def start():
  return agent_of(**NOISY).initial_core_state(ROWS)


def q_values(output):
  return np.asarray(output.extras.outputs.q_values)


def test_noise_lasts_for_an_episode_and_differs_in_the_next():
  output, core_state = acted(start(), first=True, seed=0)
  one = q_values(output)
  assert len(np.unique(one, axis=0)) == ROWS
  # Epsilon is 0, so actions are greedy.
  np.testing.assert_array_equal(output.action, one.argmax(axis=-1))
  output, core_state = acted(core_state, first=False, seed=1)
  np.testing.assert_array_equal(one, q_values(output))
  output, _ = acted(core_state, first=True, seed=2)
  assert (one != q_values(output)).all()


def test_noise_depends_on_the_seed_and_not_on_the_batch():
  """A row acts the same in a partial batch as in a whole one."""
  whole, core_state = acted(start(), first=True, seed=0)
  rows = np.tile([3, 4], ROWS // 2)
  part = jax.tree.map(lambda x: np.asarray(x)[rows], core_state)
  output, _ = acted(part, first=False, seed=5)
  np.testing.assert_array_equal(q_values(output), q_values(whole)[rows])


def test_learning_draws_new_noise_for_each_update():
  state, sample = state_of(**NOISY), sample_of(**NOISY)
  state = dataclasses.replace(state, target_params=state.params)
  results = [
    jitted("gradients", **NOISY)(state, jax.random.key(k), sample)
    for k in (0, 0, 1)
  ]
  assert len({float(output.metrics["loss"]) for _, output in results}) == 2
  # The scale of the noise is learned, too.
  assert all(np.any(x) for x in jax.tree.leaves(results[0][0].params))


def test_the_target_network_has_noise_of_its_own(monkeypatch):
  """The loss is the distance of two networks with the same parameters."""

  def distance(config, atoms, evaluation):
    online, target = (x.logits[1:] for x in evaluation[:2])
    gap = jnp.abs(online - target).mean(axis=(-2, -1))
    return losses.QLearningLoss(gap, gap, jnp.ones_like(gap))

  monkeypatch.setattr(rainbow, "_loss", distance)
  fields = {"noise_scale": 0.5, **NOISY}
  agent, state = config_of(**fields).make(SPEC), state_of(**fields)
  state = dataclasses.replace(state, target_params=state.params)
  gradients = jax.jit(agent.gradients)
  _, output = gradients(state, jax.random.key(0), sample_of(**NOISY))
  assert output.metrics["loss"] > 0.01
