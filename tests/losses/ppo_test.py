"""PPO: both clippings in worked numbers, and what it is before it clips."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import losses
from tests.losses import cases, streams

ARGUMENTS = (
  *("values", "log_prob", "behaviour_log_prob", "entropy", "advantage"),
  *("target", "weight"),
)


def one_step(**arguments):
  """Losses of one step, whose ratio is 1 and whose errors are 0."""
  arguments = dict.fromkeys(ARGUMENTS, 0.0) | {"weight": 1.0} | arguments
  arrays = {k: jnp.reshape(v, 1) for k, v in arguments.items()}
  loss = losses.ppo(**arrays, clip_epsilon=0.25)
  return jax.tree.map(lambda x: x[0], loss)


@pytest.mark.parametrize(
  ("ratio", "advantage", "expected", "gradient"),
  [
    # A ratio is cut to 0.75 or 1.25, but only where that makes things worse;
    # elsewhere the gradient to log pi is that of -ratio * A, itself.
    (1.5, 2.0, -2.5, 0.0),  # -min(3, 2.5)
    (1.5, -2.0, 3.0, 3.0),  # -min(-3, -2.5)
    (0.5, 2.0, -1.0, -1.0),  # -min(1, 1.5)
    (0.5, -2.0, 1.5, 0.0),  # -min(-1, -1.5)
    (1.125, 2.0, -2.25, -2.25),
    (0.875, -2.0, 1.75, 1.75),
    (1.0, 2.0, -2.0, -2.0),
  ],
)
def test_clipping_stops_only_what_went_far_enough(
  ratio, advantage, expected, gradient
):
  def loss(log_prob):
    return one_step(
      log_prob=log_prob,
      behaviour_log_prob=np.log(np.float32(0.5)),
      advantage=advantage,
    ).policy_gradient

  actual = jax.value_and_grad(loss)(np.log(np.float32(0.5 * ratio)))
  np.testing.assert_allclose(actual, [expected, gradient], rtol=1e-6)


@pytest.mark.parametrize(
  ("value", "target", "square", "gradient"),
  [
    # V' = 1. Moved further than 0.25 towards the target, V counts as if it
    # had not; moved away from it, it counts in full.
    (1.5, 3.0, 1.75**2, 0.0),  # Of (3 - 1.5)^2 and (3 - 1.25)^2
    (0.5, 3.0, 2.5**2, -2.5),  # Of (3 - 0.5)^2 and (3 - 0.75)^2
    (0.5, -1.0, 1.75**2, 0.0),  # Of (-1 - 0.5)^2 and (-1 - 0.75)^2
    (1.5, -1.0, 2.5**2, 2.5),  # Of (-1 - 1.5)^2 and (-1 - 1.25)^2
    (1.125, 3.0, 1.875**2, -1.875),
    (1.0, 3.0, 2.0**2, -2.0),
  ],
)
def test_clipping_of_values(value, target, square, gradient):
  def loss(value, **clipping):
    return one_step(values=value, target=target, **clipping).value

  clipped = functools.partial(loss, behaviour_values=1.0)
  actual = jax.value_and_grad(clipped)(value)
  np.testing.assert_allclose(actual, [0.5 * square, gradient], rtol=1e-6)
  actual = jax.value_and_grad(loss)(value)
  error = value - target
  np.testing.assert_allclose(actual, [0.5 * error**2, error], rtol=1e-6)


def test_weight_and_entropy():
  step = {"values": 1.0, "log_prob": -0.5, "entropy": 0.75, "advantage": 2.0}
  loss = one_step(**step)
  assert loss.entropy == -0.75
  assert loss.weight == 1.0
  masked = one_step(**step, weight=0.0)
  assert loss.diagnostics["advantage"] == 2.0
  for part, none in zip(loss[:4], masked[:4], strict=True):
    assert part != 0.0
    assert none == 0.0
  assert not any(jax.tree.leaves(masked.diagnostics))


def random_steps(seed):
  rng = np.random.default_rng(seed)
  steps = {name: rng.normal(size=20).astype(np.float32) for name in ARGUMENTS}
  return steps | {"weight": (rng.random(20) < 0.8).astype(np.float32)}


def test_steps_are_independent():
  steps, order = random_steps(0), np.random.default_rng(1).permutation(20)
  shuffled = {name: array[order] for name, array in steps.items()}
  cases.assert_close(
    losses.ppo(**shuffled),
    jax.tree.map(lambda x: x[order], losses.ppo(**steps)),
    1e-6,
  )


@pytest.mark.parametrize("clip_values", [False, True])
@pytest.mark.parametrize("lambda_", [1.0, 0.8])
def test_at_a_ratio_of_1_it_has_the_gradient_of_a2c(lambda_, clip_values):
  stream = streams.random_stream(streams.THREE_RESETS, seed=4)
  stream |= {
    "behaviour_log_prob": stream["log_prob"],
    "behaviour_values": stream["values"],
  }
  learned = {name: stream[name] for name in ("values", "log_prob", "entropy")}

  def gradient(name, **setting):
    def total(learned):
      loss = cases.CASES[name](stream | learned, lambda_=lambda_, **setting)
      return sum(part.sum() for part in loss[:3])

    return jax.grad(total)(learned)

  expected = gradient("a2c")
  cases.assert_close(gradient("ppo", clip_values=clip_values), expected, 1e-5)
  assert np.count_nonzero(expected["log_prob"]) == 6
