"""All losses and returns, for the tests that each of them must pass."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np

from seedx import losses
from tests.losses import references, streams

STREAM = "step_type", "reward", "discount"
POLICY = "log_prob", "entropy"
OFF_POLICY = "log_prob", "behaviour_log_prob", "entropy"
ACTOR_CRITIC = {
  "policy_gradient": ("log_prob",),
  "value": ("values",),
  "entropy": ("entropy",),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
  """A loss or a return, and what its tests need.

  Attributes:
    function: function of `arguments` by position, and of keyword arguments.
    reference: function of a stream, a stream of constants, and the keywords.
    arguments: names of the arguments in `streams.random_stream`.
    settings: dicts of keyword arguments, each of which is tested.
    learns: names of the only arguments with a gradient, by part of the loss;
      empty for returns.
    tolerance: tolerance of float32 against the reference in float64.
  """

  function: Callable
  reference: Callable
  arguments: tuple[str, ...]
  settings: tuple[dict, ...]
  learns: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
  tolerance: float = 1e-4

  @property
  def gradients(self):
    """Pairs of a part of the loss and an argument with a gradient."""
    return [(part, x) for part, names in self.learns.items() for x in names]

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
  """Computes the PPO loss of a stream as in the docstring of `losses.ppo`."""
  timesteps = step_type, reward, discount
  advantage = losses.gae(behaviour_values, *timesteps, lambda_=lambda_)
  return losses.ppo(
    values[:-1],
    log_prob,
    behaviour_log_prob,
    entropy,
    advantage,
    advantage + behaviour_values[:-1],
    losses.transitions(*timesteps, behaviour_values).weight,
    behaviour_values=behaviour_values[:-1] if clip_values else None,
    **setting,
  )


def q_learning(*arguments, **setting):
  """Calls `losses.q_learning`; the last argument is the importance weight."""
  *arguments, importance_weight = arguments
  return losses.q_learning(
    *arguments, importance_weight=importance_weight, **setting
  )


def clipped_double_q_learning(*arguments, soft=True, **setting):
  """Calls the loss; the last argument is the entropy bonus, if soft."""
  *arguments, entropy_bonus = arguments
  return losses.clipped_double_q_learning(
    *arguments, entropy_bonus=entropy_bonus if soft else None, **setting
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
  "q_lambda_returns": Case(
    losses.q_lambda_returns,
    references.q_lambda_returns,
    ("q_values", *STREAM),
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
  "alphazero": Case(
    losses.alphazero,
    references.alphazero,
    ("values", "log_policy", "search_policy", *STREAM),
    ({}, {"lambda_": 0.8}, {"lambda_": 0.0}),
    {"policy": ("log_policy",), "value": ("values",)},
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
    {"loss": ("q_values",)},
    1e-3,  # The inverse of h loses three digits to cancellation.
  ),
  "categorical_q_learning": Case(
    functools.partial(losses.categorical_q_learning, atoms=WIDE),
    references.categorical_q_learning,
    (
      "q_values",
      "logits",
      "target_q_values",
      "target_logits",
      "action",
      *STREAM,
    ),
    (
      {},
      {"n": 3, "double": False},
      # Most returns lie beyond these atoms.
      {"atoms": NARROW, "n": 20},
    ),
    {"loss": ("logits",)},
  ),
  "clipped_double_q_learning": Case(
    clipped_double_q_learning,
    references.clipped_double_q_learning,
    (
      "critics.q_values",
      "critics.target_q_values",
      *STREAM,
      "entropy_bonus",
    ),
    ({}, {"n": 3, "soft": False}, {"n": 20}),
    {"loss": ("critics.q_values",)},
  ),
  "categorical_clipped_double_q_learning": Case(
    functools.partial(losses.categorical_clipped_double_q_learning, atoms=WIDE),
    references.categorical_clipped_double_q_learning,
    ("critics.logits", "critics.target_logits", *STREAM),
    ({}, {"n": 3}, {"atoms": NARROW, "n": 20}),
    {"loss": ("critics.logits",)},
  ),
  "deterministic_policy_gradient": Case(
    losses.deterministic_policy_gradient,
    references.deterministic_policy_gradient,
    ("actor.action", "actor.action_gradient", "step_type"),
    ({}, {"gradient_clip": 1.0}),
    {"loss": ("actor.action",)},
  ),
  "soft_policy": Case(
    functools.partial(losses.soft_policy, temperature=0.5),
    references.soft_policy,
    ("critics.q_values", "log_prob", "step_type"),
    ({}, {"temperature": 2.0}),
    {"loss": ("critics.q_values", "log_prob")},
  ),
  "temperature": Case(
    functools.partial(losses.temperature, target_entropy=-2.0),
    references.temperature,
    ("log_temperature", "log_prob", "step_type"),
    ({}, {"target_entropy": 0.25}),
    {"loss": ("log_temperature",)},
  ),
  "expectile_value": Case(
    functools.partial(losses.expectile_value, expectile=0.8),
    references.expectile_value,
    ("implicit.values", "critics.q_values", "step_type"),
    ({}, {"expectile": 0.1}),
    {"loss": ("implicit.values",)},
  ),
  "advantage_weighted_policy": Case(
    functools.partial(
      losses.advantage_weighted_policy, inverse_temperature=2.0
    ),
    references.advantage_weighted_policy,
    ("log_prob", "implicit.advantage", "step_type"),
    ({}, {"inverse_temperature": -8.0, "max_weight": 3.0}),
    {"loss": ("log_prob",)},
  ),
}
LOSSES = [name for name, case in CASES.items() if case.learns]


def joined(one, other):
  """Returns the first half of stream `one`, and the second of `other`."""
  return {
    k: np.concatenate([v[:5], other[k][5:]]) if np.ndim(v) else v
    for k, v in one.items()
  }


@functools.cache
def all_streams():
  """Returns streams by name, equally long, so that they share one program."""
  resets = streams.random_stream(streams.THREE_RESETS, seed=9)
  first = resets["step_type"] == streams.FIRST
  # dm_env has None in FIRST steps. A NaN spreads to whatever depends on it.
  without_numbers = {
    k: np.where(first, np.float32(np.nan), resets[k])
    for k in ("reward", "discount")
  }
  by_name = {
    "resets": resets,
    "nan at FIRST": resets | without_numbers,
    # The first ratio is 1.0004; ratios count as clipped only above 1.001.
    "rounding": streams.random_stream(10 * ["step"], seed=305),
  }
  for end in ("truncate", "terminate"):
    # Time steps 0 to 4 (LAST) and 5 (FIRST) to 9; transition 4 is the reset.
    events = ["step"] * 4 + [end] + ["step"] * 5
    one, other = (streams.random_stream(events, seed) for seed in (5, 6))
    other |= {k: v for k, v in one.items() if not v.ndim}
    by_name[end] = one
    by_name[f"{end}, other end"] = joined(one, other)
    by_name[f"{end}, other start"] = joined(other, one)
  for seed in range(32 - len(by_name)):
    events, start = streams.random_events(seed), bool(seed % 2)
    by_name[f"random {seed}"] = streams.random_stream(events, seed, start)
  return by_name


@functools.cache
def results(name):
  """Returns the results of all settings, and a loss's Jacobians, by stream.

  Jacobians of a loss's part are d part_t / d argument_i, `[T, ...]`.
  """
  case, names = CASES[name], list(all_streams())
  batch = jax.tree.map(lambda *x: np.stack(x), *all_streams().values())
  learned = {
    k: batch.pop(k)
    for k in case.arguments * bool(case.learns)
    if batch[k].dtype == np.float32 and k != "importance_weight"
  }

  def evaluate(floats, others):
    outputs = case.every_setting(floats | others)
    return outputs, outputs

  if learned:
    evaluate = jax.jacrev(evaluate, has_aux=True)
  both = jax.device_get(jax.jit(jax.vmap(evaluate))(learned, batch))
  return {
    name: jax.tree.map(lambda x, k=k: x[k], both[::-1])
    for k, name in enumerate(names)
  }
