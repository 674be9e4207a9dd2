"""V-trace: worked numbers, and what it is on policy."""

import functools

import jax
import numpy as np
import pytest
import rlax

from seedx import losses
from tests.losses import cases, streams
from tests.losses.streams import FIRST, LAST, MID

vtrace = cases.CASES["vtrace"]


def targets_of(stream, **setting):
  """The targets: the loss is half of (target - V) squared."""

  def value_loss(values):
    return vtrace(stream | {"values": values}, **setting).value.sum()

  return stream["values"][:-1] - jax.grad(value_loss)(stream["values"])[:-1]


def test_worked_arithmetic():
  # rho = 0.5 / 0.25 = 2 and 0.8 / 1 = 0.8; rho_bar = 1.5, rho_pg = 1.25.
  # delta_1 = 0.8 (2 + 0.5 * 3 - 2)                 = 1.2
  # vs_1    = 2 + 1.2                               = 3.2
  # delta_0 = 1.5 (1 + 0.5 * 2 - 1)                 = 1.5
  # vs_0    = 1 + 1.5 + 0.5 * min(1, 2) * (3.2 - 2) = 3.1
  # A_1     = 0.8 (2 + 0.5 * 3 - 2)                 = 1.2
  # A_0     = 1.25 (1 + 0.5 * 3.2 - 1)              = 2.0
  stream = {
    "values": np.array([1.0, 2.0, 3.0], np.float32),
    "log_prob": np.log(np.array([0.5, 0.8], np.float32)),
    "behaviour_log_prob": np.log(np.array([0.25, 1.0], np.float32)),
    "entropy": np.array([0.3, 0.4], np.float32),
    "step_type": np.array([FIRST, MID, MID], np.int32),
    "reward": np.array([9.0, 1.0, 2.0], np.float32),
    "discount": np.array([1.0, 0.5, 0.5], np.float32),
  }
  setting = {"clip_rho_threshold": 1.5, "clip_pg_rho_threshold": 1.25}
  loss = vtrace(stream, **setting)
  np.testing.assert_allclose(
    targets_of(stream, **setting), [3.1, 3.2], rtol=1e-6
  )
  np.testing.assert_allclose(
    loss.value, [0.5 * 2.1**2, 0.5 * 1.2**2], rtol=1e-5
  )
  np.testing.assert_allclose(
    loss.policy_gradient, [2.0 * np.log(2), -1.2 * np.log(0.8)], rtol=1e-5
  )
  np.testing.assert_allclose(loss.entropy, [-0.3, -0.4], rtol=1e-6)
  np.testing.assert_array_equal(loss.weight, [1.0, 1.0])


def on_policy(seed):
  stream = streams.random_stream(streams.THREE_RESETS, seed)
  return stream | {"behaviour_log_prob": stream["log_prob"]}


@pytest.mark.parametrize(("lambda_", "n"), [(1.0, 9), (0.0, 1)])
def test_on_policy_targets_are_n_step_returns(lambda_, n):
  stream = on_policy(seed=3)
  expected = cases.CASES["n_step_returns"](stream, n=n)
  actual = targets_of(stream, lambda_=lambda_)
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lambda_", [1.0, 0.8, 0.0])
def test_on_policy_it_is_a2c(lambda_):
  stream, results = on_policy(seed=4), []
  for name in ("vtrace", "a2c"):
    loss = functools.partial(cases.CASES[name], lambda_=lambda_)

    def total(learned, loss=loss):
      parts = loss(stream | learned)
      return parts.policy_gradient.sum() + parts.value.sum(), parts[:4]

    learned = {k: stream[k] for k in ("values", "log_prob")}
    results.append(jax.grad(total, has_aux=True)(learned))
  cases.assert_close(*results, 1e-5)


@pytest.mark.parametrize(("first_discount", "wrong"), [(0.0, 1.0), (0.9, 3.27)])
def test_a_mask_alone_is_wrong(first_discount, wrong):
  # Step 0 earns 1 and its episode is truncated at step 1, worth 7. Step 2 is
  # the next episode's first, which earns 1 and goes on to a step worth 2.
  # Right: 1 + 0.9 * 7 = 7.3. Bootstrapped from what comes after the reset,
  # 1 + 0.9 * 0 = 1 or 1 + 0.9 * 0.9 * (1 + 0.9 * 2) = 3.27.
  stream = {
    "values": np.array([0.0, 7.0, 5.0, 2.0], np.float32),
    "log_prob": np.full(3, -0.7, np.float32),
    "behaviour_log_prob": np.full(3, -0.7, np.float32),
    "entropy": np.zeros(3, np.float32),
    "step_type": np.array([MID, LAST, FIRST, MID], np.int32),
    "reward": np.array([0.0, 1.0, 0.0, 1.0], np.float32),
    "discount": np.array([0.9, 0.9, first_discount, 0.9], np.float32),
  }
  masked_only = stream["values"][:-1] + rlax.vtrace(
    stream["values"][:-1],
    stream["values"][1:],
    stream["reward"][1:],
    stream["discount"][1:],
    np.ones(3, np.float32),
  )
  assert masked_only[0] == pytest.approx(wrong, abs=0.005)
  # The next episode: 1 + 0.9 * 2.
  right = [7.3, 7.0, 2.8]
  np.testing.assert_allclose(targets_of(stream), right, rtol=1e-6)
  returns = losses.lambda_returns(
    *(stream[k] for k in cases.CASES["lambda_returns"].arguments)
  )
  np.testing.assert_allclose(returns, right, rtol=1e-6)
