"""Environments of JAX functions with NaN, infinities and wrong step types."""

import functools
from typing import Any, NamedTuple

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import envs, replay
from seedx.agents import dqn, ppo, sac
from seedx.envs import functional
from seedx.learning import learner
from seedx.pipelines import anakin
from seedx.pipelines.anakin import fault_counts, training
from seedx.runtime import progress

FIRST, MID, LAST = (int(kind) for kind in dm_env.StepType)
# The value "large" is no fault, but too large for an update.
VALUES = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "large": 3e38}


class State(NamedTuple):
  inner: Any
  is_faulty: jax.Array
  time: jax.Array


class Faulty:
  """An environment with a fault in some steps, if its seed is `seed`."""

  def __init__(self, env, where, value, seed, start, every):
    self._inner = functional.make(envs.Config(f"seedx:{env}"))
    self.observation, self.action = self._inner.observation, self._inner.action
    self._where, self._value = where, VALUES[value]
    self._seed, self._start, self._every = seed, start, every

  def init(self, rng_key):
    seed = jax.random.key_data(rng_key)[-1]
    return State(self._inner.init(rng_key), seed == self._seed, jnp.int32(0))

  def step(self, state, action, rng_key):
    inner, timestep = self._inner.step(state.inner, action, rng_key)
    time = state.time + 1
    is_now = state.is_faulty & (time >= self._start) & (time % self._every == 0)
    value = jnp.where(is_now, self._value, 0.0)
    if self._where == "reward":
      timestep = timestep._replace(reward=timestep.reward + value)
    elif self._where == "observation":
      observation = timestep.observation.at[0].add(value)
      timestep = timestep._replace(observation=observation)
    else:
      no_first = jnp.where(is_now, MID, timestep.step_type).astype(jnp.uint8)
      timestep = timestep._replace(step_type=no_first)
    return State(inner, state.is_faulty, time), timestep


def faulty(
  env="CartPole-v1", where="reward", value="nan", seed=2, start=10, every=3
):
  return Faulty(env, where, value, seed, start, every)


def config_of(kind, agent, replay=None, **options):
  names = "env", "where", "value", "seed", "start", "every"
  chosen = {k: options.pop(k) for k in names if k in options}
  return kind.Config(
    env=envs.Config(f"jax:{__name__}:faulty", env_options=chosen),
    agent=agent,
    learner=learner.Config(unroll_length=5),
    replay=replay,
    num_envs=4,
    **options,
  )


SMALL = {"hidden_sizes": (8,)}
PPO = ppo.Config(epochs=1, minibatches=1, **SMALL)


# Masks


def timesteps(size=7):
  return dm_env.TimeStep(
    np.full(size, MID, np.uint8),
    np.ones(size, np.float32),
    np.ones(size, np.float32),
    {"a": np.ones((size, 2, 3), np.float32), "b": np.ones(size, np.int32)},
  )


def test_faulty_steps_become_first_steps_and_others_stay():
  raw = timesteps()
  raw.reward[1] = np.nan
  raw.observation["a"][2, 1, 2] = np.inf
  raw.observation["a"][3, 0, 0] = raw.discount[3] = -np.inf
  previous = np.array([MID, MID, MID, MID, LAST, LAST, FIRST], np.uint8)
  raw.step_type[5] = FIRST
  env = np.arange(7, dtype=np.float32)[:, None]
  state, timestep, bits = fault_counts.masked(
    env, raw, np.full_like(env, -1), jnp.array(previous)
  )
  is_faulty = np.array([0, 1, 1, 1, 1, 0, 0], bool)
  np.testing.assert_array_equal(bits > 0, is_faulty)
  np.testing.assert_array_equal(state[:, 0] == -1, is_faulty)
  step_type = np.where(is_faulty, FIRST, raw.step_type)
  np.testing.assert_array_equal(timestep.step_type, step_type)
  np.testing.assert_array_equal(timestep.reward, np.where(is_faulty, 0.0, 1.0))
  np.testing.assert_array_equal(timestep.discount, 1.0)
  chex.assert_tree_all_finite(timestep)
  assert np.sum(timestep.observation["a"] == 0) == 2
  specs = jax.tree.map(lambda x: x[0], raw.observation)
  reasons = [fault_counts.reason(specs, int(x)) for x in bits[1:5]]
  names = ("reward", "observation/a", "discount and observation/a")
  for name, text in zip(names, reasons[:3], strict=True):
    assert text.endswith(f"in its {name}")
  assert "expected a FIRST step" in reasons[3]


# Runs


@functools.cache
def agent_and_options(name):
  """Returns an agent, and options of its run."""
  memory = {
    "replay_capacity": 200,
    "replay_min_steps": 40,
    "replay_batch_size": 8,
  }
  uniform = replay.Config(**memory)
  return {
    "ppo": (PPO, {"num_seeds": 2}),
    "dqn": (
      dqn.Config(n_step=3, **SMALL),
      {"replay": replay.PrioritizedConfig(**memory)},
    ),
    "sac": (sac.Config(**SMALL), {"env": "Pendulum-v1", "replay": uniform}),
  }[name]


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "where", "value"),
  [
    ("ppo", "observation", "inf"),
    ("ppo", "step_type", "nan"),
    ("dqn", "reward", "nan"),
    ("sac", "reward", "-inf"),
  ],
)
def test_faulty_environments_are_reset_and_not_learned_from(name, where, value):
  agent, options = agent_and_options(name)
  config = config_of(
    anakin,
    agent,
    where=where,
    value=value,
    reset_faulty_envs=True,
    **options,
  )
  made = training.Training(config)
  for _ in range(20):
    made.call()
  line = made.measure()
  # After a fault, the environment starts again, without one for 9 steps.
  assert (1 if where == "step_type" else 8) <= line["faulty_steps"] <= 12
  assert line["learner_steps"] >= 5 and not line["updates_skipped"]
  state = jax.tree.leaves(jax.device_get(made.saved()))
  for leaf in state:
    if np.issubdtype(np.asarray(leaf).dtype, np.floating):
      assert not np.isinf(leaf).any()
  chex.assert_tree_all_finite(jax.device_get(made.saved().agent.params))
  if made._state.replay:
    chex.assert_tree_all_finite(jax.device_get(made._state.replay))


def test_a_fault_ends_the_run_with_the_environment_and_its_seed():
  config = config_of(anakin, PPO, num_seeds=2, where="observation", seed=2)
  made = training.Training(config)
  message = r"environment 2 of jax:.*seed 2, failed.* in its observation;"
  with pytest.raises(RuntimeError, match=message):
    for _ in range(3):
      made.call()
  # A checkpoint of the state would be finite.
  chex.assert_tree_all_finite(jax.device_get(made._state.timestep))


def test_a_wrong_step_type_ends_a_run_of_any_other_pipeline():
  environment = envs.make(
    envs.Config(f"jax:{__name__}:faulty", {"where": "step_type", "start": 0}),
    num_envs=4,
  )
  environment.reset()
  rows = environment.recv()
  with pytest.raises(RuntimeError, match=r"environment 2 .*expected a FIRST"):
    for _ in range(1000):
      environment.send(rows.index, np.ones(4, np.int32))
      rows = environment.recv()


@pytest.mark.slow
def test_a_fault_of_one_of_several_trainings_names_its_seed():
  # Environments of the training with seed 1 begin with the seed 2^29.
  seed = 2**29 + 3
  config = config_of(anakin, PPO, num_seeds=2, seed=seed, start=0)
  with pytest.raises(
    RuntimeError, match=rf"environment 3 .*seed {seed}, failed"
  ):
    training.Training(config).call()


@pytest.mark.slow
def test_a_training_that_stops_learning_ends_the_run_if_it_is_alone(capfd):
  options = {"value": "large", "seed": 2**29 + 3, "start": 0, "every": 1}
  made = training.Training(config_of(anakin, PPO, num_seeds=2, **options))
  for _ in range(120):
    made.call()
  assert made.measure()["updates_skipped"] >= 100
  error = capfd.readouterr().err
  assert error.count("an update of the training with seed 1 was skipped") == 1
  made = training.Training(config_of(anakin, PPO, **(options | {"seed": 3})))
  with pytest.raises(progress.StuckError, match="100 in a row"):
    for _ in range(120):
      made.call()


@pytest.mark.slow
def test_a_fault_before_the_first_update_ends_the_run():
  agent, options = agent_and_options("dqn")
  agent = dqn.Config(n_step=20, **SMALL)
  config = config_of(anakin, agent, start=0, **options)
  with pytest.raises(RuntimeError, match=r"environment 2 of .* reward;"):
    training.Training(config)
