"""Strided convolutions of images, computed as matrix products.

On CPU this saves 95% of the time of `anakin_ppo --env seedx:Breakout-MinAtar`,
because XLA's own convolution is slow within a loop. Nothing is saved in
`seed_vtrace --env Pong-v5`, which learns outside of a loop. Other platforms use
XLA's convolution. The choice is made when a program is compiled.
"""

import functools

import jax
import jax.numpy as jnp


def strided(images: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
  """Convolves images with a kernel, without padding.

  Args:
    images: `[B, H, W, C]`.
    kernel: `[K, K, C, F]` of the same dtype.
    stride: stride in pixels.

  Returns:
    `[B, H', W', F]`.
  """
  in_blocks = stride > 1 and kernel.shape[0] % stride == 0
  on_cpu = by_blocks if in_blocks else by_patches
  return jax.lax.platform_dependent(
    images,
    kernel,
    cpu=functools.partial(on_cpu, stride=stride),
    default=functools.partial(by_convolution, stride=stride),
  )


def by_convolution(
  images: jax.Array, kernel: jax.Array, stride: int
) -> jax.Array:
  """Computes `strided` with XLA's convolution."""
  return jax.lax.conv_general_dilated(
    images,
    kernel,
    window_strides=(stride, stride),
    padding="VALID",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )


def by_patches(images: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
  """Computes `strided` as the product of all patches with the kernel."""
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
  """Computes `strided` as the product of blocks with parts of the kernel.

  The stride must divide K. A block is `stride` by `stride` pixels, so a patch
  is K / stride by K / stride blocks. Each block is multiplied with all parts of
  the kernel, and an output is the sum of the products of its patch's blocks.
  Unlike patches, blocks do not overlap, so no pixel is copied several times.
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
  by_part = jnp.split(products, parts * parts, axis=-1)
  return functools.reduce(
    jnp.add,
    (
      by_part[i * parts + j][:, i : i + rows, j : j + columns]
      for i in range(parts)
      for j in range(parts)
    ),
  )


def _output_size(
  images: jax.Array, kernel: int, stride: int
) -> tuple[int, int]:
  _, height, width, _ = images.shape
  return (height - kernel) // stride + 1, (width - kernel) // stride + 1
