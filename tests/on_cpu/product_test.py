"""The product with a kernel of few outputs is that with any kernel."""

import jax
import numpy as np
import pytest

from seedx.on_cpu import product


@pytest.mark.parametrize("outputs", [2, 33])
def test_it_is_the_product_and_so_is_its_gradient(outputs):
  rng = np.random.default_rng(0)
  features, kernel, probe = (
    rng.normal(size=shape).astype(np.float32)
    for shape in ((3, 5, 4), (4, outputs), (3, 5, outputs))
  )
  found, pullback = jax.vjp(
    lambda x, y: product.dot_general(x, y, (((2,), (0,)), ((), ()))),
    features,
    kernel,
  )
  expected = (
    features @ kernel,
    probe @ kernel.T,
    np.einsum("tnf,tnp->fp", features, probe),
  )
  for one, other in zip((found, *pullback(probe)), expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
