"""DDPG, TD3 and D4PG: updates, exploration, and each setting."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import types
from seedx.agents import acting_step, ddpg
from tests.agents import cases, critics_cases
from tests.agents import critics_reference as reference

# Updates, each of which is compared with the reference


def test_an_update_of_ddpg_matches_numpy():
  critics_cases.check_updates("ddpg", reference.DDPG, updates=1)
  critics_cases.check_updates("ddpg", reference.DDPG)


def test_clipped_action_gradients_three_steps_and_tanh_match_numpy():
  fields = {"n_step": 3, "action_gradient_clip": 0.2, "activation": "tanh"}
  learner, _ = critics_cases.check_updates("ddpg", reference.DDPG, **fields)
  assert 0 < learner.clipped_slopes < 6 * critics_cases.BATCH * 2


NOISY = {"target_noise": 0.9}


def test_td3_matches_numpy():
  learner, _ = critics_cases.check_updates("td3", reference.DDPG, **NOISY)
  # Both bounds have an effect.
  assert learner.clipped_noise > 10 and learner.clipped_actions >= 10


def test_without_a_replay_all_steps_of_an_unroll_are_learned_from():
  """The last returns have less than three steps."""
  fields = {"replayed": False, "n_step": 3}
  agent = critics_cases.agent_of("ddpg", **fields)
  assert agent.needs.window is None and agent.priorities is None
  config = critics_cases.config_of("ddpg", **fields)
  state = critics_cases.state_of("ddpg", **fields)
  sample = critics_cases.sample_of(agent, length=6)._replace(
    importance_weight=np.ones(critics_cases.BATCH, np.float32)
  )
  actual, output = critics_cases.jitted("gradients", "ddpg", **fields)(
    state, jax.random.key(0), sample.unroll
  )
  learner = reference.DDPG(state.params, state.target_params, config)
  batches = [critics_cases.batch_of(sample, config, t) for t in range(5)]
  total = sum(batch.weight.sum() for batch in batches)
  assert output.weight == total < 5 * critics_cases.BATCH
  expected = []
  for batch in batches:
    scale = batch.weight / total
    critic, _ = learner.critic_gradient(batch, np.zeros(2), scale)
    gradients = learner.actor_gradients(batch, None, scale) | {"critic": critic}
    expected.append(gradients)
  for key, gradient in reference.groups_of(actual.params).items():
    steps = [reference.arrays(x[key]) for x in expected]
    for x, terms in zip(
      reference.arrays(gradient), zip(*steps, strict=True), strict=True
    ):
      np.testing.assert_allclose(x, sum(terms), rtol=1e-4, atol=1e-6)


# Exploration


def test_noise_is_added_to_the_actors_action_and_clipped():
  state = dataclasses.replace(
    critics_cases.state_of("ddpg"), updates=np.int32(1)
  )
  inputs, key = critics_cases.inputs_of(), jax.random.key(0)
  noise = np.asarray(
    jax.random.normal(jax.random.split(key)[0], (critics_cases.ROWS, 2))
  )
  layers = reference.groups_of(state.params)["actor"]
  outputs, _ = reference.forward(layers, inputs.timestep.observation)
  greedy = critics_cases.act("ddpg", state, inputs, "greedy")
  np.testing.assert_allclose(greedy, np.tanh(outputs), rtol=1e-5, atol=1e-6)
  # The scale may change at run time.
  for scale in (0.1, 3.0):
    changed = cases.with_hyperparameters(state, noise_scale=scale)
    expected = np.clip(greedy + scale * noise, -1, 1)
    action = critics_cases.act("ddpg", changed, inputs)
    np.testing.assert_allclose(action, expected, rtol=1e-4, atol=1e-5)


def test_each_environment_of_a_ladder_has_its_own_noise():
  ladder = critics_cases.agent_of("ddpg", noise_ladder=True).exploration
  factors = ladder(5)
  assert factors.dtype == np.float32
  np.testing.assert_allclose(factors, [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16])
  np.testing.assert_array_equal(ladder(1), [1])
  without = critics_cases.agent_of("ddpg").exploration(5)
  np.testing.assert_array_equal(without, np.zeros(5))
  state = critics_cases.still(critics_cases.state_of("ddpg"))
  rows = critics_cases.ROWS // 5
  for exploration, expected, fields in (
    (np.repeat(factors, rows), 0.1 * factors, {"noise_ladder": True}),
    (0.0, np.full(5, 0.1), {}),
  ):
    inputs = critics_cases.inputs_of(exploration=exploration)
    action = critics_cases.act("ddpg", state, inputs, **fields)
    scale = action.reshape(5, -1).std(axis=1)
    np.testing.assert_allclose(scale, expected, rtol=0.1)


# D4PG


@pytest.mark.slow
def test_atoms_learn_the_returns_of_a_bandit_and_the_actor_the_best_action():
  """The reward is the action, and -1 or 3 with probabilities 3/4 and 1/4."""
  spec = critics_cases.ONE_ACTION
  config = ddpg.Config(
    hidden_sizes=(16,),
    num_atoms=21,
    value_min=-5.0,
    value_max=5.0,
    learning_rate=1e-2,
    critic_learning_rate=1e-2,
  )
  agent, rng = config.make(spec), np.random.default_rng(0)
  actions = rng.uniform(-1, 1, (600, 128))
  coins = np.where(rng.random(actions.shape) < 0.25, 3.0, -1.0)
  samples = critics_cases.bandit_samples(actions, actions + coins)
  state, _ = critics_cases.train(agent, samples, jax.random.key(0))
  inputs = acting_step.zero_inputs(spec, 400)
  inputs.timestep.observation[:] = 1.0
  step, greedy = jax.jit(agent.step), jax.jit(agent.greedy)
  acting, start = agent.acting(state), agent.initial_core_state(400)
  best, _ = greedy(acting, jax.random.key(1), inputs, start)
  assert np.all(best.action > 0.9)
  # Random actions, whose distributions are in the extras.
  acting = acting._replace(updates=jnp.int32(0))
  output, _ = step(acting, jax.random.key(1), inputs, start)
  action = np.asarray(output.action)[:, 0]
  shares = np.asarray(jax.nn.softmax(output.extras.outputs))[:, 0]
  atoms = np.linspace(-5, 5, 21)
  mean = shares @ atoms
  np.testing.assert_allclose(mean, action, atol=0.4)
  assert np.abs(mean - action).mean() < 0.15
  # A quarter of the returns is above 1.5, whichever the action.
  high = shares[:, atoms > 1.5].sum(axis=1)
  assert np.abs(high - 0.25).mean() < 0.04


# Settings


def test_td3_is_ddpg_with_three_changes():
  td3, plain = ddpg.td3(), ddpg.Config()
  assert (plain.num_critics, plain.actor_period, plain.target_noise) == (
    1,
    1,
    0,
  )
  assert (td3.num_critics, td3.actor_period, td3.target_noise) == (2, 2, 0.2)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    # These numbers are equal in float32.
    (
      {"num_atoms": 3, "value_min": 1e8, "value_max": 1e8 + 1},
      "a larger value_max",
    ),
    ({"actor_period": 0}, "expected actor_period"),
    ({"noise_correlation": 1.0}, "expected noise_correlation"),
  ],
)
def test_wrong_settings_are_refused(fields, message):
  with pytest.raises(types.ConfigError, match=message):
    ddpg.Config(**fields)
