"""The LSTM, compared with a loop in NumPy."""

import dm_env
import jax
import numpy as np
import scipy.special

from seedx import networks
from tests.networks import helpers

FIRST, MID = int(dm_env.StepType.FIRST), int(dm_env.StepType.MID)
LENGTH, BATCH, SIZE = 9, 4, 5


def lstm_reference(cell, features, step_type, state):
  c, h = (x.astype(np.float64) for x in state)
  outputs = []
  for x, first in zip(features, step_type == FIRST, strict=True):
    c, h = (np.where(first[:, None], 0, kept) for kept in (c, h))
    gates = {
      gate: x @ cell[f"i{gate}"]["kernel"]
      + h @ cell[f"h{gate}"]["kernel"]
      + cell[f"h{gate}"]["bias"]
      for gate in "ifgo"
    }
    i, f, o = (scipy.special.expit(gates[gate]) for gate in "ifo")
    c = f * c + i * np.tanh(gates["g"])
    h = o * np.tanh(c)
    outputs.append(h)
  return np.stack(outputs), (c, h)


def test_lstm_matches_a_loop():
  rng = np.random.default_rng(0)
  features = rng.normal(size=(LENGTH, BATCH, 3)).astype(np.float32)
  step_type = np.full((LENGTH, BATCH), MID, np.uint8)
  # Environments 0 to 3 reset at the first step, later, never, and repeatedly.
  step_type[0, 0] = step_type[4, 1] = FIRST
  step_type[3:6, 3] = FIRST
  step_type[6, 1] = int(dm_env.StepType.LAST)  # No reset.
  state = tuple(rng.normal(size=(2, BATCH, SIZE)).astype(np.float32))
  inputs = features, step_type, state
  lstm = networks.LSTM(SIZE)
  params = helpers.random_params(lstm, *inputs)
  outputs, state = jax.device_get(jax.jit(lstm.apply)(params, *inputs))
  ((cell,),) = (x.values() for x in params["params"].values())
  expected, expected_state = lstm_reference(cell, *inputs)
  assert {x.dtype for x in jax.tree.leaves((params, state))} == {
    np.dtype("float32")
  }
  assert np.std(expected, axis=0).min() > 0.01
  np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)
  for actual, exact in zip(state, expected_state, strict=True):
    np.testing.assert_allclose(actual, exact, rtol=1e-5, atol=1e-5)
