"""Products with kernels of few and of many outputs, compared with NumPy."""

import jax
import numpy as np
import pytest

from seedx.on_cpu import product


@pytest.mark.parametrize("outputs", [2, 33])
def test_product_and_gradients_match_numpy(outputs):
  rng = np.random.default_rng(0)
  features, kernel, probe = (
    rng.normal(size=shape).astype(np.float32)
    for shape in ((3, 5, 4), (4, outputs), (3, 5, outputs))
  )
  actual, pullback = jax.vjp(
    lambda x, y: product.dot_general(x, y, (((2,), (0,)), ((), ()))),
    features,
    kernel,
  )
  expected = (
    features @ kernel,
    probe @ kernel.T,
    np.einsum("tnf,tnp->fp", features, probe),
  )
  for one, other in zip((actual, *pullback(probe)), expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
