"""Pure loss functions of one stream; use `jax.vmap` for a batch of streams.

Step types and discounts are those of `dm_env`. A LAST step has discount 0 if
Gymnasium calls it `terminated`, and 1 if `truncated`. The FIRST step of the
next episode follows it; see `transitions`. Streams of environments that reset
themselves are made by `from_same_step` and `from_next_step`.

Every function raises AssertionError for an argument whose rank, dtype or shape
differs from its docstring.
"""

from seedx.losses.a2c import a2c
from seedx.losses.alphazero import AlphaZeroLoss, alphazero
from seedx.losses.categorical import (
  Bootstraps,
  categorical_q_learning,
  n_step_bootstraps,
)
from seedx.losses.continuous_q import (
  ActorLoss,
  categorical_clipped_double_q_learning,
  clipped_double_q_learning,
  deterministic_policy_gradient,
  soft_policy,
  temperature,
)
from seedx.losses.implicit_q import advantage_weighted_policy, expectile_value
from seedx.losses.ppo import ppo
from seedx.losses.q_learning import QLearningLoss, q_learning
from seedx.losses.reductions import mean_share, sum_over_cores
from seedx.losses.returns import (
  gae,
  lambda_returns,
  n_step_returns,
  q_lambda_returns,
)
from seedx.losses.streams import (
  ActorCriticLoss,
  Stream,
  Transitions,
  from_next_step,
  from_same_step,
  transitions,
  weights,
)
from seedx.losses.vtrace import vtrace

__all__ = [
  "ActorCriticLoss",
  "ActorLoss",
  "AlphaZeroLoss",
  "Bootstraps",
  "QLearningLoss",
  "Stream",
  "Transitions",
  "a2c",
  "advantage_weighted_policy",
  "alphazero",
  "categorical_clipped_double_q_learning",
  "categorical_q_learning",
  "clipped_double_q_learning",
  "deterministic_policy_gradient",
  "expectile_value",
  "from_next_step",
  "from_same_step",
  "gae",
  "lambda_returns",
  "mean_share",
  "n_step_bootstraps",
  "n_step_returns",
  "ppo",
  "q_lambda_returns",
  "q_learning",
  "soft_policy",
  "sum_over_cores",
  "temperature",
  "transitions",
  "vtrace",
  "weights",
]
