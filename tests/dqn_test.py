"""DQN: exploration, the target network, TD errors, and the burn-in."""

import dataclasses
import functools

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import distributions, networks, replay, types
from seedx.agents import acting_step, base, dqn, model, value_based
from tests import conftest

VECTOR = types.EnvironmentSpec(
  specs.Array((4,), np.float32), specs.DiscreteArray(3)
)
IMAGE = types.EnvironmentSpec(
  specs.BoundedArray((1, 36, 36), np.uint8, 0, 255), specs.DiscreteArray(3)
)
MASKED = types.EnvironmentSpec(
  {"x": specs.Array((4,), np.float32), "legal": specs.Array((5,), bool)},
  specs.DiscreteArray(5),
  action_mask="legal",
)
SPECS = {"vector": VECTOR, "image": IMAGE, "masked": MASKED}


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
  """A state whose target network is another, so that it is told apart."""
  init = jax.jit(agent_of(name, **fields).init)
  state, other = (init(jax.random.key(seed)) for seed in (0, 1))
  return dataclasses.replace(state, target_params=other.params)


def q_values_of(spec, config, params, inputs, core_state):
  """The network's own words, `[T, B, A]`."""
  head = networks.QHead(spec.action.num_values, config.dueling, 8)
  q_model = model.Model.make(spec, config, head)
  return q_model.unroll(model.Variables(params, ()), inputs, core_state).head


def as_acted(spec, config, state, unroll):
  """An unroll with the Q-values with which it would have been acted."""
  q_values = q_values_of(
    spec, config, state.params, unroll.inputs, unroll.core_state
  )
  mask = spec.action_mask
  legal = unroll.inputs.timestep.observation[mask] if mask else None
  q_values = distributions.only_legal(q_values, legal)
  return unroll._replace(extras=value_based.Extras(q_values))


# Exploration


@pytest.mark.parametrize(
  ("num_envs", "expected"),
  [
    (1, [0.01]),
    (2, [0.4, 0.4**8]),
    (3, [0.4, 0.4**4.5, 0.4**8]),
    (8, [0.4 ** (1 + i) for i in range(8)]),
  ],
)
def test_the_ladder_of_epsilons(num_envs, expected):
  actual = agent_of(epsilon_ladder=True).exploration(num_envs)
  np.testing.assert_allclose(actual, expected, rtol=1e-6)
  assert actual.dtype == np.float32
  none = agent_of().exploration(num_envs)
  np.testing.assert_array_equal(none, np.zeros(num_envs, np.float32))
  assert none.dtype == np.float32


@pytest.mark.parametrize(
  ("fields", "horizon", "expected"),
  [
    (
      {"epsilon_end": 0.2, "epsilon_steps": 1000},
      base.Horizon(env_steps=10_000, updates=100),
      {0: 1.0, 1: 0.92, 5: 0.6, 10: 0.2, 11: 0.2, 10**9: 0.2},
    ),
    # More than JAX's integers count to.
    (
      {"epsilon_end": 0.2, "epsilon_steps": 10**15},
      base.Horizon(env_steps=10**16, updates=10**12),
      {0: 1.0, 10**9: 0.992},
    ),
    # Longer than the run.
    (
      {"epsilon_end": 0.2, "epsilon_steps": 1000},
      base.Horizon(env_steps=500, updates=5),
      {0: 1.0, 1: 0.92, 5: 0.6, 10: 0.2, 11: 0.2},
    ),
    (
      {"epsilon_end": 0.2, "epsilon_steps": 0},
      base.Horizon(env_steps=10_000, updates=100),
      {0: 0.2, 1: 0.2, 100: 0.2},
    ),
    # How long the run is nobody knows.
    (
      {"epsilon_end": 0.2, "epsilon_steps": 1000},
      None,
      {0: 0.2, 1: 0.2, 100: 0.2},
    ),
    # The ladder takes the end's place.
    (
      {"epsilon_ladder": True, "epsilon_steps": 40},
      base.Horizon(env_steps=80, updates=8),
      {0: 1.0, 1: 0.75, 4: 0.0, 5: 0.0},
    ),
    ({"epsilon_ladder": True}, None, {0: 0.0}),
  ],
)
def test_epsilon_falls_with_the_updates(fields, horizon, expected):
  agent = agent_of(horizon=horizon, **fields)
  hyperparameters = jax.jit(agent.init)(jax.random.key(0)).hyperparameters
  for updates, epsilon in expected.items():
    state = dataclasses.replace(
      state_of(),
      updates=jnp.int32(updates),
      hyperparameters=hyperparameters,
    )
    acting = agent.acting(state)
    assert acting.epsilon.dtype == jnp.float32
    assert float(acting.epsilon) == pytest.approx(epsilon, abs=1e-6)


def acted(agent, state, inputs, epsilon, seed=0):
  acting = agent.acting(state)._replace(epsilon=jnp.float32(epsilon))
  core_state = agent.initial_core_state(len(inputs.exploration))
  output, _ = jax.jit(agent.step)(
    acting, jax.random.key(seed), inputs, core_state
  )
  return np.asarray(output.action)


@pytest.mark.parametrize("epsilon", [0.0, 0.25, 1.0])
def test_the_share_of_random_actions_is_the_larger_epsilon(epsilon):
  ladder, rows = np.array([0.0, 0.1, 0.5, 1.0], np.float32), 20_000
  exploration = np.repeat(ladder, rows)
  rng = np.random.default_rng(0)
  observation = rng.normal(size=(4 * rows, 4)).astype(np.float32)
  inputs = acting_step.zero_inputs(VECTOR, 4 * rows)
  inputs = inputs._replace(
    timestep=inputs.timestep._replace(observation=observation),
    exploration=exploration,
  )
  action = acted(agent_of(), state_of(), inputs, epsilon).reshape(4, rows)
  stream = jax.tree.map(lambda x: x[None], inputs)
  q_values = q_values_of(
    VECTOR,
    config_of(),
    state_of().params,
    stream,
    agent_of().initial_core_state(4 * rows),
  )
  best = np.argmax(q_values[0], axis=-1).reshape(4, rows)
  assert len(np.unique(best)) > 1
  # A random action is the best one a third of the time.
  expected = np.maximum(ladder, epsilon) * 2 / 3
  found = np.mean(action != best, axis=1)
  np.testing.assert_allclose(found, expected, atol=4 * np.sqrt(0.25 / rows))
  np.testing.assert_array_equal(found[expected == 0], 0.0)
  frequencies = np.bincount(action[3], minlength=3) / rows
  np.testing.assert_allclose(frequencies, 1 / 3, atol=0.015)


def test_a_row_that_explores_takes_any_action_equally_often():
  """Over many keys: whether it explores says nothing about the action."""
  epsilon, rows, draws = 0.3, 4, 10_000
  agent, inputs = agent_of(), acting_step.zero_inputs(VECTOR, rows)
  acting = agent.acting(state_of())._replace(epsilon=jnp.float32(epsilon))
  core_state = agent.initial_core_state(rows)

  @jax.jit
  @jax.vmap
  def act(key):
    return agent.step(acting, key, inputs, core_state)[0].action

  actions = np.asarray(act(jax.random.split(jax.random.key(0), draws)))
  greedy, _ = jax.jit(agent.greedy)(
    acting, jax.random.key(0), inputs, core_state
  )
  for row, best in zip(actions.T, np.asarray(greedy.action), strict=True):
    expected = np.full(3, epsilon / 3)
    expected[best] += 1 - epsilon
    frequencies = np.bincount(row, minlength=3) / draws
    # Four standard deviations of a share of 0.1.
    np.testing.assert_allclose(frequencies, expected, atol=0.02)


@pytest.mark.parametrize("exploration", [0.0, 1.0])
def test_only_legal_actions_are_taken(exploration):
  rows = 6_000
  legal = np.tile([0, 1, 0, 1, 1], (rows, 1)).astype(bool)
  inputs = acting_step.zero_inputs(MASKED, rows)
  inputs.timestep.observation["legal"][:] = legal
  inputs.exploration[:] = exploration
  # Zeros in, the same Q-values out, but for what the biases say.
  state = state_of("masked")
  params = jax.tree.map(lambda x: x, state.params)
  bias = params["params"]["head"]["Dense_0"]["bias"] = jnp.array(
    [9.0, 1.0, 8.0, 3.0, 2.0]
  )
  assert bias.shape == state.params["params"]["head"]["Dense_0"]["bias"].shape
  state = dataclasses.replace(state, params=params)
  action = acted(agent_of("masked"), state, inputs, 0.0)
  frequencies = np.bincount(action, minlength=5) / rows
  expected = (
    [0, 0, 0, 1, 0] if exploration == 0 else [0, 1 / 3, 0, 1 / 3, 1 / 3]
  )
  np.testing.assert_allclose(frequencies, expected, atol=0.03)
  assert frequencies[0] == frequencies[2] == 0


# Learning


def sample_of(agent, spec, length, ends, seed=0):
  unroll = conftest.random_unroll(agent, spec, length, ends, seed)
  weights = np.random.default_rng(seed).uniform(0.5, 1.5, len(ends))
  return types.Sample(unroll, weights.astype(np.float32))


@pytest.mark.parametrize("period", [1, 3])
def test_the_target_network_is_a_copy_of_every_so_many_updates(period):
  agent = agent_of(target_period=period)
  update = jax.jit(agent.update)
  state = jax.jit(agent.init)(jax.random.key(0))
  assert_equal(state.target_params, state.params)
  batch, copied = sample_of(agent, VECTOR, 2, np.zeros(4)), state.params
  for updates in range(1, 8):
    before = state.params
    state, _ = update(state, jax.random.key(0), batch)
    assert largest(state.params, before) > 1e-4
    if updates % period == 0:
      copied = state.params
    assert_equal(state.target_params, copied)


def assert_equal(actual, expected):
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


def largest(a, b):
  gaps = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), a, b)
  return max(jax.tree.leaves(gaps))


def td_errors(q, target_q, unroll, n, double, discount=0.9, whole=True):
  """Errors and weights `[T - n + 1, B]`, step by step in NumPy.

  Where returns need not be whole, the last n - 1 steps have shorter ones.
  """
  step_type, reward, factor, _ = unroll.inputs.timestep
  errors = np.zeros((len(q) - (n if whole else 1), q.shape[1]))
  weights = np.ones_like(errors)
  for t, b in np.ndindex(*errors.shape):
    if step_type[t + 1, b] == dm_env.StepType.FIRST:
      weights[t, b] = 0.0
      continue
    total, product = 0.0, 1.0
    for k in range(t + 1, min(t + n, len(q) - 1) + 1):
      total += product * reward[k, b]
      product *= factor[k, b] * discount
      if step_type[k, b] == dm_env.StepType.LAST:
        break
    best = np.argmax((q if double else target_q)[k, b])
    total += product * target_q[k, b, best]
    errors[t, b] = total - q[t, b, unroll.action[t, b]]
  return errors, weights


@pytest.mark.parametrize(
  ("n_step", "double", "more"),
  conftest.slow_but(
    [(3, True, 0)],
    [(1, True, 0), (3, True, 0), (3, False, 0), (3, True, 4), (1, False, 4)],
  ),
)
def test_td_errors_and_gradients_by_hand(n_step, double, more):
  fields = {"n_step": n_step, "double": double, "dueling": more > 0}
  agent, state = agent_of(**fields), state_of(**fields)
  length = agent.needs.window + more
  batch = sample_of(agent, VECTOR, length, np.linspace(0, 0.6, 40), seed=3)
  unroll, core_state = batch.unroll, batch.unroll.core_state

  def q_values(params):
    return q_values_of(
      VECTOR, config_of(**fields), params, unroll.inputs, core_state
    )

  q, vjp = jax.vjp(q_values, state.params)
  errors, weights = td_errors(
    np.asarray(q),
    np.asarray(q_values(state.target_params)),
    unroll,
    n_step,
    double,
  )
  assert 0 < np.sum(weights == 0) < weights.size / 2
  gradients, output = jax.jit(agent.gradients)(state, jax.random.key(0), batch)
  total = weights.sum()
  assert output.weight == total
  np.testing.assert_allclose(
    output.priorities, np.abs(errors).mean(axis=0), rtol=1e-4, atol=1e-5
  )
  squares = 0.5 * errors**2 * batch.importance_weight
  assert output.metrics["loss"] == pytest.approx(
    squares.sum() / total, rel=1e-4
  )
  assert output.metrics["td_error"] == pytest.approx(
    np.abs(errors).sum() / total, rel=1e-4
  )
  # Only Q of the action taken is moved, and only towards the return.
  cotangent = np.zeros(q.shape, np.float32)
  for t, b in np.ndindex(*errors.shape):
    share = errors[t, b] * batch.importance_weight[b] / total
    cotangent[t, b, unroll.action[t, b]] = -share
  (expected,) = vjp(jnp.asarray(cotangent))
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5),
    gradients.params,
    expected,
  )
  # An unbiased mean would not know the weights of importance.
  plain = 0.5 * errors**2
  assert abs(plain.sum() - squares.sum()) / total > 1e-3


def every_step(name, **fields):
  """The agent that evaluates all steps of its windows."""
  config = config_of(**fields)
  return value_based.make(SPECS[name], config, dqn.loss_of(config))


@pytest.mark.parametrize(
  ("name", "fields"),
  conftest.slow_but(
    [("masked", {"n_step": 3})],
    [
      ("masked", {"n_step": 3}),
      ("masked", {"n_step": 3, "double": False, "rescale": True}),
      ("vector", {"n_step": 5, "huber_delta": 0.5}),
      ("image", {"n_step": 3, "stack_frames": 4}),
    ],
  ),
)
def test_a_window_is_learned_from_as_if_all_its_steps_were_evaluated(
  name, fields
):
  agent, state = agent_of(name, **fields), state_of(name, **fields)
  batch = sample_of(
    agent, SPECS[name], agent.needs.window, np.linspace(0, 0.6, 24)
  )
  found, expected = (
    jax.jit(x.gradients)(state, jax.random.key(0), batch)
    for x in (agent, every_step(name, **fields))
  )
  assert 0 < found[1].weight < 24
  close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5)
  jax.tree.map(close, found, expected)


def test_a_longer_return_costs_no_more_evaluations():
  def flops(agent, state):
    batch = sample_of(agent, VECTOR, agent.needs.window, np.zeros(64))
    lowered = jax.jit(agent.gradients).lower(state, jax.random.key(0), batch)
    return lowered.compile().cost_analysis()["flops"]

  wide = {"hidden_sizes": (128, 128)}
  state = state_of(**wide)
  one, five = (flops(agent_of(n_step=n, **wide), state) for n in (1, 5))
  assert five < 1.1 * one
  assert flops(every_step("vector", n_step=5, **wide), state) > 3 * five


@pytest.mark.parametrize(
  "fields", [{"huber_delta": 0.1}, {"rescale": True}], ids=str
)
def test_huber_and_rescaling_reach_the_loss(fields):
  batch = sample_of(agent_of(), VECTOR, 2, np.zeros(8))
  losses = [
    jax.jit(agent.gradients)(state_of(), jax.random.key(0), batch)[1].metrics
    for agent in (agent_of(), agent_of(**fields))
  ]
  assert abs(losses[0]["loss"] - losses[1]["loss"]) > 1e-2


@pytest.mark.slow
def test_a_window_from_the_middle_has_the_frames_before_it():
  """Its Q-values are those of the network on all of the episode."""
  fields = {"stack_frames": 4, "n_step": 2}
  agent, state = agent_of("image", **fields), state_of("image", **fields)
  total, num_steps = 24, 5
  window = agent.needs.window
  stream = conftest.random_unroll(agent, IMAGE, total, np.zeros(1), seed=1)
  # Frames that differ much, and an episode that ends in between.
  timestep = stream.inputs.timestep
  step_type = timestep.step_type.copy()
  step_type[[0, 9, 10]] = [[0], [2], [0]]
  stream = stream._replace(
    inputs=stream.inputs._replace(
      timestep=timestep._replace(step_type=step_type)
    )
  )

  @jax.jit
  def unrolled(params, inputs):
    head = networks.QHead(3, False, 8)
    q_model = model.Model.make(IMAGE, config_of(**fields), head)
    core_state = agent.initial_core_state(1)
    return q_model.unroll(model.Variables(params, ()), inputs, core_state).head

  q, target_q = (
    np.asarray(unrolled(params, stream.inputs))
    for params in (state.params, state.target_params)
  )
  errors, weights = td_errors(q, target_q, stream, n=2, double=True)
  length = num_steps + window - 1
  ring, stored = replay.Uniform(8, window), None
  for first in range(0, total - length + 1, num_steps):
    rows = slice(first, first + length)
    steps = jax.tree.map(lambda x, rows=rows: x[rows], stream[:3])
    # The three frames before, less those of another episode.
    frames = np.zeros((3, 36, 36), np.uint8)
    for k in range(min(first, 3)):
      if first < 10 or first - 1 - k >= 10:
        frames[2 - k] = stream.inputs.timestep.observation[first - 1 - k, 0, 0]
    core_state = networks.CoreState((frames[None],), ())
    # The version says where the step is in the stream.
    version = np.arange(first, first + length, dtype=np.int32)[:, None]
    unroll = types.Unroll(*steps, version, core_state)
    stored = ring.add(stored or ring.init(unroll), unroll)
  batch = jax.jit(ring.sample, static_argnums=2)(stored, jax.random.key(0), 80)
  # The first steps of a window only fill the stack.
  learned = np.asarray(batch.unroll.version[0]) + window - 3
  assert set(learned) == set(range(3, 3 + 3 * num_steps))
  _, output = jax.jit(agent.gradients)(state, jax.random.key(0), batch)
  expected = np.abs(errors[learned, 0])
  np.testing.assert_allclose(output.priorities, expected, rtol=2e-3, atol=1e-4)
  assert output.weight == weights[learned, 0].sum()
  # It matters what is in the stack: without the burn-in Q is another.
  assert np.std(expected) > 1e-2


@pytest.mark.parametrize(
  ("stack_frames", "n_step", "window"),
  [(1, 1, 2), (1, 3, 4), (4, 1, 5), (4, 3, 7)],
)
def test_window(stack_frames, n_step, window):
  agent = agent_of("image", stack_frames=stack_frames, n_step=n_step)
  assert agent.needs.window == window


def test_what_a_dqn_cannot_do_is_refused():
  with pytest.raises(TypeError, match="recurrent"):
    dqn.Config(recurrent=True)  # Its replay starts in the middle of unrolls.
  continuous = specs.BoundedArray((2,), np.float32, -1.0, 1.0)
  several = specs.BoundedArray((2,), np.int32, 0, 3)
  for action in (continuous, several):
    spec = types.EnvironmentSpec(VECTOR.observation, action)
    with pytest.raises(types.ConfigError, match="expected discrete actions"):
      dqn.Config().make(spec)


@pytest.mark.parametrize(
  "fields",
  [
    {"n_step": 0},
    {"huber_delta": -1.0},
    {"target_period": 0},
    {"epsilon_end": 1.1},
    {"epsilon_steps": -1},
  ],
  ids=str,
)
def test_config_out_of_range_is_refused_with_its_name(fields):
  with pytest.raises(types.ConfigError, match=f"expected {next(iter(fields))}"):
    dqn.Config(**fields)


# Before and without a replay


@pytest.mark.parametrize(
  ("name", "fields"),
  [
    ("vector", {"n_step": 1}),
    ("vector", {"n_step": 3, "double": False, "dueling": True}),
    ("masked", {"n_step": 2, "rescale": True}),
    pytest.param(
      *("image", {"n_step": 2, "stack_frames": 3}), marks=pytest.mark.slow
    ),
  ],
)
def test_actors_see_the_priorities_that_the_learner_will(name, fields):
  agent, state = agent_of(name, **fields), state_of(name, **fields)
  state = dataclasses.replace(state, target_params=state.params)
  size, windows = 12, 6
  unroll = conftest.random_unroll(
    agent,
    SPECS[name],
    agent.needs.window + windows - 1,
    np.linspace(0, 0.6, size),
    seed=5,
  )
  unroll = as_acted(SPECS[name], config_of(**fields), state, unroll)
  actual = jax.jit(agent.priorities)(agent.acting(state), unroll)
  assert actual.shape == (size, windows)
  gradients = jax.jit(agent.gradients)
  for start in range(windows):
    steps = jax.tree.map(
      lambda x, start=start: x[start : start + agent.needs.window],
      unroll._replace(core_state=(), extras=()),
    )
    core_state = (
      unroll.core_state if start == 0 else (agent.initial_core_state(size))
    )
    batch = types.Sample(
      steps._replace(core_state=core_state), np.ones(size, np.float32)
    )
    _, output = gradients(state, jax.random.key(0), batch)
    np.testing.assert_allclose(
      actual[:, start], output.priorities, rtol=1e-4, atol=1e-5
    )
  assert np.std(actual) > 1e-3


@pytest.mark.parametrize(
  ("n_step", "double"), [(1, True), (3, False), (4, True)]
)
def test_priorities_of_n_step_transitions_by_hand(n_step, double):
  fields = {"n_step": n_step, "double": double}
  agent, state = agent_of(**fields), state_of(**fields)
  unroll = conftest.random_unroll(
    agent, VECTOR, n_step + 8, np.linspace(0, 0.6, 40), seed=7
  )
  q = np.asarray(
    q_values_of(
      VECTOR,
      config_of(**fields),
      state.params,
      unroll.inputs,
      unroll.core_state,
    )
  )
  errors, weights = td_errors(q, q, unroll, n_step, double)
  unroll = unroll._replace(extras=value_based.Extras(q))
  actual = jax.jit(agent.priorities)(agent.acting(state), unroll)
  np.testing.assert_allclose(actual, np.abs(errors.T), rtol=1e-4, atol=1e-5)
  # Episodes ended in all ways, and across a reset there is nothing to learn.
  step_type, _, factor, _ = unroll.inputs.timestep
  last = step_type[1:-1] == dm_env.StepType.LAST
  assert np.any(last & (factor[1:-1] == 0)) and np.any(
    last & (factor[1:-1] == 1)
  )
  np.testing.assert_array_equal(np.asarray(actual).T[weights == 0], 0.0)


@pytest.mark.parametrize(
  ("n_step", "double"),
  conftest.slow_but([(5, False)], [(1, True), (5, False), (9, True)]),
)
def test_without_a_replay_all_steps_of_an_unroll_count(n_step, double):
  fields = {"n_step": n_step, "double": double, "replayed": False}
  agent, state = agent_of(**fields), state_of(**fields)
  assert agent.needs.window is None and agent.priorities is None
  unroll = conftest.random_unroll(
    agent, VECTOR, 7, np.linspace(0, 0.6, 40), seed=4
  )
  q, target_q = (
    np.asarray(
      q_values_of(
        VECTOR, config_of(**fields), params, unroll.inputs, unroll.core_state
      )
    )
    for params in (state.params, state.target_params)
  )
  errors, weights = td_errors(q, target_q, unroll, n_step, double, whole=False)
  _, output = jax.jit(agent.gradients)(state, jax.random.key(0), unroll)
  assert output.weight == weights.sum() < weights.size
  expected = 0.5 * np.sum(errors**2) / weights.sum()
  assert output.metrics["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_without_a_replay_frames_are_stacked_from_the_unrolls_own():
  fields = {"stack_frames": 3, "replayed": False}
  agent, state = agent_of("image", **fields), state_of("image", **fields)
  unroll = conftest.random_unroll(agent, IMAGE, 5, np.zeros(4), seed=1)
  unroll.inputs.timestep.step_type[:] = dm_env.StepType.MID
  gradients = jax.jit(agent.gradients)
  _, output = gradients(state, jax.random.key(0), unroll)
  assert output.weight == 4 * 4
  frames = jax.tree.map(lambda x: np.full_like(x, 200), unroll.core_state)
  _, other = gradients(
    state, jax.random.key(0), unroll._replace(core_state=frames)
  )
  assert abs(output.metrics["loss"] - other.metrics["loss"]) > 1e-5


# Starting in the middle


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_start_from_parameters_is_as_the_beginning(optimizer):
  agent = agent_of(horizon=base.Horizon(1000, 20), optimizer=optimizer)
  state = jax.jit(agent.init)(jax.random.key(0))
  assert_equal(agent.start(state.params, 0), state)
  late = agent.start(state.params, 7)
  assert late.updates == 7
  assert_equal(late.optimizer_state[-1].count, 7)
  assert_equal(late.params, state.params)


def test_rmsprop_is_the_papers():
  decay, epsilon, rate = 0.9, 1e-3, 0.5
  fields = {"optimizer": "rmsprop", "rms_decay": decay}
  fields |= {"rms_epsilon": epsilon, "max_gradient_norm": 1e9}
  agent = agent_of(**fields, learning_rate=rate)
  state = agent.start(jnp.zeros(3), 0)
  params, square = np.zeros(3), np.zeros(3)
  rng = np.random.default_rng(0)
  for _ in range(5):
    gradient = rng.normal(size=3)
    square = decay * square + (1 - decay) * gradient**2
    params -= rate * gradient / np.sqrt(square + epsilon)
    state = agent.apply(state, base.Gradients(jnp.float32(gradient)))
    np.testing.assert_allclose(state.params, params, rtol=1e-5, atol=1e-5)
