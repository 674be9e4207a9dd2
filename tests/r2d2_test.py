"""R2D2: sequences, burn-in, stored states, and how often it learns."""

import dataclasses
import functools

import dm_env
import jax
import numpy as np
import pytest

from experiments.figures import stored_state as stored_state_figure
from seedx import envs, metrics, replay, types
from seedx.acting import local_actor, unroll_store
from seedx.agents import base, dqn, r2d2
from seedx.learning import experience
from tests import conftest, dqn_test

ENV = envs.Config("seedx:MemoryChain", {"length": 10})
SPEC = envs.spec(ENV)
NUM_ENVS, PERIOD = 8, 2
N, SEQUENCE, BURN_IN = 2, 5, 3
LEARNED = SEQUENCE - N + 1
ENDS = np.linspace(0, 0.4, NUM_ENVS)


def config_of(kind=r2d2.Config, **fields):
  defaults = {"hidden_sizes": (8,), "n_step": N, "reward_scale": 1.0}
  if kind is r2d2.Config:
    sizes = {"lstm_size": 6, "burn_in": BURN_IN, "sequence_length": SEQUENCE}
    defaults |= sizes | {"epsilon_end": 0.5}
  return kind(**defaults | fields)


@functools.cache
def agent_of(kind=r2d2.Config, horizon=None, **fields):
  return config_of(kind, **fields).make(SPEC, None, horizon)


@functools.cache
def jitted(name, kind=r2d2.Config, **fields):
  return jax.jit(getattr(agent_of(kind, **fields), name))


@functools.cache
def state_of(**fields):
  return dqn_test.random_state(agent_of(**fields), config_of(**fields))


@functools.cache
def sample_of(**fields):
  agent = agent_of(**fields)
  unroll = conftest.random_unroll(agent, SPEC, agent.needs.window, ENDS)
  rng = np.random.default_rng(0)
  core_state = jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(x.dtype), unroll.core_state
  )
  weight = np.linspace(0.2, 1, NUM_ENVS).astype(np.float32)
  return types.Sample(unroll._replace(core_state=core_state), weight)


def test_one_transition_without_a_memory_is_dqn():
  """Burn-in 0, T = n, stride 1 and a feed-forward network."""
  ours = {"lstm_size": 0, "burn_in": 0, "sequence_length": N}
  theirs = {"rescale": True, "dueling": True, "discount": 0.997}
  theirs |= {"kind": dqn.Config, "epsilon_end": 0.5}
  needs, expected = (agent_of(**x).needs for x in (ours, theirs))
  assert needs.window == expected.window == N + 1
  assert needs.learned_steps == expected.learned_steps == 1
  assert needs.unroll_length(1) == expected.unroll_length(1)
  state, sample = state_of(**theirs), sample_of(**theirs)
  (gradients, output), expected = (
    jitted("gradients", **x)(state, jax.random.key(0), sample)
    for x in (ours, theirs)
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-5),
    (gradients, output),
    expected,
  )


def test_sequences_are_what_it_needs():
  needs = agent_of().needs
  assert needs.window == BURN_IN + SEQUENCE + 1
  assert needs.whole_unrolls and needs.learned_steps == LEARNED
  for period in range(1, LEARNED + 1):
    assert needs.unroll_length(period) == needs.window
  message = f"unroll_length .*{LEARNED}, .* found {LEARNED + 1}"
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


def unrolled(acting, inputs, core_state):
  """Step by step: Q-values `[T, B, A]`, and core states before the steps."""
  q_values, core_states = [], [core_state]
  for t in range(len(inputs.exploration)):
    now = jax.tree.map(lambda x, t=t: x[t], inputs)
    output, core_state = jitted("greedy")(
      acting, jax.random.key(0), now, core_state
    )
    q_values.append(np.asarray(output.extras.outputs))
    core_states.append(jax.tree.map(np.asarray, core_state))
  return np.stack(q_values), core_states


def zeros():
  return jax.tree.map(np.asarray, agent_of().initial_core_state(NUM_ENVS))


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
  fields = {} if stored_state else {"stored_state": False}
  state, (unroll, weight) = state_of(), sample_of()
  acting = agent_of().acting(state)
  online, target = (
    unrolled(
      acting._replace(variables=acting.variables._replace(params=params)),
      unroll.inputs,
      unroll.core_state if stored_state else zeros(),
    )[0][BURN_IN:]
    for params in (state.params, state.target_params)
  )
  errors, weights = td_errors(config_of(), online, target, unroll)
  _, output = jitted("gradients", **fields)(
    state, jax.random.key(0), sample_of()
  )
  loss = (0.5 * errors**2 * weight * weights).sum() / weights.sum()
  np.testing.assert_allclose(output.metrics["loss"], loss, rtol=1e-3)
  assert output.weight == weights.sum()
  size = np.abs(errors)
  expected = 0.9 * size.max(0) + 0.1 * size.mean(0)
  np.testing.assert_allclose(output.priorities, expected, rtol=1e-3, atol=1e-4)


def test_the_burn_in_has_no_gradient_but_its_state_counts():
  unroll, weight = sample_of()

  @jax.jit
  @functools.partial(jax.value_and_grad, argnums=(0, 1))
  def q_mean(observation, stored):
    timestep = unroll.inputs.timestep._replace(observation=observation)
    inputs = unroll.inputs._replace(timestep=timestep)
    changed = unroll._replace(inputs=inputs, core_state=stored)
    _, output = agent_of().gradients(
      state_of(), jax.random.key(0), types.Sample(changed, weight)
    )
    return output.metrics["q_mean"]

  observation, stored = unroll.inputs.timestep.observation, unroll.core_state
  value, (by_observation, by_state) = q_mean(observation, stored)
  by_observation = np.asarray(by_observation)
  assert not np.any(by_observation[:BURN_IN])
  assert np.any(by_observation[BURN_IN:])
  assert not any(np.any(x) for x in jax.tree.leaves(by_state))
  other = jax.tree.map(lambda x: x + np.float32(1), stored)
  assert q_mean(observation, other)[0] != value


@functools.cache
def played():
  """Unrolls of a policy that does not learn, one after another."""
  layout = unroll_store.Layout.of(agent_of(), PERIOD, NUM_ENVS)
  actor = local_actor.LocalActor(
    local_actor.Programs(agent_of(), SPEC, layout),
    ENV,
    seed=0,
    rng_key=jax.random.key(0),
    device=jax.devices()[0],
    waits=metrics.Waits({metrics.WAIT_ENVIRONMENTS: 1}),
  )
  acting, unrolls = agent_of().acting(state_of()), []
  while len(unrolls) < 16:
    _, unroll = actor.observe(acting, np.int32(0))
    if unroll is not None:
      unrolls.append(jax.tree.map(np.asarray, unroll))
    actor.act(acting, np.int32(0))
  return unrolls


def steps_of(unrolls):
  """The inputs of everything that happened, each step once."""
  return jax.tree.map(
    lambda *x: np.concatenate([y[:PERIOD] for y in x]),
    *[unroll.inputs for unroll in unrolls],
  )


def test_a_stored_state_is_that_of_the_episode_so_far():
  inputs = steps_of(played())
  _, core_states = unrolled(agent_of().acting(state_of()), inputs, zeros())
  for k, unroll in enumerate(played()):
    first = inputs.timestep.step_type[k * PERIOD] == dm_env.StepType.FIRST
    # At FIRST the store has zeros, and the LSTM resets itself.
    expected = jax.tree.map(
      lambda x, first=first: np.where(first[:, None], 0.0, x),
      core_states[k * PERIOD],
    )
    # Two programs round differently.
    jax.tree.map(
      functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
      unroll.core_state,
      expected,
    )
    stored = jax.tree.leaves(unroll.core_state)
    assert first.all() or any(np.any(x) for x in stored)


def test_first_priorities_are_of_the_q_values_that_acted():
  """With the same parameters they are those that learning would give."""
  state = dataclasses.replace(state_of(), target_params=state_of().params)
  unroll = played()[5]
  actual = jitted("priorities")(agent_of().acting(state), unroll)
  assert actual.shape == (NUM_ENVS, 1)
  sample = types.Sample(unroll, sample_of().importance_weight)
  _, output = jitted("gradients")(state, jax.random.key(0), sample)
  np.testing.assert_allclose(
    np.asarray(actual)[:, 0], output.priorities, rtol=1e-4, atol=1e-6
  )
  assert np.std(actual) > 1e-5


# In a replay


@pytest.mark.parametrize(
  ("kind", "ratio"),
  [(experience.ReplayConfig, 0.5), (experience.PrioritizedConfig, 4.0)],
)
def test_it_learns_from_as_many_steps_as_the_ratio_says(kind, ratio):
  batches, batch_size = 120, 8
  config = kind(
    replay_min_steps=1, replay_batch_size=batch_size, replay_ratio=ratio
  )
  plan = experience.Plan(10_000, PERIOD * NUM_ENVS, config)
  source = plan.source(agent_of(), PERIOD, jax.devices()[:1], jax.random.key(0))
  priorities = np.ones((NUM_ENVS, 1), np.float32)
  share = types.Share(agent_of().needs.stored(sample_of().unroll), priorities)
  updates = sum(len(list(source([share]))) for _ in range(batches))
  acted = batches * PERIOD * NUM_ENVS
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
  agent = agent_of(horizon=horizon, epsilon_steps=5_000)
  state = dataclasses.replace(state_of(), updates=np.int32(round(expected / 4)))
  end = state.hyperparameters | {"epsilon_end": np.float32(0.2)}
  state = dataclasses.replace(state, hyperparameters=end)
  assert float(agent.acting(state).epsilon) == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize("prioritized", [False, True])
def test_windows_of_a_ring_that_wraps_are_whole_unrolls(prioritized):
  """New priorities of what has been overwritten hit nothing else."""
  needs, capacity, rows = agent_of().needs, 6, 4
  kind = replay.Prioritized if prioritized else replay.Uniform
  ring = kind(capacity, needs.window)
  add = jax.jit(ring.add)
  update = jax.jit(ring.update) if prioritized else None
  draw = jax.jit(ring.sample, static_argnums=2)
  example = jax.tree.map(lambda x: x[:, :rows], sample_of().unroll[:-1])

  def unroll_of(number):
    names = np.float32(number * rows + np.arange(rows))
    core_state = jax.tree.map(
      lambda x: np.repeat(names[:, None], x.shape[1], 1),
      sample_of().unroll.core_state,
    )
    unroll = types.Unroll(*example, core_state)
    version = np.broadcast_to(names, unroll.version.shape).astype(np.int32)
    return needs.stored(unroll._replace(version=version))

  state = jax.jit(ring.init)(unroll_of(0))
  assert unroll_of(0).extras == ()
  drawn = []
  for number in range(5):
    priorities = (np.ones((rows, 1), np.float32),) if prioritized else ()
    state = add(state, unroll_of(number), *priorities)
    sample = draw(state, jax.random.key(number), 64)
    if prioritized:
      sample, windows = sample
      drawn.append(windows)
      if number >= 2:  # By now all of those have been overwritten.
        old = drawn[number - 2]
        updated = update(state, old, np.full(64, 7.0, np.float32))
        np.testing.assert_array_equal(updated.tree[0], state.tree[0])
    newest = (number + 1) * rows
    found = np.asarray(sample.unroll.version)
    assert set(np.unique(found)) == set(
      range(max(0, newest - capacity), newest)
    )
    np.testing.assert_array_equal(found, found[:1].repeat(len(found), 0))
    for leaf in jax.tree.leaves(sample.unroll.core_state):
      np.testing.assert_array_equal(np.asarray(leaf)[:, 0], found[0])


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


@pytest.mark.parametrize("stored_state", [True, False])
def test_the_discrepancy_is_that_of_sequences_played_one_by_one(stored_state):
  # As in a ring that has wrapped, they begin within an episode.
  sequences = played()[2:]
  unrolls = jax.tree.map(
    lambda *x: np.concatenate(x, axis=1),
    *[unroll._replace(core_state=()) for unroll in sequences],
  )
  core_state = jax.tree.map(
    lambda *x: np.concatenate(x), *[unroll.core_state for unroll in sequences]
  )
  # Of the parameters that acted nothing is stale.
  acting = agent_of().acting(state_of())
  if stored_state:
    expected = brute_discrepancy(acting, sequences, stored_state)
    np.testing.assert_allclose(expected, 0.0, atol=1e-6)
  newer = jax.tree.map(lambda x: x * np.float32(1.2), acting)
  expected = brute_discrepancy(newer, sequences, stored_state)
  actual = stored_state_figure.discrepancy(
    agent_of(),
    newer,
    unrolls._replace(core_state=core_state),
    num_envs=NUM_ENVS,
    period=PERIOD,
    stored_state=stored_state,
  )
  assert actual.shape == (agent_of().needs.window,) and actual[0] > 0.01
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


def brute_discrepancy(acting, unrolls, stored_state):
  """Each sequence by itself, the true states from its episode's start."""
  length = agent_of().needs.window
  inputs = steps_of(unrolls)
  # The LSTM resets itself: from an episode's start on it is the true one.
  true, _ = unrolled(acting, inputs, zeros())
  apart = [[] for _ in range(length)]
  for start, unroll in zip(range(0, len(true), PERIOD), unrolls, strict=True):
    if start + length > len(true):
      break
    replayed, _ = unrolled(
      acting, unroll.inputs, unroll.core_state if stored_state else zeros()
    )
    first = inputs.timestep.step_type == dm_env.StepType.FIRST
    for env in range(NUM_ENVS):
      if not first[: start + 1, env].any():
        continue
      largest = np.max(np.abs(replayed[:, env]))
      for t in range(length):
        if t and first[start + t, env]:
          break
        gap = replayed[t, env] - true[start + t, env]
        apart[t].append(np.linalg.norm(gap) / largest)
  return np.array([np.mean(x) for x in apart])
