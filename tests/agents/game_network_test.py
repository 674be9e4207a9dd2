"""Tests of `alphazero.evaluation`: the network of a game without a search."""

import jax
import jax.numpy as jnp
import numpy as np

from seedx import envs
from seedx.agents import acting_step, alphazero
from seedx.envs import functional

GAME = functional.TicTacToe()


def test_it_is_the_policy_that_the_agent_plays_without_a_search():
  spec = envs.spec(envs.Config("seedx:TicTacToe"))
  config = alphazero.Config(hidden_sizes=(8,), num_simulations=2)
  agent = config.make(spec)
  params = agent.acting(agent.init(jax.random.key(0)))
  boards = np.zeros((2, 2, 3, 3), np.int8)
  boards[1, 0, 0, 1] = boards[1, 1, 2, 2] = 1  # Squares 1 and 8 are taken.
  estimate = alphazero.evaluation(config, spec)(
    params, jax.random.key(1), jnp.asarray(boards)
  )
  inputs = acting_step.zero_inputs(spec, 2)
  timestep = inputs.timestep._replace(
    observation=jax.vmap(GAME.observe)(jnp.asarray(boards))
  )
  output, _ = agent.without_search(
    params,
    jax.random.key(2),
    inputs._replace(timestep=timestep),
    agent.initial_core_state(2),
  )
  policy = jax.nn.softmax(estimate.logits)
  np.testing.assert_allclose(policy, output.extras.search_policy, rtol=1e-5)
  np.testing.assert_array_equal(jnp.argmax(policy, axis=-1), output.action)
  assert estimate.value.shape == (2,)
  assert (np.flatnonzero(np.asarray(policy[1]) == 0) == [1, 8]).all()
