"""Pure loss functions of one stream; use `jax.vmap` for a batch of streams."""

from seedx.losses.a2c import a2c
from seedx.losses.ppo import ppo
from seedx.losses.q_learning import QLearningLoss, q_learning
from seedx.losses.reductions import mean_share, sum_over_cores
from seedx.losses.returns import gae, lambda_returns, n_step_returns
from seedx.losses.streams import ActorCriticLoss, Transitions, transitions
from seedx.losses.vtrace import vtrace

__all__ = [
  "ActorCriticLoss",
  "QLearningLoss",
  "Transitions",
  "a2c",
  "gae",
  "lambda_returns",
  "mean_share",
  "n_step_returns",
  "ppo",
  "q_learning",
  "sum_over_cores",
  "transitions",
  "vtrace",
]
