"""The critics that an actor's gradient needs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import types
from seedx.agents import ddpg
from tests import conftest

SPEC = types.EnvironmentSpec(
  specs.Array((3,), np.float32),
  specs.BoundedArray((2,), np.float32, -1.0, 1.0),
)


@pytest.mark.slow
def test_td3s_actor_gradient_is_computed_without_the_second_critic():
  agent = ddpg.Config(hidden_sizes=(), num_critics=2).make(SPEC)
  unroll = conftest.random_unroll(agent, SPEC, 2, np.full(4, 0.0))
  sample = types.Sample(agent.needs.stored(unroll), np.ones(4, np.float32))
  sample = jax.tree.map(jnp.asarray, sample)
  state = jax.jit(agent.init)(jax.random.key(0))

  @jax.jit
  def gradient(state):
    key = jax.random.key(1)
    return agent.gradients(state, key, sample)[0].params["actor"]

  def without(layer):
    """Returns a state in which the parameters of a critic are NaN."""
    head = dict(state.params["critic"]["params"]["head"])
    # A gradient of 0 times NaN would be NaN.
    head[layer] = jax.tree.map(lambda x: x * jnp.nan, head[layer])
    critic = {"params": state.params["critic"]["params"] | {"head": head}}
    return dataclasses.replace(state, params=state.params | {"critic": critic})

  def leaves(state):
    return np.concatenate([x.ravel() for x in jax.tree.leaves(gradient(state))])

  np.testing.assert_array_equal(leaves(without("Dense_1")), leaves(state))
  assert np.any(leaves(state)) and np.any(np.isnan(leaves(without("Dense_0"))))
