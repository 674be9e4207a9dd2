"""R2D2: sequences, burn-in, stored states, and how often it learns."""

import dataclasses
import itertools

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from experiments.figures import stored_state as stored_state_figure
from seedx import envs, metrics, replay, types
from seedx.acting import local_actor, unroll_store
from seedx.agents import base, dqn, r2d2
from seedx.learning import experience
from tests import conftest

SPEC = types.EnvironmentSpec(
  specs.Array((4,), np.float32), specs.DiscreteArray(3)
)
N, SEQUENCE, BURN_IN = 2, 5, 3
LEARNED = SEQUENCE - N + 1
ENDS = np.linspace(0, 0.4, 10)


def agent_of(kind=r2d2.Config, horizon=None, **fields):
  return config_of(kind, **fields).make(SPEC, None, horizon)


def config_of(kind=r2d2.Config, **fields):
  defaults = {"hidden_sizes": (8,), "n_step": N, "reward_scale": 1.0}
  if kind is r2d2.Config:
    sizes = {"lstm_size": 6, "burn_in": BURN_IN, "sequence_length": SEQUENCE}
    defaults |= sizes
  return kind(**defaults | fields)


def state_of(agent, seed=0):
  """A state whose target network is another, and far from what it was."""
  init = jax.jit(agent.init)
  state, other = (init(jax.random.key(seed + i)) for i in (0, 1))
  return dataclasses.replace(state, target_params=other.params)


def sample_of(agent, seed=0, weight=None):
  length = agent.needs.window
  unroll = conftest.random_unroll(agent, SPEC, length, ENDS, seed)
  rng = np.random.default_rng(seed)
  core_state = jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(x.dtype), unroll.core_state
  )
  weight = np.ones(len(ENDS), np.float32) if weight is None else weight
  return types.Sample(unroll._replace(core_state=core_state), weight)


def gradients(agent, state, sample):
  return jax.jit(agent.gradients)(state, jax.random.key(0), sample)


def assert_close(actual, expected, tolerance=1e-6):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance, rtol=1e-5),
    actual,
    expected,
  )


@pytest.mark.parametrize(
  "fields", [{}, {"rescale": False, "double": False, "dueling": False}]
)
def test_one_transition_without_a_memory_is_dqn(fields):
  """Burn-in 0, T = n, stride 1 and a feed-forward network."""
  plain = {"rescale": True, "dueling": True, "discount": 0.997, **fields}
  recurrent = agent_of(lstm_size=0, burn_in=0, sequence_length=N, **fields)
  expected = agent_of(dqn.Config, **plain)
  assert recurrent.needs.window == expected.needs.window == N + 1
  assert recurrent.needs.learned_steps == expected.needs.learned_steps == 1
  assert recurrent.needs.unroll_length(1) == expected.needs.unroll_length(1)
  state, sample = state_of(expected), sample_of(expected)
  ours, theirs = (
    gradients(agent, state, sample) for agent in (recurrent, expected)
  )
  assert_close(ours[0].params, theirs[0].params)
  assert_close(ours[1].priorities, theirs[1].priorities)
  assert_close(ours[1].metrics, theirs[1].metrics)
  updated = [
    agent.update(state, jax.random.key(0), sample)[0]
    for agent in (recurrent, expected)
  ]
  assert_close(updated[0].params, updated[1].params)


def test_sequences_are_what_it_needs():
  needs = agent_of().needs
  assert needs.window == BURN_IN + SEQUENCE + 1
  assert needs.whole_unrolls and needs.learned_steps == LEARNED
  for period in range(1, LEARNED + 1):
    assert needs.unroll_length(period) == needs.window
  message = f"unroll_length of at most {LEARNED}, .* found {LEARNED + 1}"
  with pytest.raises(types.ConfigError, match=message):
    needs.unroll_length(LEARNED + 1)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"sequence_length": 1}, "sequence_length from 2 to 65536, found 1"),
    ({"burn_in": -1}, "burn_in from 0"),
    ({"priority_max_share": 1.5}, "priority_max_share from 0.0 to 1.0"),
    ({"replayed": False}, "replayed True"),
  ],
)
def test_what_it_cannot_learn_from_is_refused(fields, message):
  with pytest.raises(types.ConfigError, match=message):
    config_of(**fields)


def unrolled(agent, params, inputs, core_state):
  """The Q-values `[T, B, A]` and core state of one network, step by step."""
  acting = agent.acting(state_of(agent))
  acting = acting._replace(
    variables=acting.variables._replace(params=params), epsilon=jnp.float32(0)
  )
  found = []
  for t in range(len(inputs.exploration)):
    now = jax.tree.map(lambda x, t=t: x[t], inputs)
    output, core_state = agent.step(acting, jax.random.key(0), now, core_state)
    found.append(output.extras.outputs)
  return jnp.stack(found), core_state


def rescaled(x):
  return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def inverse(x):
  inside = np.sqrt(1 + 4e-3 * (np.abs(x) + 1 + 1e-3)) - 1
  return np.sign(x) * ((inside / 2e-3) ** 2 - 1)


def td_errors(config, online, target, unroll):
  """Errors `[LEARNED, B]` and weights, from Q-values after the burn-in."""
  step_type, reward, factor, _ = jax.tree.map(
    lambda x: x[BURN_IN:], unroll.inputs.timestep
  )
  action = unroll.action[BURN_IN:]
  errors, weights = np.zeros((2, LEARNED, len(ENDS)))
  for b in range(len(ENDS)):
    for t in range(LEARNED):
      if step_type[t + 1, b] == dm_env.StepType.FIRST:
        continue
      value, scale = 0.0, 1.0
      for k in range(t + 1, t + N + 1):
        value += scale * reward[k, b]
        scale *= factor[k, b] * config.discount
        ends = step_type[k, b] == dm_env.StepType.LAST
        if ends or k == t + N:
          best = online[k, b].argmax()
          value += scale * inverse(target[k, b, best])
          break
      taken = online[t, b, action[t, b]]
      errors[t, b] = rescaled(value) - taken
      weights[t, b] = 1.0
  return errors, weights


@pytest.mark.parametrize("stored_state", [True, False])
def test_loss_and_priorities_are_those_of_the_paper(stored_state):
  """Each network burns in by itself from the stored state, or from zeros."""
  config = config_of(stored_state=stored_state)
  agent = config.make(SPEC)
  state = state_of(agent)
  weight = np.linspace(0.2, 1, len(ENDS)).astype(np.float32)
  sample = sample_of(agent, weight=weight)
  unroll = sample.unroll
  start = unroll.core_state
  if not stored_state:
    start = start._replace(lstm=jax.tree.map(np.zeros_like, start.lstm))
  online, target = (
    np.asarray(unrolled(agent, params, unroll.inputs, start)[0])[BURN_IN:]
    for params in (state.params, state.target_params)
  )
  errors, weights = td_errors(config, online, target, unroll)
  _, output = gradients(agent, state, sample)
  loss = (0.5 * errors**2 * weight * weights).sum() / weights.sum()
  np.testing.assert_allclose(output.metrics["loss"], loss, rtol=1e-3)
  assert output.weight == weights.sum()
  size = np.abs(errors)
  expected = 0.9 * size.max(0) + 0.1 * size.mean(0)
  np.testing.assert_allclose(output.priorities, expected, rtol=1e-3, atol=1e-4)


def test_the_burn_in_has_no_gradient_but_its_state_counts():
  agent = agent_of()
  state = state_of(agent)
  sample = sample_of(agent)

  def loss(observation, stored):
    timestep = sample.unroll.inputs.timestep._replace(observation=observation)
    unroll = sample.unroll._replace(
      inputs=sample.unroll.inputs._replace(timestep=timestep),
      core_state=stored,
    )
    _, output = agent.gradients(
      state, jax.random.key(0), sample._replace(unroll=unroll)
    )
    return output.metrics["q_mean"]

  observation = jnp.asarray(sample.unroll.inputs.timestep.observation)
  stored = jax.tree.map(jnp.asarray, sample.unroll.core_state)
  by_observation, by_state = jax.grad(loss, argnums=(0, 1))(observation, stored)
  assert not np.any(by_observation[:BURN_IN])
  assert np.any(by_observation[BURN_IN:])
  assert not any(np.any(x) for x in jax.tree.leaves(by_state))
  other = jax.tree.map(lambda x: x + 1.0, stored)
  assert loss(observation, other) != loss(observation, stored)


def play(agent, env, period, num_envs, seed=0):
  """Steps and unrolls of a policy that does not learn, one after another."""
  spec = envs.spec(env)
  layout = unroll_store.Layout.of(agent, period, num_envs)
  actor = local_actor.LocalActor(
    local_actor.Programs(agent, spec, layout),
    env,
    seed=seed,
    rng_key=jax.random.key(seed),
    device=jax.devices()[0],
    waits=metrics.Waits({metrics.WAIT_ENVIRONMENTS: 1}),
  )
  state = jax.jit(agent.init)(jax.random.key(1))
  acting = jax.jit(agent.acting)(state)
  while True:
    _, unroll = actor.observe(acting, np.int32(0))
    if unroll is not None:
      yield acting, unroll
    actor.act(acting, np.int32(0))


def test_a_stored_state_is_that_of_the_episode_so_far():
  env = envs.Config("seedx:MemoryChain", {"length": 6})
  agent = config_of(epsilon_end=0.5).make(envs.spec(env))
  period, num_envs = 2, 3
  unrolls = [
    unroll
    for _, (_, unroll) in zip(
      range(12), play(agent, env, period, num_envs), strict=False
    )
  ]
  acting, _ = next(play(agent, env, period, num_envs))
  step = jax.jit(agent.step)
  # Everything that happened, each step once.
  inputs = jax.tree.map(
    lambda *x: np.concatenate(x),
    *[
      jax.tree.map(lambda x: np.asarray(x[:period]), unroll.inputs)
      for unroll in unrolls
    ],
  )
  core_state = agent.initial_core_state(num_envs)
  for t in range(len(inputs.exploration)):
    if t % period == 0:
      stored = unrolls[t // period].core_state
      first = inputs.timestep.step_type[t] == dm_env.StepType.FIRST
      # At FIRST the store has zeros, and the LSTM resets itself.
      expected = jax.tree.map(
        lambda x, first=first: np.where(first[:, None], 0.0, x), core_state
      )
      jax.tree.map(np.testing.assert_array_equal, stored, expected)
      assert first.all() or any(np.any(x) for x in jax.tree.leaves(stored))
    now = jax.tree.map(lambda x, t=t: x[t], inputs)
    _, core_state = step(acting, jax.random.key(0), now, core_state)


def test_first_priorities_are_of_the_q_values_that_acted():
  """With the same parameters they are those that learning would give."""
  env = envs.Config("seedx:MemoryChain", {"length": 6})
  agent = config_of(epsilon_end=0.5).make(envs.spec(env))
  state = jax.jit(agent.init)(jax.random.key(1))
  played = play(agent, env, 2, 8)
  for _ in range(6):
    acting, unroll = next(played)
  actual = jax.jit(agent.priorities)(acting, unroll)
  assert actual.shape == (8, 1)
  sample = types.Sample(unroll, np.ones(8, np.float32))
  _, output = gradients(agent, state, sample)
  np.testing.assert_allclose(
    actual[:, 0], output.priorities, rtol=1e-4, atol=1e-6
  )
  assert np.std(actual) > 1e-5


# In a replay


@pytest.mark.parametrize(
  "kind", [experience.ReplayConfig, experience.PrioritizedConfig]
)
@pytest.mark.parametrize("ratio", [0.5, 4.0])
def test_it_learns_from_as_many_steps_as_the_ratio_says(kind, ratio):
  agent = agent_of()
  period, num_envs, batches, batch_size = 2, 10, 120, 8
  config = kind(
    replay_min_steps=1, replay_batch_size=batch_size, replay_ratio=ratio
  )
  plan = experience.Plan(10_000, period * num_envs, config)
  source = plan.source(agent, period, jax.devices()[:1], jax.random.key(0))
  share = types.Share(
    conftest.random_unroll(agent, SPEC, agent.needs.window, ENDS),
    np.ones((num_envs, 1), np.float32),
  )
  updates = sum(len(list(source([share]))) for _ in range(batches))
  acted = batches * period * num_envs
  learned = updates * batch_size * LEARNED
  assert learned / acted == pytest.approx(ratio, rel=0.05)


def test_a_horizon_has_as_many_updates_as_are_made():
  config = experience.ReplayConfig(replay_batch_size=8, replay_ratio=0.5)
  horizon = experience.Plan(10_000, 20, config).horizon
  assert horizon.updates == 10_000 * 0.5 / 8
  expected = 10_000 * 0.5 / (8 * LEARNED)
  ours = horizon.with_windows(LEARNED)
  assert ours.updates == round(expected) and ours.env_steps == 10_000
  # So epsilon falls over as many env steps as it says.
  agent = agent_of(horizon=horizon, epsilon_steps=5_000, epsilon_end=0.2)
  state = dataclasses.replace(
    state_of(agent), updates=jnp.int32(round(expected / 4))
  )
  assert float(agent.acting(state).epsilon) == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize("prioritized", [False, True])
def test_windows_of_a_ring_that_wraps_are_whole_unrolls(prioritized):
  """New priorities of what has been overwritten hit nothing else."""
  agent = agent_of()
  capacity, rows = 6, 4
  kind = replay.Prioritized if prioritized else replay.Uniform
  ring = kind(capacity, agent.needs.window)

  def unroll_of(number):
    unroll = conftest.random_unroll(
      agent, SPEC, agent.needs.window, ENDS[:rows]
    )
    names = np.float32(number * rows + np.arange(rows))
    core_state = jax.tree.map(
      lambda x: np.broadcast_to(names[:, None], x.shape), unroll.core_state
    )
    version = np.broadcast_to(names, unroll.version.shape).astype(np.int32)
    return agent.needs.stored(
      unroll._replace(core_state=core_state, version=version)
    )

  state = ring.init(unroll_of(0))
  assert unroll_of(0).extras == ()
  drawn = []
  for number in range(5):
    priorities = (np.ones((rows, 1), np.float32),) if prioritized else ()
    state = ring.add(state, unroll_of(number), *priorities)
    sample = ring.sample(state, jax.random.key(number), 64)
    if prioritized:
      sample, windows = sample
      drawn.append(windows)
      if number >= 2:  # By now all of those have been overwritten.
        old = drawn[number - 2]
        updated = ring.update(state, old, np.full(64, 7.0, np.float32))
        np.testing.assert_array_equal(updated.tree[0], state.tree[0])
    newest = (number + 1) * rows
    found = np.asarray(sample.unroll.version)
    assert set(np.unique(found)) == set(
      range(max(0, newest - capacity), newest)
    )
    np.testing.assert_array_equal(found, found[:1].repeat(len(found), 0))
    for leaf in jax.tree.leaves(sample.unroll.core_state):
      np.testing.assert_array_equal(leaf[:, 0], found[0])


def test_a_run_needs_a_replay():
  with pytest.raises(types.ConfigError, match="expected a replay"):
    experience.Plan(100, 16).agent(config_of(), SPEC)
  plan = experience.Plan(
    10_000, 16, experience.PrioritizedConfig(replay_min_steps=16)
  )
  agent = plan.agent(config_of(), SPEC)
  assert agent.priorities is not None
  assert isinstance(agent, base.Agent)


# The figure


def test_the_discrepancy_is_that_of_sequences_played_one_by_one():
  env = envs.Config("seedx:MemoryChain", {"length": 10})
  agent = config_of(epsilon_end=0.5).make(envs.spec(env))
  period, num_envs, length = 2, 3, agent.needs.window
  # As in a ring that has wrapped, they begin within an episode.
  played = list(itertools.islice(play(agent, env, period, num_envs), 2, 22))
  steps = [unroll._replace(core_state=()) for _, unroll in played]
  starts = [unroll.core_state for _, unroll in played]
  unrolls = jax.tree.map(lambda *x: np.concatenate(x, axis=1), *steps)
  unrolls = unrolls._replace(
    core_state=jax.tree.map(lambda *x: np.concatenate(x), *starts)
  )
  same, _ = played[0]
  newer = jax.jit(lambda key: agent.acting(agent.init(key)))(jax.random.key(7))

  def measured(acting, stored_state):
    return stored_state_figure.discrepancy(
      agent,
      acting,
      unrolls,
      num_envs=num_envs,
      period=period,
      stored_state=stored_state,
    )

  # The parameters that acted: nothing is stale.
  np.testing.assert_allclose(measured(same, True), 0.0, atol=1e-6)
  assert measured(same, False)[0] > 0.01
  for stored_state in (True, False):
    expected = brute_discrepancy(
      agent, newer, unrolls, num_envs, period, stored_state
    )
    actual = measured(newer, stored_state)
    assert actual.shape == (length,) and actual[0] > 0.01
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


def brute_discrepancy(agent, acting, unrolls, num_envs, period, stored_state):
  """Each sequence by itself, the true states from its episode's start."""
  step = jax.jit(agent.greedy)
  length, size = unrolls.version.shape
  apart = [[] for _ in range(length)]

  def q_values(inputs, core_state):
    found = []
    for now in inputs:
      output, core_state = step(acting, jax.random.key(0), now, core_state)
      found.append(np.asarray(output.extras.outputs[0]))
    return found

  for env in range(num_envs):
    numbers = range(env, size, num_envs)
    # The steps of the environment, each `[1, ...]`.
    inputs = [
      jax.tree.map(lambda x, t=t, n=n: x[t, n : n + 1], unrolls.inputs)
      for n in numbers
      for t in range(period)
    ]
    firsts = [
      t
      for t, now in enumerate(inputs)
      if now.timestep.step_type[0] == dm_env.StepType.FIRST
    ]
    for start, n in zip(range(0, len(inputs), period), numbers, strict=True):
      if start + length > len(inputs) or start < firsts[0]:
        continue
      begin = max(t for t in firsts if t <= start)
      end = min([t for t in firsts if t > start] + [start + length])
      zeros = agent.initial_core_state(1)
      stored = jax.tree.map(lambda x, n=n: x[n : n + 1], unrolls.core_state)
      replayed = q_values(
        inputs[start : start + length], stored if stored_state else zeros
      )
      true = q_values(inputs[begin:end], zeros)[start - begin :]
      for t, (a, b) in enumerate(zip(replayed, true, strict=False)):
        apart[t].append(np.linalg.norm(a - b) / np.max(np.abs(replayed)))
  return np.array([np.mean(x) for x in apart])
