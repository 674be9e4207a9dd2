"""PQN's updates and targets, and Q-learning without a target network."""

import functools

import dm_env
import jax
import numpy as np
import pytest

from seedx import app, envs, losses, networks, types
from seedx.agents import base, models, pqn
from seedx.learning import learner
from seedx.pipelines import anakin
from tests import conftest
from tests.agents import cases
from tests.losses import references, streams

LENGTH, BATCH = 6, 4
KEY = jax.random.key(0)
MEMORY = {"recurrent": True, "lstm_size": 4}


@functools.cache
def config_of(**fields):
  options = {
    "hidden_sizes": (8,),
    "epochs": 1,
    "minibatches": 1,
    "optimizer": "sgd",
    "max_gradient_norm": 0.0,
    "learning_rate": 1.0,
    "discount": 0.9,
    "td_lambda": 0.8,
  }
  return pqn.Config(**options | fields)


@functools.cache
def jitted(method, **fields):
  return jax.jit(getattr(config_of(**fields).make(cases.VECTOR), method))


@functools.cache
def start(**fields):
  """Returns a state with random parameters, and an unroll with resets."""
  agent = config_of(**fields).make(cases.VECTOR)
  state = cases.random_state(agent, config_of(**fields))
  ends = np.linspace(0.2, 0.7, BATCH)
  unroll = conftest.random_unroll(agent, cases.VECTOR, LENGTH, ends, seed=1)
  return state, unroll


def q_values(params, unroll, config):
  head = networks.QHead(int(cases.VECTOR.action.num_values))
  model = models.Model.make(cases.VECTOR, config, head)
  variables = models.Variables(params, ())
  return model.unroll(variables, unroll.inputs, unroll.core_state).head


def targets(params, unroll, config):
  """Computes the targets of each stream in NumPy, and their weights."""
  values = np.asarray(q_values(params, unroll, config))
  step_type, reward, discount, _ = unroll.inputs.timestep
  each = [
    {
      "q_values": values[:, b],
      "values": values[:, b, 0],
      "step_type": step_type[:, b],
      "reward": reward[:, b],
      "discount": np.float32(0.9) * discount[:, b],
    }
    for b in range(BATCH)
  ]
  target = [references.q_lambda_returns(x, None, lambda_=0.8) for x in each]
  weight = [references.weights(x) for x in each]
  return np.stack(target, axis=1), np.stack(weight, axis=1)


def mean_loss(params, unroll, config, target, weight):
  values = q_values(params, unroll, config)[:-1]
  action = unroll.action[:-1, :, None].astype(np.int32)
  taken = jax.numpy.take_along_axis(values, action, -1)[..., 0]
  square = jax.numpy.square(target - taken) * weight
  return 0.5 * square.sum() / weight.sum()


@pytest.mark.parametrize(
  "fields", conftest.slow_but([({},)], [({},), (MEMORY,)])
)
def test_all_epochs_learn_from_the_targets_before_the_update(fields):
  config, (state, unroll) = config_of(**fields), start(**fields)
  target, weight = targets(state.params, unroll, config)
  assert 0 < weight.mean() < 1
  differentiate = jax.jit(
    jax.value_and_grad(
      lambda params: mean_loss(params, unroll, config, target, weight)
    )
  )
  expected, params = [], state.params
  for _ in range(3):
    loss, gradient = differentiate(params)
    expected.append(loss)
    params = jax.tree.map(lambda x, y: x - 0.1 * y, params, gradient)
  state = cases.with_hyperparameters(state, learning_rate=0.1)
  new, output = jitted("update", epochs=3, **fields)(state, KEY, unroll)
  assert cases.difference(new.params, state.params) > 1e-2
  assert cases.difference(new.params, params) < 1e-5
  np.testing.assert_allclose(output.metrics["loss"], np.mean(expected), 1e-5)
  assert output.weight == weight.sum()
  assert output.metrics["epsilon"] == pytest.approx(0.01)
  # One step is the same in both forms.
  gradients, _ = jitted("gradients", **fields)(state, KEY, unroll)
  once = jitted("apply", **fields)(state, gradients)
  other, _ = jitted("update", **fields)(state, KEY, unroll)
  assert cases.difference(once.params, other.params) < 1e-6


@pytest.mark.slow
def test_minibatches_and_their_order_depend_on_the_key():
  state, unroll = start()
  update = jitted("update", epochs=2, minibatches=4)
  one, other = (
    update(state, jax.random.key(k), unroll)[0].params for k in (0, 1)
  )
  assert cases.difference(one, other) > 1e-4
  agent = config_of(minibatches=7).make(cases.VECTOR)
  with pytest.raises(types.ConfigError, match=r"divide the 20 .*found 7"):
    jax.eval_shape(agent.update, state, KEY, unroll)


def test_a_truncated_episode_bootstraps_from_its_own_last_step():
  """CleanRL's pqn.py has the same targets only without truncations."""

  def cleanrl(stream, gamma=0.9, lambda_=0.8):
    done = stream["step_type"] == dm_env.StepType.LAST
    best = stream["q_values"].max(axis=-1)
    target = np.zeros(len(best) - 1)
    after = best[-1]
    for t in reversed(range(len(target))):
      after = (1 - lambda_) * best[t + 1] + lambda_ * after
      after = stream["reward"][t + 1] + gamma * (1 - done[t + 1]) * after
      target[t] = after
    return target

  for end in ("terminate", "truncate"):
    stream = streams.random_stream(["step"] * 4 + [end] + ["step"] * 5, 7)
    of_episode = slice(4)  # Transition 4 is the reset.
    actual = losses.q_lambda_returns(
      *(stream[x] for x in ("q_values", "step_type", "reward", "discount")),
      lambda_=0.8,
    )
    gap = np.asarray(actual)[of_episode] - cleanrl(stream)[of_episode]
    bootstrap = 0.9 * stream["q_values"][4].max() * (end == "truncate")
    # The value of the last step reaches earlier steps by the traces.
    traces = (0.9 * 0.8) ** np.arange(3, -1, -1)
    np.testing.assert_allclose(gap, bootstrap * traces, rtol=1e-3, atol=1e-5)
    assert (np.abs(gap).max() > 0.5) == (end == "truncate")


def test_epsilon_falls_over_its_env_steps_and_then_stays():
  horizon = base.Horizon(env_steps=1000, updates=100)
  config = config_of(epsilon_steps=500, epsilon_end=0.2)
  agent = config.make(cases.VECTOR, None, horizon)
  state = cases.random_state(agent, config)
  for updates, expected in ((0, 1.0), (25, 0.6), (50, 0.2), (99, 0.2)):
    later = state.leave_out(updates)
    assert agent.acting(later).epsilon == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", [False, True])
def test_pqn_learns_to_catch(recurrent, tmp_path):
  agent = pqn.Config(
    epsilon_steps=10_000,
    hidden_sizes=(32,),
    learning_rate=1e-3,
    minibatches=8,
    recurrent=recurrent,
    lstm_size=32,
  )
  config = anakin.Config(
    env=envs.Config("seedx:Catch"),
    agent=agent,
    num_envs=32,
    total_steps=60_000,
    learner=learner.Config(unroll_length=20),
  )
  run = app.train(config, run_dir=tmp_path, quiet=True)
  assert run.metrics["episode_return"] > 0.8
