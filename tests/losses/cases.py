"""The table of all losses and returns, for what holds of every one of them."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from seedx import losses
from tests.losses import references, streams

STREAM = "step_type", "reward", "discount"
POLICY = "log_prob", "entropy"
OFF_POLICY = "log_prob", "behaviour_log_prob", "entropy"
ACTOR_CRITIC = {
  "policy_gradient": "log_prob",
  "value": "values",
  "entropy": "entropy",
}


class Case(NamedTuple):
  """A function of a stream.

  Attributes:
    function: takes `arguments` of a stream by position, and a setting.
    reference: takes a stream, the stream of its constants, and a setting.
    arguments: names in `streams.random_stream`.
    settings: keyword arguments, one dict for each.
    learns: by part of a loss, the one argument that has a gradient; empty for
      what is no loss.
    tolerance: of float32 against the reference in float64.
  """

  function: Callable
  reference: Callable
  arguments: tuple[str, ...]
  settings: tuple[dict, ...]
  learns: dict[str, str] = {}  # noqa: RUF012
  tolerance: float = 1e-4

  def __call__(self, stream, **setting):
    return self.function(*(stream[name] for name in self.arguments), **setting)

  def every_setting(self, stream):
    return tuple(self(stream, **setting) for setting in self.settings)

  def expected(self, stream, constant=None):
    constant = stream if constant is None else constant
    return tuple(
      self.reference(stream, constant, **setting) for setting in self.settings
    )


def ppo(
  values,
  behaviour_values,
  log_prob,
  behaviour_log_prob,
  entropy,
  step_type,
  reward,
  discount,
  *,
  lambda_=0.95,
  clip_values=False,
  **setting,
):
  """PPO of a whole stream, as its docstring has it."""
  arrived = step_type, reward, discount
  advantage = losses.gae(behaviour_values, *arrived, lambda_=lambda_)
  return losses.ppo(
    values[:-1],
    log_prob,
    behaviour_log_prob,
    entropy,
    advantage,
    advantage + behaviour_values[:-1],
    losses.transitions(*arrived, behaviour_values).weight,
    behaviour_values=behaviour_values[:-1] if clip_values else None,
    **setting,
  )


def q_learning(*arguments, **setting):
  """Q-learning with the importance weight by position."""
  *arguments, importance_weight = arguments
  return losses.q_learning(
    *arguments, importance_weight=importance_weight, **setting
  )


WIDE, NARROW = (
  np.linspace(-x, x, streams.ATOMS, dtype=np.float32) for x in (20.0, 0.5)
)

CASES = {
  "n_step_returns": Case(
    losses.n_step_returns,
    references.n_step_returns,
    ("values", *STREAM),
    ({"n": 1}, {"n": 3}, {"n": 20}),
  ),
  "lambda_returns": Case(
    losses.lambda_returns,
    references.lambda_returns,
    ("values", *STREAM),
    ({}, {"lambda_": 0.7}, {"lambda_": 0.0}),
  ),
  "gae": Case(
    losses.gae,
    references.gae,
    ("values", *STREAM),
    ({}, {"lambda_": 1.0}, {"lambda_": 0.0}),
  ),
  "a2c": Case(
    losses.a2c,
    references.a2c,
    ("values", *POLICY, *STREAM),
    ({}, {"lambda_": 0.9}, {"lambda_": 0.0}),
    ACTOR_CRITIC,
  ),
  "vtrace": Case(
    losses.vtrace,
    references.vtrace,
    ("values", *OFF_POLICY, *STREAM),
    (
      {},
      {"lambda_": 0.9, "clip_rho_threshold": 2.0, "clip_pg_rho_threshold": 1.5},
      {"lambda_": 0.0, "clip_rho_threshold": 0.5, "clip_pg_rho_threshold": 3.0},
    ),
    ACTOR_CRITIC,
  ),
  "ppo": Case(
    ppo,
    references.ppo,
    ("values", "behaviour_values", *OFF_POLICY, *STREAM),
    (
      {},
      {"lambda_": 0.8, "clip_epsilon": 0.4, "clip_values": True},
      {"clip_epsilon": 0.1, "clip_values": True},
    ),
    ACTOR_CRITIC,
  ),
  "q_learning": Case(
    q_learning,
    references.q_learning,
    ("q_values", "target_q_values", "action", *STREAM, "importance_weight"),
    (
      {},
      {"n": 3, "double": False, "huber_delta": 1.5},
      {"n": 20},
      {"n": 2, "rescale": True},
    ),
    {"loss": "q_values"},
    1e-3,  # The inverse of h loses three digits to cancellation.
  ),
  "categorical_q_learning": Case(
    functools.partial(losses.categorical_q_learning, atoms=WIDE),
    references.categorical_q_learning,
    (
      *("q_values", "logits", "target_q_values", "target_logits"),
      *("action", *STREAM),
    ),
    (
      {},
      {"n": 3, "double": False},
      # Most returns lie beyond them.
      {"atoms": NARROW, "n": 20},
    ),
    {"loss": "logits"},
  ),
}
LOSSES = [name for name, case in CASES.items() if case.learns]


@functools.cache
def jitted(name):
  """The function of a stream to the results of every setting."""
  return jax.jit(CASES[name].every_setting)


def assert_close(actual, expected, tolerance=1e-4):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(
      a, b, rtol=tolerance, atol=tolerance
    ),
    actual,
    expected,
  )


def assert_equal(actual, expected):
  jax.tree.map(np.testing.assert_array_equal, actual, expected)
