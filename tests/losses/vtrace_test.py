"""V-trace, compared with worked examples."""

import jax
import numpy as np

from tests.losses import cases
from tests.losses.streams import FIRST, MID

vtrace = jax.jit(cases.CASES["vtrace"])


def test_losses_match_a_worked_example():
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
  loss = vtrace(stream, clip_rho_threshold=1.5, clip_pg_rho_threshold=1.25)
  np.testing.assert_allclose(
    loss.diagnostics["value_target"], [3.1, 3.2], rtol=1e-6
  )
  np.testing.assert_allclose(
    loss.value, [0.5 * 2.1**2, 0.5 * 1.2**2], rtol=1e-5
  )
  np.testing.assert_allclose(
    loss.policy_gradient, [2.0 * np.log(2), -1.2 * np.log(0.8)], rtol=1e-5
  )
  np.testing.assert_allclose(loss.entropy, [-0.3, -0.4], rtol=1e-6)
  np.testing.assert_array_equal(loss.weight, [1.0, 1.0])
