"""Parameters for the tests of networks."""

import jax
import numpy as np


def random_params(module, *inputs):
  """Returns random parameters, without compiling the initializers."""
  shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)
  rng = np.random.default_rng(0)

  def values(leaf):
    scale = np.prod(leaf.shape[:-1]) ** -0.5 if len(leaf.shape) > 1 else 0.1
    return (scale * rng.normal(size=leaf.shape)).astype(leaf.dtype)

  return jax.tree.map(values, shapes)
