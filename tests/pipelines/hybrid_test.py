"""Every pipeline of actor-critics, with actions of choices and numbers."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import envs
from seedx.envs import functional
from seedx.pipelines.anakin import training
from tests import programs, running
from tests.pipelines import cells

compiled_once = programs.compiled_once


class Aim(functional.Episodic):
  """Pays for the right choice at the right place, which it observes.

  A reward of 1 takes a choice of `side` and a number close to `place`.
  Without the choice, the reward is 1/3 at most; with a number of 0, it is 1/2.
  """

  time_limit: ClassVar = 4
  observation: ClassVar = (
    specs.DiscreteArray(3),
    {"place": specs.Array((), np.float32)},
  )
  action: ClassVar = {
    "side": specs.DiscreteArray(3),
    "aim": (specs.BoundedArray((1, 1), np.float32, -2, 2),),
  }

  def reset(self, rng_key):
    choice, number = jax.random.split(rng_key)
    side = jax.random.randint(choice, (), 0, 3)
    return side, jax.random.uniform(number, (), minval=-1.0)

  def act(self, state, action, rng_key):
    side, place = state
    assert action["side"].shape == () and action["aim"][0].shape == (1, 1)
    distance = jnp.abs(action["aim"][0][0, 0] - place)
    reward = (action["side"] == side) * jnp.maximum(1 - distance, 0)
    return functional.Outcome(self.reset(rng_key), reward, False)

  def observe(self, state):
    return state[0], {"place": state[1]}


class Board(Aim):
  """Observes a board with its planes last."""

  observation: ClassVar = specs.Array((7, 8, 3), bool)

  def observe(self, state):
    return (jnp.arange(7 * 8 * 3) < 30).reshape(7, 8, 3)


ENV = envs.Config(f"jax:{__name__}:Aim")


def run(config):
  """Runs a pipeline in this process; returns the last line of metrics."""
  made = running.Own(dataclasses.replace(config, env=ENV))
  return cells.run_all(made)


@pytest.mark.slow
def test_ppo_learns_both_parts_of_a_hybrid_action(tmp_path):
  config = cells.config_of("anakin", "ppo", tmp_path, 40_000)
  changes = {
    "learning_rate": 3e-3,
    "minibatches": 8,
    "epochs": 4,
    "hidden_sizes": (32,),
    "entropy_cost": 0.0,
    "discount": 0.0,
  }
  last = run(
    dataclasses.replace(
      config,
      agent=dataclasses.replace(config.agent, **changes),
      num_envs=64,
      learner=dataclasses.replace(config.learner, unroll_length=8),
    )
  )
  assert last["episode_return"] > 0.8 * Aim.time_limit


@pytest.mark.slow
@pytest.mark.parametrize(
  ("pipeline", "name"),
  [("seed", "vtrace"), ("impala", "ppo")],
)
def test_pipelines_carry_hybrid_actions(pipeline, name, tmp_path):
  # An LSTM sees the last action.
  recurrent = {"recurrent": True, "lstm_size": 8} if name == "vtrace" else {}
  config = cells.config_of(pipeline, name, tmp_path, **recurrent)
  last = run(config)
  assert last["env_steps"] >= cells.TOTAL_STEPS
  assert last["learner_steps"] >= 3 and np.isfinite(last["loss_value"])
  assert 0 < last["episode_return"] < Aim.time_limit


@pytest.mark.slow
def test_anakin_moves_the_channels_of_images_to_the_front(tmp_path):
  config = cells.config_of("anakin", "a2c", tmp_path)
  env = envs.Config(f"jax:{__name__}:Board")
  made = training.Training(dataclasses.replace(config, env=env))
  state = made.saved().counts["acting"]
  expected = np.moveaxis(Board().observe(None), -1, 0)
  for image in jax.device_get(state.timestep.observation):
    np.testing.assert_array_equal(image, expected)
