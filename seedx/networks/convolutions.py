"""A convolution that is fast on CPUs as well as on accelerators."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedx import types


class Conv(nn.Module):
  """A strided two-dimensional convolution without padding.

  On GPU and TPU it is `lax.conv_general_dilated`. On CPU, where XLA's strided
  convolutions use a single core, it cuts patches by slicing and multiplies them
  with the kernel in one matrix product: the Nature CNN learns about twice as
  fast. The choice is made when a program is compiled for a platform; the
  parameters are the same.

  Attributes:
    features: channels of the output.
    kernel: height and width of the kernel, in pixels.
    stride: pixels from one patch to the next.
    standardize: normalize each image to mean 0 and variance 1 first.
    dtype: of the computation; parameters are float32.
  """

  features: int
  kernel: int
  stride: int
  standardize: bool = False
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
    kernel = kernel.astype(self.dtype)
    bias = self.param("bias", nn.initializers.zeros, (self.features,))

    def by_patches(images: jax.Array, kernel: jax.Array) -> jax.Array:
      cut = patches(images, self.kernel, self.stride).astype(self.dtype)
      return cut @ in_patch_order(kernel, self.stride)

    def by_convolution(images: jax.Array, kernel: jax.Array) -> jax.Array:
      return jax.lax.conv_general_dilated(
        images.astype(self.dtype),
        kernel,
        window_strides=(self.stride, self.stride),
        padding="VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
      )

    outputs = jax.lax.platform_dependent(
      images, kernel, cpu=by_patches, default=by_convolution
    )
    if self.standardize:
      # Standardize the outputs instead of the images: patches stay bytes, which
      # takes less memory.
      mean, scale = mean_and_scale(images)
      offset = mean * kernel.astype(jnp.float32).sum(axis=(0, 1, 2))
      outputs = (outputs.astype(jnp.float32) - offset) * scale
    return (outputs + bias).astype(self.dtype)


def patches(images: jax.Array, kernel: int, stride: int) -> jax.Array:
  """Cuts images into the patches of a convolution without padding.

  If the stride divides the kernel, it first gathers pixels into blocks of
  `stride` by `stride`: a patch is then a few blocks instead of many pixels.

  Args:
    images: `[B, H, W, C]` of any dtype.
    kernel: height and width of a patch, in pixels.
    stride: pixels from one patch to the next.

  Returns:
    `[B, H', W', kernel * kernel * C]`; the last axis is in the order of
    `in_patch_order`.
  """
  block = _block_size(kernel, stride)
  batch_size, *size, channels = images.shape
  rows, columns = ((pixels - kernel) // stride + 1 for pixels in size)
  height, width = (
    ((n - 1) * stride + kernel) // block for n in (rows, columns)
  )
  blocks = images[:, : height * block, : width * block]
  blocks = blocks.reshape(batch_size, height, block, width, block, channels)
  blocks = blocks.transpose(0, 1, 3, 2, 4, 5)
  blocks = blocks.reshape(batch_size, height, width, -1)
  step = stride // block
  return jnp.concatenate(
    [
      blocks[
        :,
        i : i + (rows - 1) * step + 1 : step,
        j : j + (columns - 1) * step + 1 : step,
      ]
      for i in range(kernel // block)
      for j in range(kernel // block)
    ],
    axis=-1,
  )


def in_patch_order(kernel: jax.Array, stride: int) -> jax.Array:
  """A kernel `[K, K, C, F]` as a matrix `[K * K * C, F]`, for `patches`."""
  size, _, channels, features = kernel.shape
  block = _block_size(size, stride)
  count = size // block
  blocks = kernel.reshape(count, block, count, block, channels, features)
  return blocks.transpose(0, 2, 1, 3, 4, 5).reshape(-1, features)


def mean_and_scale(images: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Each image's mean and 1 / standard deviation, `[B, 1, 1, 1]` float32.

  Args:
    images: `[B, H, W, C]` of any dtype.
  """
  pixels, axes = images.astype(jnp.float32), (1, 2, 3)
  mean = pixels.mean(axes, keepdims=True)
  square = jnp.square(pixels).mean(axes, keepdims=True)
  # The 1.0 keeps the scale of almost blank images small.
  return mean, jax.lax.rsqrt(square - jnp.square(mean) + 1.0)


def max_pool_to_half(images: jax.Array) -> jax.Array:
  """Max pooling with a window of 3 by 3 pixels and a stride of 2.

  It takes the maximum of slices: on CPUs their gradient is faster than that of
  `lax.reduce_window`.

  Args:
    images: `[B, H, W, C]` of floats.

  Returns:
    `[B, ceil(H / 2), ceil(W / 2), C]`.
  """
  for axis in (1, 2):
    size = images.shape[axis]
    half = -(-size // 2)
    # Like TensorFlow's SAME: an odd amount of padding has more at the end.
    before = max((half - 1) * 2 + 3 - size, 0) // 2
    widths = [(0, 0)] * 4
    widths[axis] = (before, 2)
    padded = jnp.pad(images, widths, constant_values=-jnp.inf)
    windows = [
      jax.lax.slice_in_dim(padded, i, i + 2 * half - 1, 2, axis)
      for i in range(3)
    ]
    images = jnp.maximum(jnp.maximum(*windows[:2]), windows[2])
  return images


def _block_size(kernel: int, stride: int) -> int:
  return stride if kernel % stride == 0 else 1
