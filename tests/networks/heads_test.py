"""Heads: numbers that are checked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import networks
from tests.networks import helpers


def kernels(params):
  return [layer["kernel"] for layer in params["params"].values()]


def test_policy_and_value_are_linear():
  head = networks.PolicyValueHead(3)
  features = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
  params = helpers.random_params(head, features)
  output = jax.device_get(jax.jit(head.apply)(params, features))
  by_width = {
    layer["bias"].size: features @ layer["kernel"] + layer["bias"]
    for layer in params["params"].values()
  }
  np.testing.assert_allclose(output.policy, by_width[3], rtol=1e-5)
  np.testing.assert_allclose(output.value, by_width[1][:, 0], rtol=1e-5)


def test_initial_policy_is_close_to_uniform():
  features = np.random.default_rng(0).uniform(-1, 1, (9, 64))
  init = jax.jit(networks.PolicyValueHead(3).init_with_output)
  output, _ = init(jax.random.key(0), features.astype(np.float32))
  assert 0 < np.abs(np.asarray(output.policy)).max() < 0.1


def test_dueling_takes_the_mean_from_the_advantages():
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
  shapes = sorted(kernel.shape for kernel in kernels(params))
  assert shapes == [(2, 1), (2, 2), (2, 2), (2, 3)]
  params = jax.tree.map(lambda x: values[x.shape].astype(np.float32), params)
  # The hidden layers are [3, 0] and [0, 2]; V is 7 and 11; the advantages are
  # 3 6 18 with the mean 9, and 14 16 18 with the mean 16.
  np.testing.assert_allclose(
    jax.jit(head.apply)(params, features), [[1, 4, 16], [9, 11, 13]], rtol=1e-6
  )


def test_without_dueling_values_are_linear():
  head = networks.QHead(3)
  features = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
  params = helpers.random_params(head, features)
  (layer,) = params["params"].values()
  np.testing.assert_allclose(
    jax.jit(head.apply)(params, features),
    features @ layer["kernel"] + layer["bias"],
    rtol=1e-5,
  )


@pytest.mark.parametrize(
  "head",
  [
    networks.QHead(3),
    networks.QHead(3, dueling=True, dtype=jnp.bfloat16),
    networks.PolicyValueHead(3),
  ],
)
def test_heads_return_float32_for_any_features(head):
  features = jax.ShapeDtypeStruct((2, 5), jnp.bfloat16)
  output, params = jax.eval_shape(
    head.init_with_output, jax.random.key(0), features
  )
  assert {x.dtype for x in jax.tree.leaves((output, params))} == {
    np.dtype("float32")
  }
