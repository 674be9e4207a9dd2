"""Convolutions and pooling: fast paths against plain ones."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import networks
from seedx.networks import convolutions
from tests import conftest
from tests.networks import helpers

GEOMETRIES = (  # kernel, stride, height, width
  *((8, 4, 36, 40), (4, 2, 9, 13), (3, 1, 5, 7)),
  *((3, 2, 11, 8), (5, 3, 17, 14), (2, 3, 9, 10)),
  *((1, 1, 3, 2), (4, 4, 4, 7), (6, 2, 15, 6)),
)


def convolve(images, kernel, stride):
  return jax.lax.conv_general_dilated(
    images,
    kernel,
    window_strides=(stride, stride),
    padding="VALID",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )


@pytest.mark.parametrize(
  ("kernel", "stride", "height", "width"),
  conftest.slow_but([(8, 4, 36, 40), (5, 3, 17, 14)], GEOMETRIES),
)
def test_patches_times_kernel_is_the_convolution(kernel, stride, height, width):
  rng = np.random.default_rng(0)
  images = rng.normal(size=(2, height, width, 3)).astype(np.float32)
  weights = rng.normal(size=(kernel, kernel, 3, 4)).astype(np.float32)
  rows, columns = ((n - kernel) // stride + 1 for n in (height, width))
  probe = rng.normal(size=(2, rows, columns, 4)).astype(np.float32)

  def by_patches(images, weights):
    cut = convolutions.patches(images, kernel, stride)
    return cut @ convolutions.in_patch_order(weights, stride)

  def by_convolution(images, weights):
    return convolve(images, weights, stride)

  @jax.jit
  def evaluate(images, weights):
    results = []
    for function in (by_patches, by_convolution):
      outputs, pullback = jax.vjp(function, images, weights)
      results.append((outputs, *pullback(probe)))
    return results

  patched, convolved = evaluate(images, weights)
  assert patched[0].shape == probe.shape
  for actual, expected in zip(patched, convolved, strict=True):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_paths_of_conv_agree_and_standardize_bytes(dtype, monkeypatch):
  conv = networks.Conv(4, kernel=3, stride=2, standardize=True, dtype=dtype)
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (2, 9, 11, 3), np.uint8)
  params = helpers.random_params(conv, images)

  def loss(params):
    outputs = conv.apply(params, images)
    return jnp.sum(jnp.square(outputs.astype(jnp.float32))), outputs

  def evaluate(params):
    return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

  (_, outputs), gradients = evaluate(params)
  monkeypatch.setattr(
    jax.lax, "platform_dependent", lambda *args, cpu, default: default(*args)
  )
  (_, plain), plain_gradients = evaluate(params)

  tolerance = 1e-5 if dtype == "float32" else 3e-2
  kernel, bias = params["params"]["kernel"], params["params"]["bias"]
  pixels = images.astype(np.float64)
  mean = pixels.mean(axis=(1, 2, 3), keepdims=True)
  variance = pixels.var(axis=(1, 2, 3), keepdims=True)
  pixels = ((pixels - mean) / np.sqrt(variance + 1)).astype(np.float32)
  expected = convolve(pixels, kernel, 2) + bias
  for actual in (outputs, plain):
    assert actual.dtype == dtype
    np.testing.assert_allclose(
      actual.astype(np.float32), expected, rtol=tolerance, atol=tolerance
    )
  for name, gradient in gradients["params"].items():
    other = plain_gradients["params"][name]
    assert gradient.dtype == other.dtype == jnp.float32
    assert np.abs(gradient).max() > 0.1
    scale = np.abs(gradient).max()
    np.testing.assert_allclose(
      gradient, other, rtol=tolerance, atol=tolerance * scale
    )


def test_cpu_gets_patches_and_accelerators_the_convolution():
  conv = networks.Conv(4, kernel=3, stride=2)
  images = jnp.zeros((2, 9, 9, 3))
  params = helpers.random_params(conv, images)
  traced = jax.jit(conv.apply).trace(params, images)
  for platform, convolutions_expected in (("cpu", False), ("cuda", True)):
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("stablehlo.convolution" in text) == convolutions_expected
    assert ("stablehlo.dot_general" in text) != convolutions_expected


@pytest.mark.parametrize(
  ("height", "width"),
  conftest.slow_but(
    [(1, 1), (5, 8)], [(1, 1), (1, 4), (2, 3), (5, 8), (9, 7), (42, 21)]
  ),
)
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


def test_mean_and_scale_are_of_each_image():
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (5, 20, 24, 2), np.uint8)
  images[1] //= 16
  images[2] = 87  # Blank.
  images[3] = 0
  images[4, ..., 1] = 255
  mean, scale = jax.jit(convolutions.mean_and_scale)(images)
  assert mean.shape == scale.shape == (5, 1, 1, 1)
  assert mean.dtype == scale.dtype == jnp.float32
  pixels = images.astype(np.float64)
  np.testing.assert_allclose(
    mean[:, 0, 0, 0], pixels.mean((1, 2, 3)), rtol=1e-5
  )
  np.testing.assert_allclose(
    scale[:, 0, 0, 0],
    (pixels.var((1, 2, 3)) + 1) ** -0.5,
    rtol=1e-2,  # A difference of large squares, in float32.
  )
