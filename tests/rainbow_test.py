"""Rainbow: its components one by one, noise, and a known distribution."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import losses, networks, types
from seedx.agents import acting_step, dqn, rainbow, value_based
from seedx.learning import experience
from tests import conftest

SPEC = types.EnvironmentSpec(
  specs.Array((4,), np.float32), specs.DiscreteArray(3)
)
ROWS = 16


def config_of(**fields):
  defaults = {"hidden_sizes": (8,), "num_atoms": 11, "reward_scale": 1.0}
  return rainbow.Config(**defaults | fields)


@functools.cache
def agent_of(**fields):
  return config_of(**fields).make(SPEC)


def state_of(agent):
  """A state whose target network is another."""
  init = jax.jit(agent.init)
  state, other = (init(jax.random.key(seed)) for seed in (0, 1))
  return dataclasses.replace(state, target_params=other.params)


def sample_of(agent, seed=0):
  length = agent.needs.window
  ends = np.linspace(0, 0.5, ROWS)
  unroll = conftest.random_unroll(agent, SPEC, length, ends, seed)
  return types.Sample(unroll, np.linspace(0.5, 1.0, ROWS).astype(np.float32))


def inputs_of(rows=ROWS, first=True):
  inputs = acting_step.zero_inputs(SPEC, rows)
  inputs.timestep.step_type[:] = 0 if first else 1
  inputs.timestep.observation[:] = 1.0
  return inputs


# Components


COMPONENTS = {
  "double": {"double": False},
  "dueling": {"dueling": False},
  "n_step": {"n_step": 1},
  "num_atoms": {"num_atoms": 0},
  "noise_scale": {"noise_scale": 0.0},
}


def program_of(**fields):
  """The update of a config, as text."""
  agent = agent_of(**fields)
  state = jax.eval_shape(agent.init, jax.random.key(0))
  batch = sample_of(agent)
  return jax.jit(agent.update).lower(state, jax.random.key(0), batch).as_text()


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_that_is_off_is_another_program(name):
  assert program_of(**COMPONENTS[name]) != program_of()


def test_without_priorities_windows_are_drawn_alike():
  """The sixth component: alpha 0 gives every window one probability."""

  def drawn(alpha):
    config = experience.PrioritizedConfig(
      replay_min_steps=1,
      replay_batch_size=64,
      replay_ratio=1000.0,
      priority_exponent=alpha,
    )
    agent = agent_of()
    source = experience.Plan(10_000, ROWS, config).source(
      agent, 1, jax.devices()[:1], jax.random.key(0)
    )
    share = types.Share(
      sample_of(agent).unroll, np.eye(ROWS, 1, dtype=np.float32) * 100
    )
    batches = [next(iter(source([share]))) for _ in range(5)]
    leaves = np.concatenate([batch.windows[0].leaf for batch in batches])
    return (leaves % ROWS == 0).mean()

  assert drawn(0.0) < 0.2
  assert drawn(1.0) > 0.9


def test_without_any_component_it_is_dqn():
  off = {k: v for fields in COMPONENTS.values() for k, v in fields.items()}
  plain = {"hidden_sizes": (8,), "reward_scale": 1.0, "double": False}
  expected = dqn.Config(
    n_step=1, epsilon_end=0.0, epsilon_steps=0, **plain
  ).make(SPEC)
  actual = agent_of(**off)
  state, sample = state_of(expected), sample_of(expected)
  key = jax.random.key(3)
  for ours, theirs in zip(
    jax.tree.leaves(jax.jit(actual.update)(state, key, sample)),
    jax.tree.leaves(jax.jit(expected.update)(state, key, sample)),
    strict=True,
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"num_atoms": 1}, "at least 2 num_atoms"),
    ({"value_min": 3.0, "value_max": 3.0}, "found 11 from 3.0 to 3.0"),
    ({"noise_scale": -1.0}, "noise_scale of at least 0.0"),
    ({"rescale": True}, "rescale False and huber_delta 0"),
    ({"huber_delta": 1.0}, "rescale False and huber_delta 0"),
  ],
)
def test_what_cannot_be_is_refused(fields, message):
  with pytest.raises(types.ConfigError, match=message):
    config_of(**fields)


def test_continuous_actions_are_refused():
  spec = dataclasses.replace(
    SPEC, action=specs.BoundedArray((2,), np.float32, -1, 1)
  )
  with pytest.raises(types.ConfigError, match="discrete actions"):
    config_of().make(spec)


# Distributions


def test_the_loss_is_that_of_the_networks_distributions():
  agent = agent_of(noise_scale=0.0, n_step=2, dueling=False)
  state, sample = state_of(agent), sample_of(agent)
  atoms = np.linspace(-10, 10, 11, dtype=np.float32)
  inputs = sample.unroll.inputs

  def outputs(params):
    variables = agent.acting(state).variables._replace(params=params)
    acting = agent.acting(state)._replace(variables=variables)
    steps = [
      agent.greedy(
        acting,
        jax.random.key(0),
        jax.tree.map(lambda x, t=t: x[t], inputs),
        agent.initial_core_state(ROWS),
      )[0].extras.outputs
      for t in range(agent.needs.window)
    ]
    return jax.tree.map(lambda *x: jnp.stack(x), *steps)

  online, target = outputs(state.params), outputs(state.target_params)
  np.testing.assert_allclose(
    online.q_values,
    jax.nn.softmax(online.logits) @ atoms,
    rtol=1e-4,
    atol=1e-5,
  )
  expected = jax.vmap(
    functools.partial(losses.categorical_q_learning, atoms=atoms, n=2),
    in_axes=1,
    out_axes=1,
  )(
    *online,
    *target,
    sample.unroll.action[:-1].astype(np.int32),
    inputs.timestep.step_type.astype(np.int32),
    inputs.timestep.reward,
    inputs.timestep.discount * 0.99,
  )
  _, output = jax.jit(agent.gradients)(state, jax.random.key(0), sample)
  weight = np.asarray(expected.weight[0])
  loss = np.sum(expected.loss[0] * sample.importance_weight * weight)
  np.testing.assert_allclose(
    output.metrics["loss"], loss / weight.sum(), rtol=1e-4
  )
  np.testing.assert_allclose(
    output.priorities, expected.loss[0], rtol=1e-3, atol=1e-5
  )


def test_two_states_with_a_known_distribution_are_learned():
  """From state 0 comes a reward of 1 or 3, by chance, and then state 1.

  There the reward is 2 and the episode ends. With a discount of 1/2 the return
  of state 0 is 1 + 1 or 3 + 1, each in half of the episodes.
  """
  atoms = jnp.linspace(0.0, 4.0, 5)
  step_type = jnp.array([0, 1, 2])
  discount = jnp.array([1.0, 0.5, 0.0])
  rewards = jnp.array([[0.0, 1.0, 2.0], [0.0, 3.0, 2.0]])

  def loss(logits):
    """Of state 0, state 1 and the end, `[3, 1, 5]`."""
    q_values = jax.nn.softmax(logits) @ atoms

    def of_one(reward):
      return losses.categorical_q_learning(
        q_values,
        logits,
        q_values,
        logits,
        jnp.zeros(2, jnp.int32),
        step_type,
        reward,
        discount,
        atoms=atoms,
      ).loss

    return jnp.mean(jnp.sum(jax.vmap(of_one)(rewards), axis=1))

  def descend(logits, _):
    return logits - 0.5 * jax.grad(loss)(logits), ()

  logits, _ = jax.lax.scan(descend, jnp.zeros((3, 1, 5)), length=4000)
  found = jax.nn.softmax(logits)[:, 0]
  np.testing.assert_allclose(found[0], [0, 0, 0.5, 0, 0.5], atol=0.01)
  np.testing.assert_allclose(found[1], [0, 0, 1, 0, 0], atol=0.01)


# Noise


def noisy_layer(scale=0.5):
  layer = networks.NoisyDense(3, scale)
  features = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
  return layer, layer.init(jax.random.key(0), features), features


def test_noise_has_the_variance_of_its_factors():
  layer, params, features = noisy_layer(scale=0.7)
  apply = jax.jit(
    lambda key: layer.apply(params, features, rngs={"noise": key})
  )
  drawn = jax.vmap(apply)(jax.random.split(jax.random.key(1), 20_000))
  mean = layer.apply(params, features)
  sigma = 0.7 / 6**0.5
  # E |e| = sqrt(2 / pi), of each of the two factors.
  factor = (2 / np.pi) ** 0.5
  variance = sigma**2 * factor * (1 + factor * (features**2).sum(-1))
  np.testing.assert_allclose(
    drawn.mean(axis=0), mean, atol=5 * (variance.max() / 20_000) ** 0.5
  )
  np.testing.assert_allclose(
    drawn.var(axis=0), np.repeat(variance[..., None], 3, -1), rtol=0.1
  )


def test_noise_differs_by_stream_and_lasts_for_all_its_steps():
  layer, params, features = noisy_layer()
  same = np.repeat(features[:1, :1], 4, 0).repeat(5, 1)
  found = layer.apply(params, same, rngs={"noise": jax.random.key(2)})
  for time in range(1, 4):
    np.testing.assert_array_equal(found[time], found[0])
  assert len(np.unique(np.asarray(found[0]), axis=0)) == 5


def test_without_random_numbers_there_is_no_noise():
  layer, params, features = noisy_layer()
  mean, spread = params["params"]["Dense_0"], params["params"]["Dense_1"]
  np.testing.assert_allclose(
    layer.apply(params, features),
    features @ mean["kernel"] + mean["bias"],
    rtol=1e-5,
    atol=1e-6,
  )
  np.testing.assert_allclose(spread["kernel"], 0.5 / 6**0.5)
  np.testing.assert_allclose(spread["bias"], 0.5 / 6**0.5)


def acted(agent, core_state, first, seed, rows=ROWS):
  acting = agent.acting(state_of(agent))
  output, core_state = jax.jit(agent.step)(
    acting, jax.random.key(seed), inputs_of(rows, first), core_state
  )
  return np.asarray(output.extras.outputs.q_values), core_state


def test_an_episode_has_one_noise_and_the_next_another():
  agent = agent_of()
  start = agent.initial_core_state(ROWS)
  one, core_state = acted(agent, start, first=True, seed=0)
  assert len(np.unique(one, axis=0)) == ROWS  # Of the same observation.
  two, core_state = acted(agent, core_state, first=False, seed=1)
  np.testing.assert_array_equal(one, two)
  three, _ = acted(agent, core_state, first=True, seed=2)
  assert (one != three).all()


def test_noise_is_that_of_the_seed_whatever_the_batch():
  """A row acts alike in a batch of any size, as partial batches need."""
  agent = agent_of()
  whole, core_state = acted(agent, agent.initial_core_state(ROWS), True, 0)
  part = jax.tree.map(lambda x: x[3:5], core_state)
  found, _ = acted(agent, part, first=False, seed=5, rows=2)
  np.testing.assert_allclose(found, whole[3:5], rtol=1e-5, atol=1e-6)


def test_greedy_steps_have_no_noise():
  agent = agent_of()
  acting = agent.acting(state_of(agent))
  outputs = [
    agent.greedy(
      acting, jax.random.key(seed), inputs_of(), agent.initial_core_state(ROWS)
    )[0].extras.outputs.q_values
    for seed in (0, 1)
  ]
  np.testing.assert_array_equal(*outputs)
  np.testing.assert_allclose(outputs[0], outputs[0][:1].repeat(ROWS, 0))


def test_learning_draws_new_noise_for_each_update_and_network():
  agent = agent_of(num_atoms=0)
  state = dataclasses.replace(
    state_of(agent), target_params=state_of(agent).params
  )
  sample = sample_of(agent)
  gradients = jax.jit(agent.gradients)
  losses_found = {
    float(gradients(state, jax.random.key(k), sample)[1].metrics["loss"])
    for k in (0, 0, 1)
  }
  assert len(losses_found) == 2
  # The noise has a gradient: how large it is, is learned.
  found, _ = gradients(state, jax.random.key(0), sample)
  moved = [np.any(x) for x in jax.tree.leaves(found.params)]
  assert all(moved)


def test_extras_are_what_acted():
  agent = agent_of()
  output, _ = agent.step(
    agent.acting(state_of(agent)),
    jax.random.key(0),
    inputs_of(),
    agent.initial_core_state(ROWS),
  )
  assert isinstance(output.extras, value_based.Extras)
  best = output.extras.outputs.q_values.argmax(axis=-1)
  np.testing.assert_array_equal(output.action, best)  # Epsilon is 0.
