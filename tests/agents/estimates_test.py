"""AlphaZero: estimates of the network never count more than a result."""

import dm_env
import jax
import numpy as np

from seedx import envs
from seedx.agents import acting_step, alphazero


def test_a_won_game_is_better_than_any_estimate():
  spec = envs.spec(envs.Config("seedx:TicTacToe"))
  # Each legal move is tried once.
  agent = alphazero.Config(hidden_sizes=(), num_simulations=5).make(spec)
  params = jax.tree.map(
    # All moves are equal, and all positions lost for the player to move.
    lambda x: np.full(x.shape, -5.0 if x.shape == (1,) else 0.0, np.float32),
    jax.eval_shape(agent.init, jax.random.key(0)).params,
  )
  board = np.zeros((1, 2, 3, 3), np.int8)
  board[0, 0, 2, :2] = 1  # The player to move wins with action 8.
  board[0, 1, 0, :2] = 1
  inputs = acting_step.zero_inputs(spec, 1)
  timestep = dm_env.TimeStep(
    step_type=np.full(1, dm_env.StepType.MID, np.uint8),
    reward=np.zeros(1, np.float32),
    discount=np.ones(1, np.float32),
    observation={"board": board, "action_mask": ~board.any(1).reshape(1, 9)},
  )
  output, _ = jax.jit(agent.greedy)(
    params,
    jax.random.key(0),
    inputs._replace(timestep=timestep),
    agent.initial_core_state(1),
  )
  assert output.action.tolist() == [8]
