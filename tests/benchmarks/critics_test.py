"""The benchmark of updates with critics: its baseline, and its tables."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from benchmarks import critics, plain_updates
from seedx import types
from seedx.agents import ddpg
from tests import conftest

SPEC = types.EnvironmentSpec(
  specs.Array((3,), np.float32),
  specs.BoundedArray((2,), np.float32, -1.0, 1.0),
)


def params_of(plain):
  """Returns seedx's parameters with the values of the plain ones."""
  first, second, last = plain["actor"]
  actor = {
    "Torso_0": {"MLP_0": {"Dense_0": first, "Dense_1": second}},
    "head": {"Dense_0": last},
  }
  layers = [layer for critic in plain["critic"] for layer in critic]
  head = {f"Dense_{i}": layer for i, layer in enumerate(layers)}
  return {"actor": {"params": actor}, "critic": {"params": {"head": head}}}


def test_two_plain_updates_of_td3_equal_those_of_the_agent():
  agent = ddpg.td3().make(SPEC)
  unroll = conftest.random_unroll(agent, SPEC, 2, np.full(4, 0.0))
  timestep = unroll.inputs.timestep
  # Without bootstrapping, the noise of the target's actions has no effect.
  timestep = timestep._replace(
    step_type=np.full_like(timestep.step_type, 1),
    discount=np.zeros_like(timestep.discount),
  )
  unroll = unroll._replace(inputs=unroll.inputs._replace(timestep=timestep))
  sample = types.Sample(agent.needs.stored(unroll), np.ones(4, np.float32))
  sample = jax.tree.map(jnp.asarray, sample)
  plain, update = plain_updates.make("td3", critics.transitions(sample))
  state = agent.start(params_of(jax.tree.map(jnp.copy, plain.params)), 0)
  before = jax.device_get(state.params)
  both = jax.jit(agent.update)
  for _ in range(2):
    plain = update(plain, critics.transitions(sample))
    state, _ = both(state, jax.random.key(0), sample)
  for ours, theirs in (
    (state.params, plain.params),
    (state.target_params, plain.targets),
  ):
    chex.assert_trees_all_close(ours, params_of(theirs), atol=2e-6)
  moved = jax.tree.map(lambda x, y: np.ptp(x - y), before, state.params)
  assert min(np.abs(x) for x in jax.tree.leaves(moved["actor"])) > 1e-5


def test_the_parts_of_a_run_add_up_and_ratios_are_those_of_a_round():
  cpu = {
    "plain": [4.0, 5.0, 8.0],
    "update": [4.4, 5.0, 9.6],
    "learner's step": [8.0, 8.0, 8.0],
    "whole run": [9.0, 9.0, 9.0],
  }
  parts = {
    "gradient of the actor": 1.0,
    "gradient of the critic": 2.0,
    "gradients": 3.5,
    "apply": 1.0,
    "Adam": 0.7,
    "draw from the replay": 0.1,
    "learn": 6.0,
  }
  result = {
    "cpu": cpu,
    "wall": {"whole run": [10.0, 20.0, 30.0]},
    "parts": {key: [value] for key, value in parts.items()},
    "load": 2.0,
    "others": 0.5,
  }
  assert sum(critics.shares(result).values()) == 9.0
  line = critics.table({"td3, X": result}).splitlines()[-1]
  assert "| td3, X | 5.00 | 5.00 | 1.10 (1.00-1.20) | 8.00 | 1.60 (1" in line
  assert "| 50 | 2.0 |" in line
  last = critics.parts_table({"td3, X": result}).splitlines()[-1]
  assert last == "| acting and environment | 1.00 |"
