"""DQN: exploration, the target network, TD errors, and priorities."""

import dataclasses
import functools

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import distributions, networks, types
from seedx.agents import (
  acting_step,
  base,
  dqn,
  models,
  r2d2,
  rainbow,
  value_based,
)
from tests import conftest
from tests.agents import cases

MASKED = types.EnvironmentSpec(
  {"x": specs.Array((4,), np.float32), "legal": specs.Array((5,), bool)},
  specs.DiscreteArray(5),
  action_mask="legal",
)
SPECS = {"vector": cases.VECTOR, "image": cases.IMAGE, "masked": MASKED}


def config_of(**fields):
  defaults = {
    "hidden_sizes": (8,),
    "discount": 0.9,
    "reward_scale": 1.0,
    "n_step": 1,
    "epsilon_end": 0.05,
  }
  return dqn.Config(**defaults | fields)


@functools.cache
def agent_of(name="vector", horizon=None, **fields):
  return config_of(**fields).make(SPECS[name], None, horizon)


@functools.cache
def state_of(name="vector", **fields):
  return cases.random_state(agent_of(name, **fields), config_of(**fields))


@functools.cache
def jitted(method, name="vector", **fields):
  return jax.jit(getattr(agent_of(name, **fields), method))


@functools.cache
def network_of(name="vector", **fields):
  """Returns the network as `(params, inputs, core_state) -> [T, B, A]`."""
  config = config_of(**fields)
  head = networks.QHead(SPECS[name].action.num_values, config.dueling, 8)
  q_model = models.Model.make(SPECS[name], config, head)

  def q_values(params, inputs, core_state):
    return q_model.unroll(models.Variables(params, ()), inputs, core_state).head

  return jax.jit(q_values)


@functools.cache
def unroll_of(name="vector", length=12, size=40, **fields):
  ends = np.linspace(0, 0.6, size)
  agent = agent_of(name, **fields)
  return conftest.random_unroll(agent, SPECS[name], length, ends, seed=3)


def sample_of(unroll):
  weights = np.random.default_rng(3).uniform(0.5, 1.5, unroll.version.shape[1])
  return types.Sample(unroll, weights.astype(np.float32))


@functools.cache
def q_values_of(params="params", **fields):
  """Returns `[12, 40, 3]` Q-values with online or target params."""
  unroll, state = unroll_of(), state_of(**fields)
  network = network_of(dueling=fields.get("dueling", False))
  return np.asarray(
    network(getattr(state, params), unroll.inputs, unroll.core_state)
  )


# Exploration


def test_the_ladder_spreads_epsilons_over_environments():
  ladder = agent_of(epsilon_ladder=True).exploration
  for num_envs, expected in (
    (1, [0.01]),
    (3, [0.4, 0.4**4.5, 0.4**8]),
    (8, [0.4 ** (1 + i) for i in range(8)]),
  ):
    actual = ladder(num_envs)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    without_ladder = agent_of().exploration(num_envs)
    np.testing.assert_array_equal(without_ladder, np.zeros(num_envs))
    assert actual.dtype == without_ladder.dtype == np.float32


@pytest.mark.parametrize(
  ("steps", "horizon", "expected"),
  [
    (
      1000,
      base.Horizon(10_000, 100),
      {0: 1, 1: 0.92, 10: 0.2, 99: 0.2},
    ),
    # More updates than a JAX integer can count.
    (10**15, base.Horizon(10**16, 10**12), {0: 1, 10**9: 0.992}),
    (0, base.Horizon(10_000, 100), {0: 0.2, 100: 0.2}),
    # The length of the run is unknown.
    (1000, None, {0: 0.2, 100: 0.2}),
  ],
)
@pytest.mark.parametrize("ladder", [False, True])
def test_epsilon_falls_with_the_updates(steps, horizon, expected, ladder):
  agent = agent_of(horizon=horizon, epsilon_steps=steps, epsilon_ladder=ladder)
  end = state_of().hyperparameters | {"epsilon_end": np.float32(0.2)}
  state = dataclasses.replace(state_of(), hyperparameters=end)
  for updates, epsilon in expected.items():
    acting = agent.acting(
      dataclasses.replace(state, updates=jnp.int32(updates))
    )
    # With the ladder, `acting.epsilon` falls to 0, not to `epsilon_end`.
    epsilon = (epsilon - 0.2) / 0.8 if ladder else epsilon
    assert float(acting.epsilon) == pytest.approx(epsilon, abs=1e-6)


def acted(name, state, inputs, epsilon):
  acting = agent_of(name).acting(state)._replace(epsilon=np.float32(epsilon))
  core_state = agent_of(name).initial_core_state(len(inputs.exploration))
  step = jitted("step", name)
  output, _ = step(acting, jax.random.key(0), inputs, core_state)
  return np.asarray(output.action)


def test_the_frequency_of_random_actions_is_the_larger_epsilon():
  epsilon, rows = 0.25, 20_000
  ladder = np.array([0.0, 0.1, 0.5, 1.0], np.float32)
  exploration = np.repeat(ladder, rows)
  rng = np.random.default_rng(0)
  observation = rng.normal(size=(4 * rows, 4)).astype(np.float32)
  inputs = acting_step.zero_inputs(cases.VECTOR, 4 * rows)
  inputs = inputs._replace(
    timestep=inputs.timestep._replace(observation=observation),
    exploration=exploration,
  )
  action = acted("vector", state_of(), inputs, epsilon).reshape(4, rows)
  stream = jax.tree.map(lambda x: x[None], inputs)
  core_state = agent_of().initial_core_state(4 * rows)
  q_values = network_of()(state_of().params, stream, core_state)
  best = np.argmax(q_values[0], axis=-1).reshape(4, rows)
  assert len(np.unique(best)) > 1
  for minimum, taken, greedy in zip(ladder, action, best, strict=True):
    larger = max(minimum, epsilon)
    for one in np.unique(greedy):
      chosen = taken[greedy == one]
      frequencies = np.bincount(chosen, minlength=3) / len(chosen)
      expected = np.full(3, larger / 3)
      expected[one] += 1 - larger
      tolerance = 4 * np.sqrt(larger * 0.25 / len(chosen))
      np.testing.assert_allclose(frequencies, expected, atol=tolerance)


def test_a_row_that_explores_takes_any_action_equally_often():
  """Whether a row explores does not influence which action it draws."""
  epsilon, rows, draws = 0.3, 4, 10_000
  inputs = acting_step.zero_inputs(cases.VECTOR, rows)
  acting = agent_of().acting(state_of())._replace(epsilon=np.float32(epsilon))
  core_state = agent_of().initial_core_state(rows)

  @jax.jit
  def act(key):
    return jax.vmap(
      lambda key: agent_of().step(acting, key, inputs, core_state)[0].action
    )(jax.random.split(key, draws))

  actions = np.asarray(act(jax.random.key(0)))
  expected = np.full(3, epsilon / 3)
  expected[np.bincount(actions.ravel()).argmax()] += 1 - epsilon
  for row in actions.T:
    frequencies = np.bincount(row, minlength=3) / draws
    # Five standard deviations of the frequency 0.8.
    np.testing.assert_allclose(frequencies, expected, atol=0.02)


@pytest.mark.parametrize("exploration", [0.0, 1.0])
def test_only_legal_actions_are_taken(exploration):
  rows = 6_000
  inputs = acting_step.zero_inputs(MASKED, rows)
  inputs.timestep.observation["legal"][:] = [0, 1, 0, 1, 1]
  inputs.exploration[:] = exploration
  # The inputs are zeros, so Q-values are the biases.
  params = jax.tree.map(np.array, state_of("masked").params)
  params["params"]["head"]["Dense_0"]["bias"][:] = [9, 1, 8, 3, 2]
  state = dataclasses.replace(state_of("masked"), params=params)
  frequencies = np.bincount(acted("masked", state, inputs, 0.0), minlength=5)
  probability = 1 / 3 if exploration else 0
  expected = [0, probability, 0, 1 - 2 * probability, probability]
  np.testing.assert_allclose(frequencies / rows, expected, atol=0.03)
  assert frequencies[0] == frequencies[2] == 0


# Learning


def test_the_target_network_is_copied_every_target_period():
  fields = {"target_period": 3}
  state = jitted("init", **fields)(jax.random.key(0))
  chex.assert_trees_all_equal(state.target_params, state.params)
  copied = state.params
  for updates in range(1, 8):
    old_params = state.params
    state, _ = jitted("update", **fields)(
      state, jax.random.key(0), sample_of(cases.part(unroll_of(), 2))
    )
    assert cases.difference(state.params, old_params) > 1e-4
    if updates % 3 == 0:
      copied = state.params
    chex.assert_trees_all_equal(state.target_params, copied)


@pytest.mark.parametrize(
  ("n_step", "double", "extra_steps", "huber_delta"),
  conftest.slow_but([(3, True, 0, 0.5)], [(3, True, 0, 0.5), (3, False, 4, 0)]),
)
def test_td_errors_and_gradients_match_numpy(
  n_step, double, extra_steps, huber_delta
):
  fields = {"n_step": n_step, "double": double, "dueling": extra_steps > 0}
  fields |= {"huber_delta": huber_delta} if huber_delta else {}
  state, length = (
    state_of(**fields),
    agent_of(**fields).needs.window + extra_steps,
  )
  batch = sample_of(cases.part(unroll_of(), length))
  unroll, core_state = batch.unroll, batch.unroll.core_state
  q, target_q = (
    q_values_of(x, **fields)[:length] for x in ("params", "target_params")
  )
  errors, weights = cases.td_errors(q, target_q, unroll, n_step, double)
  assert 0 < np.sum(weights == 0) < weights.size / 2
  gradients, output = jitted("gradients", **fields)(
    state, jax.random.key(0), batch
  )
  total = weights.sum()
  assert output.weight == total
  np.testing.assert_allclose(
    output.priorities, np.abs(errors).mean(axis=0), rtol=1e-4, atol=1e-5
  )
  bound = huber_delta or np.inf
  clipped = np.clip(errors, -bound, bound)
  steps = clipped * (errors - 0.5 * clipped)
  loss = np.sum(steps * batch.importance_weight) / total
  assert output.metrics["loss"] == pytest.approx(loss, rel=1e-4)
  assert output.metrics["td_error"] == pytest.approx(
    np.abs(errors).sum() / total, rel=1e-4
  )
  # Only the Q-value of the action taken has a gradient, towards the return.
  cotangent = np.zeros(q.shape, np.float32)
  for t, b in np.ndindex(*errors.shape):
    weighted = clipped[t, b] * batch.importance_weight[b] / total
    cotangent[t, b, unroll.action[t, b]] = -weighted

  @jax.jit
  def differentiate(params):
    network = network_of(dueling=fields["dueling"])
    return jax.vjp(lambda x: network(x, unroll.inputs, core_state), params)[1](
      cotangent
    )

  (expected,) = differentiate(state.params)
  chex.assert_trees_all_close(gradients.params, expected, rtol=1e-3, atol=1e-5)
  # Importance weights and the bound of the errors have an effect.
  assert abs(steps.sum() / total - loss) > 1e-3
  assert np.any(clipped != errors) == (huber_delta > 0)


@pytest.mark.parametrize(
  ("name", "fields"),
  conftest.slow_but(
    [("masked", {"n_step": 3, "rescale": True})],
    [
      ("masked", {"n_step": 3, "rescale": True}),
      ("image", {"n_step": 3, "stack_frames": 4}),
    ],
  ),
)
def test_gradients_are_those_of_evaluating_all_steps_of_a_window(name, fields):
  unroll = unroll_of(name, stack_frames=fields.get("stack_frames", 1))
  batch = sample_of(cases.part(unroll, agent_of(name, **fields).needs.window))
  config = config_of(**fields)
  every_step = value_based.make(SPECS[name], config, dqn.loss_of(config))
  actual, expected = (
    gradients(state_of(name, **fields), jax.random.key(0), batch)
    for gradients in (
      jitted("gradients", name, **fields),
      jax.jit(every_step.gradients),
    )
  )
  assert 0 < actual[1].weight < 40
  close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5)
  jax.tree.map(close, actual, expected)


def test_a_longer_return_costs_no_more_evaluations():
  def flops(agent):
    batch = sample_of(cases.part(unroll_of(), agent.needs.window))
    gradients = jax.jit(agent.gradients)
    lowered = gradients.lower(state, jax.random.key(0), batch)
    return lowered.cost_analysis()["flops"]

  wide = {"hidden_sizes": (128, 128)}
  state = state_of(**wide)
  one, five = (flops(agent_of(n_step=n, **wide)) for n in (1, 5))
  assert five < 1.1 * one


def test_windows_include_the_frames_to_stack():
  for stack_frames, n_step, window in ((1, 1, 2), (1, 3, 4), (4, 3, 7)):
    agent = agent_of("image", stack_frames=stack_frames, n_step=n_step)
    assert agent.needs.window == window


def test_unsupported_settings_and_actions_are_refused():
  with pytest.raises(TypeError, match="recurrent"):
    # DQN has no memory, since windows begin in the middle of unrolls.
    dqn.Config(recurrent=True)
  continuous = specs.BoundedArray((2,), np.float32, -1.0, 1.0)
  several = specs.BoundedArray((2,), np.int32, 0, 3)
  hybrid = types.HybridArray(1, [0, -1], [3, 1])
  for config in (dqn.Config(), rainbow.Config(), r2d2.Config()):
    for action in (continuous, several, hybrid):
      spec = types.EnvironmentSpec(cases.VECTOR.observation, action)
      message = "discrete actions.*PPO, A2C or V-trace.*ActionWrapper"
      with pytest.raises(types.ConfigError, match=message):
        config.make(spec)
  wrong = {"n_step": 0, "huber_delta": -1.0, "target_period": 0}
  wrong |= {"epsilon_end": 1.1, "epsilon_steps": -1}
  for name, value in wrong.items():
    with pytest.raises(types.ConfigError, match=f"expected {name}"):
      dqn.Config(**{name: value})


# Initial priorities, and learning without a replay


@pytest.mark.parametrize(
  ("name", "fields"),
  conftest.slow_but(
    [("masked", {"n_step": 3, "rescale": True})],
    [
      ("masked", {"n_step": 3, "rescale": True}),
      ("image", {"n_step": 2, "stack_frames": 3, "double": False}),
    ],
  ),
)
def test_actors_compute_the_same_priorities_as_the_learner(name, fields):
  agent, state = agent_of(name, **fields), state_of(name, **fields)
  state = dataclasses.replace(state, target_params=state.params)
  windows, frames = 6, fields.get("stack_frames", 1)
  length = agent.needs.window + windows - 1
  unroll = cases.part(unroll_of(name, stack_frames=frames), length)
  q_values = network_of(name, stack_frames=frames)(
    state.params, unroll.inputs, unroll.core_state
  )
  mask = SPECS[name].action_mask
  legal = unroll.inputs.timestep.observation[mask] if mask else None
  q_values = distributions.only_legal(q_values, legal)
  unroll = unroll._replace(extras=value_based.Extras(np.asarray(q_values)))
  actual = np.asarray(
    jitted("priorities", name, **fields)(agent.acting(state), unroll)
  )
  assert actual.shape == (40, windows)
  for start in range(windows):
    steps = cases.part(unroll, agent.needs.window, start)
    if start:
      steps = steps._replace(core_state=agent.initial_core_state(40))
    _, output = jitted("gradients", name, **fields)(
      state, jax.random.key(0), sample_of(steps)
    )
    np.testing.assert_allclose(
      actual[:, start], output.priorities, rtol=1e-4, atol=1e-5
    )
  assert np.std(actual) > 1e-3


@pytest.mark.parametrize(
  ("n_step", "double"),
  conftest.slow_but([(5, False)], [(5, False), (9, True)]),
)
def test_without_a_replay_all_steps_of_an_unroll_are_learned_from(
  n_step, double
):
  fields = {"n_step": n_step, "double": double, "replayed": False}
  agent, unroll = agent_of(**fields), cases.part(unroll_of(), 7)
  assert agent.needs.window is None and agent.priorities is None
  q, target_q = (q_values_of(x)[:7] for x in ("params", "target_params"))
  errors, weights = cases.td_errors(
    q, target_q, unroll, n_step, double, whole=False
  )
  gradients = jitted("gradients", **fields)
  _, output = gradients(state_of(), jax.random.key(0), unroll)
  assert output.weight == weights.sum() < weights.size
  expected = 0.5 * np.sum(errors**2) / weights.sum()
  assert output.metrics["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_without_a_replay_frames_are_stacked_from_the_core_state():
  fields = {"stack_frames": 3, "replayed": False}
  agent, state = agent_of("image", **fields), state_of("image", **fields)
  unroll = conftest.random_unroll(agent, cases.IMAGE, 5, np.zeros(4), seed=1)
  unroll.inputs.timestep.step_type[:] = dm_env.StepType.MID
  gradients = jitted("gradients", "image", **fields)
  _, output = gradients(state, jax.random.key(0), unroll)
  assert output.weight == 4 * 4
  frames = jax.tree.map(lambda x: np.full_like(x, 200), unroll.core_state)
  _, other = gradients(
    state, jax.random.key(0), unroll._replace(core_state=frames)
  )
  assert abs(output.metrics["loss"] - other.metrics["loss"]) > 1e-5


# Starting and applying gradients


def test_start_counts_the_given_number_of_updates():
  agent = agent_of(horizon=base.Horizon(1000, 20))

  @jax.jit
  def started(rng_key):
    state = agent.init(rng_key)
    return state, *(agent.start(state.params, k) for k in (0, 7))

  state, early, late = started(jax.random.key(0))
  chex.assert_trees_all_equal(early, state)
  assert state.hyperparameters == state_of().hyperparameters
  assert late.updates == 7
  chex.assert_trees_all_equal(late.optimizer_state[-1].count, 7)
  chex.assert_trees_all_equal(late.params, state.params)


def test_rmsprop_matches_the_paper():
  decay, epsilon, rate = 0.99, 1e-3, 0.5
  fields = {"optimizer": "rmsprop", "rms_epsilon": epsilon}
  fields |= {"max_gradient_norm": 1e9}
  agent = agent_of(**fields, learning_rate=rate)
  state = agent.start(np.zeros(3, np.float32), 0)
  apply = jax.jit(agent.apply)
  params, square = np.zeros(3), np.zeros(3)
  rng = np.random.default_rng(0)
  for _ in range(5):
    gradient = rng.normal(size=3)
    square = decay * square + (1 - decay) * gradient**2
    params -= rate * gradient / np.sqrt(square + epsilon)
    state = apply(state, base.Gradients(np.float32(gradient)))
    np.testing.assert_allclose(state.params, params, rtol=1e-5, atol=1e-5)


# Diagnostics


def test_dqn_logs_its_q_values_errors_epsilon_and_learning_rate():
  horizon = base.Horizon(env_steps=1_000, updates=10)
  state = dataclasses.replace(state_of(), updates=np.int32(2))
  sample = sample_of(cases.part(unroll_of(), 2))
  gradients = jitted("gradients", horizon=horizon)
  _, output = gradients(state, jax.random.key(0), sample)
  metrics = jax.device_get(output.metrics)
  acting = jax.jit(agent_of(horizon=horizon).acting)(state)
  assert (
    0.05 < metrics["epsilon"] < 1.0 and metrics["epsilon"] == acting.epsilon
  )
  rate = state.hyperparameters["learning_rate"]
  assert metrics["learning_rate"] == pytest.approx(0.8 * rate, rel=1e-5)
  assert metrics["gradient_norm"] > 0
  kept = sample.unroll.inputs.timestep.step_type[1] != 0
  errors = np.asarray(output.priorities)[kept]
  for name, quantile in (("td_error_p50", 0.5), ("td_error_p95", 0.95)):
    expected = np.quantile(errors, quantile, method="lower")
    assert metrics[name] == pytest.approx(expected, rel=1e-5)
  taken = np.take_along_axis(
    q_values_of()[0], sample.unroll.action[0][:, None], axis=1
  )
  assert metrics["q_mean"] == pytest.approx(taken[kept].mean(), rel=1e-4)
