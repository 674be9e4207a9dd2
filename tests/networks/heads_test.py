"""Heads, compared with numbers computed by hand."""

import jax
import numpy as np

from seedx import networks
from tests.networks import helpers


def test_policy_value_and_q_values_are_linear():
  features = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
  for head in (networks.PolicyValueHead(3), networks.QHead(3)):
    params = helpers.random_params(head, features)
    output = jax.device_get(jax.jit(head.apply)(params, features))
    by_width = {
      layer["bias"].size: features @ layer["kernel"] + layer["bias"]
      for layer in params["params"].values()
    }
    policy = getattr(output, "policy", output)
    np.testing.assert_allclose(policy, by_width.pop(3), rtol=1e-5)
    if by_width:
      np.testing.assert_allclose(output.value, by_width[1][:, 0], rtol=1e-5)


def test_initial_policy_is_close_to_uniform():
  features = np.random.default_rng(0).uniform(-1, 1, (9, 64))
  init = jax.jit(networks.PolicyValueHead(3).init_with_output)
  output, _ = init(jax.random.key(0), features.astype(np.float32))
  assert 0 < np.abs(np.asarray(output.policy)).max() < 0.1


def test_dueling_subtracts_the_mean_of_the_advantages():
  values = {
    (2, 2): np.eye(2),
    (2, 1): np.array([[2.0], [5.0]]),
    (2, 3): np.array([[1.0, 2.0, 6.0], [7.0, 8.0, 9.0]]),
    (2,): np.zeros(2),
    (1,): np.ones(1),
    (3,): np.zeros(3),
  }
  head = networks.QHead(3, dueling=True, size=2)
  features = np.array([[3.0, -1.0], [0.0, 2.0]], np.float32)
  params = jax.eval_shape(head.init, jax.random.key(0), features)
  shapes = sorted(x["kernel"].shape for x in params["params"].values())
  assert shapes == [(2, 1), (2, 2), (2, 2), (2, 3)]
  params = jax.tree.map(lambda x: values[x.shape].astype(np.float32), params)
  # The hidden layers are [3, 0] and [0, 2]; V is 7 and 11; the advantages are
  # 3 6 18 with the mean 9, and 14 16 18 with the mean 16.
  np.testing.assert_allclose(
    jax.jit(head.apply)(params, features), [[1, 4, 16], [9, 11, 13]], rtol=1e-6
  )
