"""A convolution that is fast on CPUs as well as on accelerators."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedx import types


class Conv(nn.Module):
  """A strided two-dimensional convolution without padding.

  On GPU and TPU it is `lax.conv_general_dilated`. On CPU, where XLA's strided
  convolutions use a single core, it is a matrix product, see `by_blocks` and
  `by_patches`. The choice is made when a program is compiled for a platform;
  the parameters are the same.

  Attributes:
    features: channels of the output.
    kernel: height and width of the kernel, in pixels.
    stride: pixels from one patch to the next.
    dtype: of the computation; parameters are float32.
  """

  features: int
  kernel: int
  stride: int
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps images `[B, H, W, C]` of any dtype to `[B, H', W', features]`.

    Raises:
      types.ConfigError: the images are smaller than the kernel.
    """
    if min(images.shape[1:3]) < self.kernel:
      raise types.ConfigError(
        f"expected images of at least {self.kernel}x{self.kernel} pixels for a"
        f" convolution with a kernel of that size, found {images.shape[1]}x"
        f"{images.shape[2]}: use larger observations or another network"
      )
    kernel = self.param(
      "kernel",
      nn.initializers.orthogonal(2.0**0.5),
      (self.kernel, self.kernel, images.shape[-1], self.features),
    )
    bias = self.param("bias", nn.initializers.zeros, (self.features,))
    in_blocks = self.stride > 1 and self.kernel % self.stride == 0
    on_cpu = by_blocks if in_blocks else by_patches
    outputs = jax.lax.platform_dependent(
      images.astype(self.dtype),
      kernel.astype(self.dtype),
      cpu=lambda images, kernel: on_cpu(images, kernel, self.stride),
      default=lambda images, kernel: by_convolution(
        images, kernel, self.stride
      ),
    )
    return (outputs + bias).astype(self.dtype)


def by_convolution(
  images: jax.Array, kernel: jax.Array, stride: int
) -> jax.Array:
  """The convolution of XLA, fast on accelerators.

  Args:
    images: `[B, H, W, C]`.
    kernel: `[K, K, C, F]` of the same dtype.
    stride: pixels from one patch to the next.

  Returns:
    `[B, H', W', F]`.
  """
  return jax.lax.conv_general_dilated(
    images,
    kernel,
    window_strides=(stride, stride),
    padding="VALID",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )


def by_patches(images: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
  """The same as the product of all patches with the kernel.

  Args:
    images: as of `by_convolution`.
    kernel: likewise.
    stride: likewise.
  """
  size, features = kernel.shape[0], kernel.shape[-1]
  rows, columns = _output_size(images, size, stride)
  patches = jnp.concatenate(
    [
      images[
        :,
        i : i + (rows - 1) * stride + 1 : stride,
        j : j + (columns - 1) * stride + 1 : stride,
      ]
      for i in range(size)
      for j in range(size)
    ],
    axis=-1,
  )
  return patches @ kernel.reshape(-1, features)


def by_blocks(images: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
  """The same as the product of blocks of pixels with parts of the kernel.

  Pixels are gathered into blocks of `stride` by `stride`. A patch is then a
  few blocks, K / stride in height and in width. Each block is multiplied with
  all parts of the kernel that it can meet, and each output is the sum of the
  products of its blocks. No block is copied for several patches: with the
  Nature CNN this takes three quarters of the time of `by_patches`.

  Args:
    images: as of `by_convolution`.
    kernel: likewise; the stride divides K.
    stride: likewise.
  """
  batch_size, _, _, channels = images.shape
  size, features = kernel.shape[0], kernel.shape[-1]
  parts = size // stride
  rows, columns = _output_size(images, size, stride)
  height, width = rows + parts - 1, columns + parts - 1
  blocks = images[:, : height * stride, : width * stride].reshape(
    batch_size, height, stride, width, stride, channels
  )
  blocks = blocks.transpose(0, 1, 3, 2, 4, 5)
  kernel = kernel.reshape(parts, stride, parts, stride, channels, features)
  kernel = kernel.transpose(1, 3, 4, 0, 2, 5)
  products = jnp.matmul(
    blocks.reshape(batch_size, height, width, -1),
    kernel.reshape(-1, parts * parts * features),
  )
  return _sum_of_patches(parts, products)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sum_of_patches(parts: int, products: jax.Array) -> jax.Array:
  """Sums the products of each patch's blocks.

  Args:
    parts: P, blocks of a patch in height and in width.
    products: `[B, H' + P - 1, W' + P - 1, P * P * F]`.

  Returns:
    `[B, H', W', F]`.
  """
  _, height, width, _ = products.shape
  rows, columns = height - parts + 1, width - parts + 1
  by_part = jnp.split(products, parts * parts, axis=-1)
  summed = [
    by_part[i * parts + j][:, i : i + rows, j : j + columns]
    for i in range(parts)
    for j in range(parts)
  ]
  return functools.reduce(jnp.add, summed)


def _sum_of_patches_forward(
  parts: int, products: jax.Array
) -> tuple[jax.Array, None]:
  return _sum_of_patches(parts, products), None


def _sum_of_patches_backward(
  parts: int, _: None, gradient: jax.Array
) -> tuple[jax.Array]:
  """Writes each product's gradient once; JAX's own adds padded arrays."""
  more = parts - 1
  padded = [
    jnp.pad(gradient, ((0, 0), (i, more - i), (j, more - j), (0, 0)))
    for i in range(parts)
    for j in range(parts)
  ]
  return (jnp.concatenate(padded, axis=-1),)


_sum_of_patches.defvjp(_sum_of_patches_forward, _sum_of_patches_backward)


def standardize(images: jax.Array, dtype: Any = jnp.float32) -> jax.Array:
  """Normalizes each image to mean 0 and variance 1.

  Args:
    images: `[B, H, W, C]` of any dtype.
    dtype: of the result.

  Returns:
    The same shape; an almost blank image keeps a variance below 1.
  """
  pixels, axes = images.astype(jnp.float32), (1, 2, 3)
  mean = pixels.mean(axes, keepdims=True)
  square = jnp.square(pixels).mean(axes, keepdims=True)
  scale = jax.lax.rsqrt(square - jnp.square(mean) + 1.0)
  return ((pixels - mean) * scale).astype(dtype)


def _output_size(
  images: jax.Array, kernel: int, stride: int
) -> tuple[int, int]:
  """Height and width of a convolution's output."""
  _, height, width, _ = images.shape
  return (height - kernel) // stride + 1, (width - kernel) // stride + 1
