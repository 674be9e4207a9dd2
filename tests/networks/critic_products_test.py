"""The products of critics, which have one batch axis."""

import jax
import jax.numpy as jnp

from seedx import networks
from tests.networks import helpers


def test_products_of_critics_have_one_batch_axis():
  critic = networks.Critic((4,), num_critics=2)
  features, action = jnp.zeros((3, 5, 2)), jnp.zeros((3, 5, 1))
  params = helpers.random_params(critic, features, action)

  def total(params):
    outputs = critic.apply(params, features, action)
    assert outputs.shape == (3, 5, 2)
    return jnp.sum(outputs)

  program = jax.make_jaxpr(jax.grad(total))(params)
  products = [x for x in program.eqns if x.primitive.name == "dot_general"]
  ranks = {x.aval.ndim for product in products for x in product.invars}
  assert len(products) >= 6 and ranks == {2}
