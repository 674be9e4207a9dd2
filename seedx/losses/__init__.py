"""Pure loss functions of one stream; use `jax.vmap` for a batch of streams.

Episodes are told apart by `dm_env`'s step types and discounts. A step that
Gymnasium calls `terminated` is LAST with discount 0, and `truncated` LAST with
discount 1; after either comes the FIRST step of the next episode, see
`transitions`.
"""

from seedx.losses.a2c import a2c
from seedx.losses.categorical import (
  Bootstraps,
  categorical_q_learning,
  n_step_bootstraps,
)
from seedx.losses.ppo import ppo
from seedx.losses.q_learning import QLearningLoss, q_learning
from seedx.losses.reductions import mean_share, sum_over_cores
from seedx.losses.returns import gae, lambda_returns, n_step_returns
from seedx.losses.streams import ActorCriticLoss, Transitions, transitions
from seedx.losses.vtrace import vtrace

__all__ = [
  "ActorCriticLoss",
  "Bootstraps",
  "QLearningLoss",
  "Transitions",
  "a2c",
  "categorical_q_learning",
  "gae",
  "lambda_returns",
  "mean_share",
  "n_step_bootstraps",
  "n_step_returns",
  "ppo",
  "q_learning",
  "sum_over_cores",
  "transitions",
  "vtrace",
]
