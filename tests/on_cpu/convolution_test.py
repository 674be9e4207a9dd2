"""Convolutions by matrix products on CPU, compared with XLA's convolution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import networks
from seedx.on_cpu import convolution
from tests.networks import helpers


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
  [(4, 2, 9, 13), (3, 2, 11, 8)],
)
def test_products_equal_the_convolution_of_xla(kernel, stride, height, width):
  rng = np.random.default_rng(0)
  images = rng.normal(size=(2, height, width, 3)).astype(np.float32)
  weights = rng.normal(size=(kernel, kernel, 3, 4)).astype(np.float32)
  rows, columns = ((n - kernel) // stride + 1 for n in (height, width))
  probe = rng.normal(size=(2, rows, columns, 4)).astype(np.float32)

  functions = [convolve, convolution.by_convolution, convolution.by_patches]
  if kernel % stride == 0:
    functions.append(convolution.by_blocks)

  @jax.jit
  def evaluate(images, weights):
    results = []
    for function in functions:
      outputs, pullback = jax.vjp(
        lambda x, y, function=function: function(x, y, stride), images, weights
      )
      results.append((outputs, *pullback(probe)))
    return results

  expected, *others = evaluate(images, weights)
  assert expected[0].shape == probe.shape
  for other in others:
    for actual, exact in zip(other, expected, strict=True):
      np.testing.assert_allclose(actual, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  ("kernel", "dtype"),  # Size 3 uses patches, size 4 blocks.
  [(3, "float32"), (4, "bfloat16")],
)
def test_conv_is_the_same_on_cpus_and_accelerators(kernel, dtype, monkeypatch):
  conv = networks.Conv(4, kernel, stride=2, dtype=dtype)
  rng = np.random.default_rng(0)
  images = rng.normal(size=(2, 9, 11, 3)).astype(np.float32)
  params = helpers.random_params(conv, images)

  def loss(params):
    outputs = conv.apply(params, images)
    return jnp.sum(jnp.square(outputs.astype(jnp.float32))), outputs

  def evaluate(params):
    return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

  (_, outputs), gradients = jax.device_get(evaluate(params))
  monkeypatch.setattr(
    jax.lax, "platform_dependent", lambda *args, cpu, default: default(*args)
  )
  (_, plain), plain_gradients = jax.device_get(evaluate(params))

  tolerance = 1e-5 if dtype == "float32" else 3e-2
  weights, bias = params["params"]["kernel"], params["params"]["bias"]
  expected = jax.jit(convolve, static_argnums=2)(images, weights, 2) + bias
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


def test_cpus_use_products_and_accelerators_the_convolution():
  images = np.zeros((2, 9, 9, 3), np.float32)
  for kernel in (3, 4):
    conv = networks.Conv(4, kernel, stride=2)
    params = helpers.random_params(conv, images)
    traced = jax.jit(conv.apply).trace(params, images)
    for platform, has_convolution in (("cpu", False), ("cuda", True)):
      text = traced.lower(lowering_platforms=(platform,)).as_text()
      assert ("stablehlo.convolution" in text) == has_convolution
      assert ("stablehlo.dot_general" in text) != has_convolution


def test_blocks_are_not_copied_for_each_patch():
  # No array of the forward and backward pass is larger than the products.
  images, kernel = np.zeros((1, 84, 84, 4)), np.zeros((8, 8, 4, 32))

  def loss(images, kernel):
    return jnp.sum(convolution.by_blocks(images, kernel, 4))

  program = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(images, kernel)
  largest = max(
    x.aval.size for equation in program.eqns for x in equation.outvars
  )
  assert largest == 21 * 21 * 4 * 32
