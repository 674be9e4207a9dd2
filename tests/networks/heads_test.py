"""Heads, compared with numbers computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


def test_dueling_subtracts_the_mean_over_actions_of_each_atom():
  head = networks.QHead(3, dueling=True, size=0, parts=2)
  features = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
  params = helpers.random_params(head, features)
  layers = {x["bias"].size: x for x in params["params"].values()}
  values = features @ layers[2]["kernel"] + layers[2]["bias"]
  output = jax.jit(head.apply)(params, features)
  assert output.shape == (4, 3, 2)
  np.testing.assert_allclose(output.mean(axis=1), values, rtol=1e-4)


# Critics of (state, action), and their actors

FEATURES = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
ACTION = np.random.default_rng(1).normal(size=(3, 4, 2)).astype(np.float32)


@pytest.mark.parametrize(("activation", "parts"), [("relu", 0), ("tanh", 6)])
def test_critics_are_separate_networks_of_features_and_action(
  activation, parts
):
  critic = networks.Critic((8, 7), 2, parts=parts, activation=activation)
  params = helpers.random_params(critic, FEATURES, ACTION)
  output = jax.jit(critic.apply)(params, FEATURES, ACTION)
  function = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}[activation]
  for c in range(2):
    hidden = np.concatenate([FEATURES, ACTION], axis=-1).astype(float)
    for i in range(3):
      layer = params["params"][f"Dense_{3 * c + i}"]
      hidden = hidden @ layer["kernel"] + layer["bias"]
      hidden = function(hidden) if i < 2 else hidden
    expected = hidden if parts else hidden[..., 0]
    np.testing.assert_allclose(output[:, :, c], expected, rtol=1e-4, atol=1e-5)
  assert output.shape == (3, 4, 2, *([parts] if parts else []))


def test_critics_begin_with_different_parameters():
  critic = networks.Critic((8,), 2)
  output, _ = jax.jit(critic.init_with_output)(
    jax.random.key(0), FEATURES, ACTION
  )
  assert np.abs(output[..., 0] - output[..., 1]).mean() > 0.1


def test_products_of_critics_have_one_batch_axis():
  critic = networks.Critic((4,), 2)
  params = helpers.random_params(critic, FEATURES, ACTION)
  program = jax.make_jaxpr(
    jax.grad(lambda x: critic.apply(x, FEATURES, ACTION).sum())
  )(params)
  products = [x for x in program.eqns if x.primitive.name == "dot_general"]
  ranks = {x.aval.ndim for product in products for x in product.invars}
  assert len(products) >= 6 and ranks == {2}


def test_only_hidden_layers_of_a_critic_are_in_half_precision():
  exact, half = (
    networks.Critic((8,), 2, dtype=x) for x in ("float32", "bfloat16")
  )
  params = helpers.random_params(exact, FEATURES, ACTION)
  expected = jax.jit(exact.apply)(params, FEATURES, ACTION)

  @jax.jit
  def apply(params):
    return half.apply(
      params, FEATURES, ACTION, capture_intermediates=True, mutable=True
    )

  output, collections = apply(params)
  layers = collections["intermediates"]
  dtypes = [str(layers[f"Dense_{i}"]["__call__"][0].dtype) for i in range(4)]
  assert dtypes == ["bfloat16", "float32"] * 2
  assert output.dtype == jnp.float32
  assert 1e-5 < np.abs(output - expected).max() < 0.1
  shapes = jax.eval_shape(half.init, jax.random.key(0), FEATURES, ACTION)
  assert {x.dtype for x in jax.tree.leaves(shapes)} == {np.dtype("float32")}


def test_an_actors_first_outputs_are_close_to_0():
  output, params = jax.jit(networks.ActorHead(3).init_with_output)(
    jax.random.key(0), FEATURES
  )
  layer = params["params"]["Dense_0"]
  np.testing.assert_allclose(
    output, FEATURES @ layer["kernel"] + layer["bias"], rtol=1e-4, atol=1e-6
  )
  assert 0 < np.abs(output).max() < 0.1
  assert output.dtype == np.float32
