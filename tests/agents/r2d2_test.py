"""R2D2: sequences, burn-in, stored states, and the number of updates."""

import dataclasses
import functools

import chex
import dm_env
import jax
import numpy as np
import pytest

from experiments.figures import stored_state as stored_state_figure
from seedx import envs, metrics, replay, types
from seedx.acting import local_actor, unroll_store
from seedx.agents import dqn, r2d2
from seedx.learning import plans
from tests import conftest
from tests.agents import cases

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
    defaults |= sizes | {"epsilon_ladder": False, "epsilon_end": 0.5}
  return kind(**defaults | fields)


@functools.cache
def agent_of(kind=r2d2.Config, horizon=None, **fields):
  return config_of(kind, **fields).make(SPEC, None, horizon)


@functools.cache
def jitted(name, kind=r2d2.Config, **fields):
  return jax.jit(getattr(agent_of(kind, **fields), name))


@functools.cache
def state_of(**fields):
  return cases.random_state(agent_of(**fields), config_of(**fields))


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


def test_r2d2_with_one_transition_and_no_memory_is_dqn():
  """The burn-in is 0, T = n, the stride 1, and the network feed-forward."""
  r2d2_fields = {"lstm_size": 0, "burn_in": 0, "sequence_length": N}
  dqn_fields = {"rescale": True, "dueling": True, "discount": 0.997}
  dqn_fields |= {"kind": dqn.Config, "epsilon_end": 0.5}
  assert agent_of(**r2d2_fields).needs.learned_steps == 1
  state, sample = state_of(**dqn_fields), sample_of(**dqn_fields)
  (gradients, output), expected = (
    jitted("gradients", **x)(state, jax.random.key(0), sample)
    for x in (r2d2_fields, dqn_fields)
  )
  chex.assert_trees_all_close(
    (gradients, output), expected, atol=1e-6, rtol=1e-5
  )


def test_needs_describe_the_sequences():
  needs = agent_of().needs
  assert needs.window == BURN_IN + SEQUENCE + 1
  assert needs.whole_unrolls and needs.learned_steps == LEARNED
  # Extras are not stored: actors have computed the priorities from them.
  assert needs.stored(sample_of().unroll).extras == ()
  for period in range(1, LEARNED + 1):
    assert needs.time_steps(period) == needs.window
  message = f"unroll_length .*{LEARNED}, .* found {LEARNED + 1}"
  with pytest.raises(types.ConfigError, match=message):
    needs.time_steps(LEARNED + 1)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"sequence_length": 1}, "sequence_length from 2 to 65536, found 1"),
    ({"replayed": False}, "replayed True"),
  ],
)
def test_unsupported_settings_are_refused(fields, message):
  with pytest.raises(types.ConfigError, match=message):
    config_of(**fields)


def unrolled(acting, inputs, core_state):
  """Computes Q-values `[T, B, A]` and T + 1 core states, step by step."""
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


@pytest.mark.parametrize(
  "stored_state", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_loss_and_priorities_are_those_of_the_paper(stored_state):
  """Each network burns in on its own, from the stored state or from zeros."""
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
  learned = cases.part(unroll, len(online), BURN_IN)
  errors, weights = cases.td_errors(
    online,
    inverse(target),
    learned,
    N,
    double=True,
    discount=config_of().discount,
    rescaled=rescaled,
  )
  _, output = jitted("gradients", **fields)(
    state, jax.random.key(0), sample_of()
  )
  loss = (0.5 * errors**2 * weight * weights).sum() / weights.sum()
  np.testing.assert_allclose(output.metrics["loss"], loss, rtol=1e-3)
  assert output.weight == weights.sum()
  magnitude = np.abs(errors)
  expected = 0.9 * magnitude.max(0) + 0.1 * magnitude.mean(0)
  np.testing.assert_allclose(output.priorities, expected, rtol=1e-3, atol=1e-4)


def test_the_burn_in_has_no_gradient_but_an_effect():
  unroll, weight = sample_of()

  @jax.jit
  @functools.partial(jax.value_and_grad, argnums=(0, 1))
  def q_mean(observation, core_state):
    timestep = unroll.inputs.timestep._replace(observation=observation)
    inputs = unroll.inputs._replace(timestep=timestep)
    changed = unroll._replace(inputs=inputs, core_state=core_state)
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
  """Returns consecutive unrolls by a policy that does not learn."""
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
  """Returns the inputs of overlapping unrolls, with each time step once."""
  return jax.tree.map(
    lambda *x: np.concatenate([y[:PERIOD] for y in x]),
    *[unroll.inputs for unroll in unrolls],
  )


def test_a_stored_state_is_that_of_acting_since_the_episodes_start():
  inputs = steps_of(played())
  _, core_states = unrolled(agent_of().acting(state_of()), inputs, zeros())
  for k, unroll in enumerate(played()):
    first = inputs.timestep.step_type[k * PERIOD] == dm_env.StepType.FIRST
    # At a FIRST step, zeros are stored, but `core_states` has the last
    # episode's final state, which the LSTM ignores.
    expected = jax.tree.map(
      lambda x, first=first: np.where(first[:, None], 0.0, x),
      core_states[k * PERIOD],
    )
    # Two programs round differently.
    chex.assert_trees_all_close(
      unroll.core_state, expected, rtol=1e-5, atol=1e-6
    )
    stored = jax.tree.leaves(unroll.core_state)
    assert first.all() or any(np.any(x) for x in stored)


def test_initial_priorities_come_from_the_q_values_of_acting():
  """Learning with the parameters that acted computes the same priorities."""
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


def test_the_number_of_updates_follows_the_replay_ratio():
  config = replay.Config(
    replay_min_steps=1, replay_batch_size=8, replay_ratio=0.5
  )
  plan = plans.Plan(10_000, PERIOD * NUM_ENVS, config, unroll_length=PERIOD)
  source = plan.source(agent_of(), jax.devices()[:1], jax.random.key(0))
  share = types.Share(agent_of().needs.stored(sample_of().unroll))
  updates = sum(len(list(source([share]))) for _ in range(120))
  learned = updates * 8 * LEARNED
  assert learned / (120 * PERIOD * NUM_ENVS) == pytest.approx(0.5, rel=0.05)
  # With this number of updates, epsilon falls over `epsilon_steps`.
  horizon, expected = plan.horizon, 10_000 * 0.5 / (8 * LEARNED)
  agent = agent_of(horizon=horizon, epsilon_steps=5_000)
  state = dataclasses.replace(state_of(), updates=np.int32(round(expected / 4)))
  end = state.hyperparameters | {"epsilon_end": np.float32(0.2)}
  state = dataclasses.replace(state, hyperparameters=end)
  assert float(agent.acting(state).epsilon) == pytest.approx(0.6, abs=0.01)


# The figure


@pytest.mark.slow
def test_the_figures_discrepancy_is_0_only_with_the_states_of_acting():
  # The first sequences begin within an episode, as in a replay that is full.
  sequences = played()[2:]
  unrolls = jax.tree.map(
    lambda *x: np.concatenate(x, axis=1),
    *[unroll._replace(core_state=()) for unroll in sequences],
  )
  core_state = jax.tree.map(
    lambda *x: np.concatenate(x), *[unroll.core_state for unroll in sequences]
  )

  def discrepancy(acting, stored_state):
    values = stored_state_figure.discrepancy(
      agent_of(),
      acting,
      unrolls._replace(core_state=core_state),
      num_envs=NUM_ENVS,
      period=PERIOD,
      stored_state=stored_state,
    )
    assert values.shape == (agent_of().needs.window,)
    return values

  acting = agent_of().acting(state_of())
  np.testing.assert_allclose(discrepancy(acting, True), 0.0, atol=1e-6)
  assert discrepancy(acting, False)[0] > 0.01
  newer = jax.tree.map(lambda x: x * np.float32(1.2), acting)
  assert discrepancy(newer, True)[0] > 0.01
