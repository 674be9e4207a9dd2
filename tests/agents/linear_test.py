"""Agents without hidden layers: linear policies and linear Q-values."""

import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from experiments import anakin_ppo
from seedx import types
from seedx.agents import dqn, ppo, r2d2, rainbow
from seedx.envs import functional
from tests import programs

own_signals = programs.own_signals


class State(NamedTuple):
  """The state of `Bandit`.

  Attributes:
    arm: `[]` int32, the arm that pays.
  """

  arm: jax.Array


class Bandit(functional.Episodic):
  """Three arms: the observed arm pays 1, the others pay 0."""

  observation = specs.Array((3,), np.float32)
  action = specs.DiscreteArray(3)

  def reset(self, rng_key):
    """See `functional.Episodic`."""
    return State(jax.random.randint(rng_key, (), 0, 3))

  def act(self, state, action, rng_key):
    """See `functional.Episodic`."""
    return functional.Outcome(state, action == state.arm, jnp.bool_(True))

  def observe(self, state):
    """See `functional.Episodic`."""
    return jax.nn.one_hot(state.arm, 3)


@pytest.mark.slow
def test_a_linear_agent_learns_a_bandit(tmp_path):
  """The command line accepts `,` for no layers."""
  words = (
    f"--env jax:{__name__}:Bandit --hidden-sizes , --total-steps 6400"
    " --learning-rate 0.03 --reward-scale 1 --agent a2c --num-envs 8"
    " --unroll-length 4 --updates-per-call 50"
  ).split()
  words += ["--run-dir", str(tmp_path)]
  assert programs.main(anakin_ppo, words) == 0
  lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
  assert json.loads(lines[-1])["episode_return"] >= 0.9
  settings = json.loads((tmp_path / "config.json").read_text())
  assert settings["options"]["hidden_sizes"] == []


@pytest.mark.parametrize(
  ("kind", "heads"),
  [
    (ppo, [(4, 1), (4, 5)]),
    (dqn, [(4, 5)]),
    # Values and advantages of a dueling network are linear, too.
    (r2d2, [(8, 1), (8, 5)]),
    (rainbow, [(4, 51), (4, 255)]),
  ],
)
def test_without_hidden_layers_a_network_is_its_head(kind, heads):
  spec = types.EnvironmentSpec(
    specs.Array((4,), np.float32), specs.DiscreteArray(5)
  )
  lstm = {"lstm_size": 8} if kind is r2d2 else {}
  agent = kind.Config(hidden_sizes=(), **lstm).make(spec)
  params = jax.eval_shape(agent.init, jax.random.key(0)).params["params"]
  kernels = {x.shape for x in jax.tree.leaves(params["head"]) if x.ndim == 2}
  assert sorted(kernels) == heads
  others = set(params) - {"head"}
  assert bool(others) == (kind is r2d2)  # R2D2 also has an LSTM.
