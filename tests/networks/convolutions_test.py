"""Standardization and pooling of images."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx.networks import convolutions


@pytest.mark.parametrize(("height", "width"), [(1, 1), (5, 8)])
def test_max_pool_to_half_is_that_of_flax(height, width):
  rng = np.random.default_rng(0)
  # All are different and below 0: ties and zeros of the padding would show.
  images = -1 - rng.permutation(2 * height * width * 3).astype(np.float32)
  images = images.reshape(2, height, width, 3)

  def plain(images):
    return nn.max_pool(images, (3, 3), strides=(2, 2), padding="SAME")

  probe = rng.normal(size=plain(images).shape).astype(np.float32)

  @jax.jit
  def evaluate(images):
    results = []
    for function in (convolutions.max_pool_to_half, plain):
      outputs, pullback = jax.vjp(function, images)
      results.append((outputs, *pullback(probe)))
    return results

  pooled, expected = evaluate(images)
  assert pooled[0].shape == (2, (height + 1) // 2, (width + 1) // 2, 3)
  np.testing.assert_array_equal(pooled[0], expected[0])
  np.testing.assert_allclose(pooled[1], expected[1], rtol=1e-5, atol=1e-6)


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
  # A difference of large squares, in float32.
  np.testing.assert_allclose(actual, expected, rtol=1e-2, atol=1e-4)
