"""Standardization of images."""

import jax
import jax.numpy as jnp
import numpy as np

from seedx.networks import convolutions


def test_each_image_is_standardized():
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (5, 20, 24, 2), np.uint8)
  images[1] //= 16
  images[2] = 87  # Blank.
  images[3] = 0
  images[4, ..., 1] = 255
  actual = jax.jit(convolutions.standardize)(images)
  assert actual.dtype == jnp.float32
  half = jax.eval_shape(
    lambda x: convolutions.standardize(x, jnp.bfloat16), images
  )
  assert half.dtype == jnp.bfloat16
  pixels = images.astype(np.float64)
  mean = pixels.mean((1, 2, 3), keepdims=True)
  variance = pixels.var((1, 2, 3), keepdims=True)
  expected = (pixels - mean) * (variance + 1) ** -0.5
  # The variance is a difference of large squares in float32.
  np.testing.assert_allclose(actual, expected, rtol=1e-2, atol=1e-4)
