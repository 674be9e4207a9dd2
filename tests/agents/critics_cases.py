"""Agents with a critic of (state, action), and checks of their updates."""

import dataclasses
import functools

import dm_env
import jax
import numpy as np
import optax
from dm_env import specs

from seedx import types
from seedx.agents import acting_step, ddpg, sac
from tests import conftest
from tests.agents import cases
from tests.agents import critics_reference as reference

LOW, HIGH = np.float32([-2.0, 0.0]), np.float32([4.0, 1.0])
MIDDLE, HALF = (LOW + HIGH) / 2, (HIGH - LOW) / 2
ACTION = specs.BoundedArray((2,), np.float32, LOW, HIGH)
VECTOR = types.EnvironmentSpec(specs.Array((4,), np.float32), ACTION)
IMAGE = specs.BoundedArray((1, 9, 9), np.uint8, 0, 255)
CAMERA = types.EnvironmentSpec(
  {"camera": IMAGE, "joints": specs.Array((4,), np.float32)}, ACTION
)
SPECS = {"vector": VECTOR, "camera": CAMERA}
BATCH = 24
MAKERS = {"ddpg": ddpg.Config, "td3": ddpg.td3, "sac": sac.Config}


def config_of(name, **fields):
  defaults = {
    "hidden_sizes": (8, 7),
    "discount": 0.9,
    "learning_rate": 3e-3,
    "critic_learning_rate": 1e-2,
    "target_rate": 0.2,
  }
  return dataclasses.replace(MAKERS[name](), **defaults | fields)


@functools.cache
def agent_of(name, kind="vector", **fields):
  return config_of(name, **fields).make(SPECS[kind])


@functools.cache
def jitted(method, name, kind="vector", **fields):
  return jax.jit(getattr(agent_of(name, kind, **fields), method))


@functools.cache
def state_of(name, kind="vector", **fields):
  agent = agent_of(name, kind, **fields)
  return cases.random_state(agent, config_of(name, **fields))


def sample_of(agent, spec=VECTOR, seed=0, length=None):
  """Returns random windows; about one in four ends an episode."""
  ends = np.linspace(0, 0.6, BATCH)
  length = length or agent.needs.window
  unroll = conftest.random_unroll(agent, spec, length, ends, seed)
  rng = np.random.default_rng(seed)
  inside = rng.uniform(LOW, HIGH, unroll.action.shape).astype(np.float32)
  weights = rng.uniform(0.5, 1.5, BATCH).astype(np.float32)
  return types.Sample(unroll._replace(action=inside), weights)


def batch_of(sample, config, start=0):
  """Returns the returns from a step as transitions for the reference."""
  timestep = jax.tree.map(lambda x: x[start:], sample.unroll.inputs.timestep)
  reward, discount, last, weight = reference.returns(
    timestep.step_type,
    timestep.reward.astype(float),
    timestep.discount.astype(float),
    config.discount,
    min(config.n_step, len(timestep.step_type) - 1),
  )
  return reference.Batch(
    observation=timestep.observation[0].astype(float),
    action=(sample.unroll.action[start] - MIDDLE.astype(float)) / HALF,
    reward=reward,
    discount=discount,
    later=timestep.observation[last, np.arange(BATCH)].astype(float),
    weight=weight,
    importance=sample.importance_weight.astype(float),
  )


def noises_of(key):
  """Returns the noise of targets and actor in an update with the key."""
  return [
    np.asarray(jax.random.normal(k, (1, BATCH, 2))[0], float)
    for k in jax.random.split(key)
  ]


def adam_of(state, group):
  """Returns the state of a group's Adam."""
  inner = state.optimizer_state[0].inner_states[group]

  def is_adam(node):
    return isinstance(node, optax.ScaleByAdamState)

  (adam,) = filter(is_adam, jax.tree.leaves(inner, is_leaf=is_adam))
  return adam


def assert_close(state, learner):
  """Compares parameters, targets and Adam's moments with the reference."""

  def close(nest, expected):
    actual = reference.groups_of(nest, learner.config.num_critics)
    assert set(actual) == set(expected)
    for key, group in actual.items():
      for x, y in zip(
        reference.arrays(group), reference.arrays(expected[key]), strict=True
      ):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=key)

  close(state.params, learner.params)
  close(state.target_params, {k: learner.target[k] for k in learner.targets})
  for key, expected in learner.optimizers.items():
    adam = adam_of(state, key)
    assert adam.count == expected.steps
    for moment, arrays in (
      (adam.mu, expected.mean),
      (adam.nu, expected.square),
    ):
      actual = reference.groups_of(
        {key: moment[key]}, learner.config.num_critics
      )
      for x, y in zip(reference.arrays(actual[key]), arrays, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5, err_msg=key)


@functools.cache
def check_updates(name, learner_of, updates=6, **fields):
  """Compares several updates with the reference; returns it and the states."""
  config, agent = config_of(name, **fields), agent_of(name, **fields)
  state = state_of(name, **fields)
  learner = learner_of(state.params, state.target_params, config)
  states, terminations = [state], 0
  for k in range(updates):
    sample, key = sample_of(agent, seed=k), jax.random.key(k)
    state, output = jitted("update", name, **fields)(state, key, sample)
    batch = batch_of(sample, config)
    assert 0 < batch.weight.sum() < BATCH
    terminations += np.sum((batch.discount == 0) & (batch.weight > 0))
    errors = learner.update(batch, *noises_of(key))
    assert_close(state, learner)
    np.testing.assert_allclose(output.priorities, errors, rtol=1e-4, atol=1e-5)
    states.append(state)
  assert terminations
  return learner, states


ROWS = 4000


def still(state):
  """Returns a state whose actor's outputs are 0, after an update."""
  zeros = jax.tree.map(np.zeros_like, state.params["actor"])
  params = state.params | {"actor": zeros}
  return dataclasses.replace(state, params=params, updates=np.int32(1))


def inputs_of(rows=ROWS, exploration=0.0, step_type=dm_env.StepType.MID):
  inputs = acting_step.zero_inputs(VECTOR, rows)
  inputs.exploration[:] = exploration
  inputs.timestep.step_type[:] = step_type
  rng = np.random.default_rng(0)
  inputs.timestep.observation[:] = rng.normal(size=(rows, 4))
  return inputs


def act(name, state, inputs, method="step", key=0, **fields):
  """Returns actions between -1 and 1, `[B, A]`."""
  agent = agent_of(name, **fields)
  output, _ = jitted(method, name, **fields)(
    agent.acting(state),
    jax.random.key(key),
    inputs,
    agent.initial_core_state(len(inputs.exploration)),
  )
  action = np.asarray(output.action, float)
  assert output.action.dtype == np.float32
  assert np.all(action >= LOW - 1e-6) and np.all(action <= HIGH + 1e-6)
  return (action - MIDDLE) / HALF


# Bandits, whose episodes have one step and one action

ONE_ACTION = types.EnvironmentSpec(
  specs.Array((1,), np.float32), specs.BoundedArray((1,), np.float32, -1.0, 1.0)
)


def bandit_samples(actions, rewards):
  """Returns samples `[N, 2, B, ...]` for actions and rewards `[N, B]`."""
  zeros, ones = np.zeros_like(actions), np.ones_like(actions)

  def pair(x, y):
    return np.stack([x, y], axis=1).astype(np.float32)

  first, last = int(dm_env.StepType.FIRST), int(dm_env.StepType.LAST)
  timestep = dm_env.TimeStep(
    step_type=pair(first * ones, last * ones).astype(np.uint8),
    reward=pair(zeros, rewards),
    discount=pair(zeros, zeros),
    observation=pair(ones, ones)[..., None],
  )
  taken = pair(actions, zeros)[..., None]
  inputs = types.Inputs(timestep, np.roll(taken, 1, axis=1), pair(zeros, zeros))
  version = pair(zeros, zeros).astype(np.int32)
  unroll = types.Unroll(inputs, taken, (), version, ())
  return types.Sample(unroll, ones.astype(np.float32))


def train(agent, samples, rng_key):
  """Returns the state after an update for each sample, and all metrics."""

  def step(state, pair):
    state, output = agent.update(state, *pair)
    return state, output.metrics

  @jax.jit
  def learn(rng_key, samples):
    keys = jax.random.split(rng_key, len(samples.importance_weight))
    return jax.lax.scan(step, agent.init(rng_key), (keys, samples))

  return learn(rng_key, samples)
