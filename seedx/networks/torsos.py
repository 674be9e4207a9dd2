"""Torsos, which map observations to feature vectors."""

from collections.abc import Callable, Sequence
from typing import Any

import dm_env.specs
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types
from seedx.networks import convolutions

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
  "tanh": nn.tanh,
  "relu": nn.relu,
}


class MLP(nn.Module):
  """Dense layers, each followed by an activation.

  Attributes:
    sizes: number of units of each layer.
    activation: key of `ACTIVATIONS`.
    layer_norm: whether each activation follows a layer normalization.
  """

  sizes: Sequence[int]
  dtype: Any = jnp.float32
  activation: str = "tanh"
  layer_norm: bool = False

  @nn.compact
  def __call__(self, features: jax.Array) -> jax.Array:
    """Maps `[B, F]` to `[B, sizes[-1]]`; returns `[B, F]` without sizes."""
    for size in self.sizes:
      features = dense(size, self.dtype)(features)
      features = activated(features, self.activation, self.layer_norm)
    return features


class NatureCNN(nn.Module):
  """The convolutional network of DQN, on standardized images.

  Mnih et al. 2015, https://doi.org/10.1038/nature14236, "Model architecture".
  Each image is normalized to mean 0 and variance 1, not divided by 255, so that
  small objects stand out from the background.

  Attributes:
    size: number of units of the last dense layer.
  """

  size: int = 512
  dtype: Any = jnp.float32
  layer_norm: bool = False

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps uint8 `[B, C, H, W]` in 0..255 to `[B, size]`."""
    pixels = jnp.moveaxis(images, 1, -1)
    features = convolutions.standardize(pixels, self.dtype)
    for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
      conv = convolutions.Conv(channels, kernel, stride, self.dtype)
      features = activated(conv(features), "relu", self.layer_norm)
    features = features.reshape(features.shape[0], -1)
    features = dense(self.size, self.dtype)(features)
    return activated(features, "relu", self.layer_norm)


class SmallCNN(nn.Module):
  """A convolutional network for images that are too small for `NatureCNN`.

  An example is MiniGrid, with 7 by 7 symbols. Images are standardized.

  Attributes:
    channels: number of channels of each convolution.
    kernel: height and width of each kernel, in pixels; less for smaller images.
    stride: stride in pixels.
    size: number of units of the last dense layer.
  """

  channels: Sequence[int] = (32, 64)
  kernel: int = 3
  stride: int = 1
  size: int = 128
  dtype: Any = jnp.float32
  layer_norm: bool = False

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps uint8 `[B, C, H, W]` in 0..255 to `[B, size]`."""
    pixels = jnp.moveaxis(images, 1, -1)
    features = convolutions.standardize(pixels, self.dtype)
    for channels in self.channels:
      kernel = min(self.kernel, *features.shape[1:3])
      conv = convolutions.Conv(channels, kernel, self.stride, self.dtype)
      features = activated(conv(features), "relu", self.layer_norm)
    features = features.reshape(features.shape[0], -1)
    features = dense(self.size, self.dtype)(features)
    return activated(features, "relu", self.layer_norm)


class ImpalaResNet(nn.Module):
  """The deep residual network of IMPALA, on standardized images.

  Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, figure 3, right: three
  sections, each a convolution, max pooling to half the size, and two residual
  blocks.

  Attributes:
    channels: number of channels of each section.
    size: number of units of the last dense layer.
  """

  channels: Sequence[int] = (16, 32, 32)
  size: int = 256
  dtype: Any = jnp.float32
  layer_norm: bool = False

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps uint8 `[B, C, H, W]` in 0..255 to `[B, size]`."""
    pixels = jnp.moveaxis(images, 1, -1)
    features = convolutions.standardize(pixels, self.dtype)
    for channels in self.channels:
      features = self._conv(channels)(features)
      features = nn.max_pool(features, (3, 3), strides=(2, 2), padding="SAME")
      for _ in range(2):
        block = self._conv(channels)(self._relu(features))
        features = features + self._conv(channels)(self._relu(block))
    features = self._relu(features).reshape(features.shape[0], -1)
    return self._relu(dense(self.size, self.dtype)(features))

  def _relu(self, features: jax.Array) -> jax.Array:
    return activated(features, "relu", self.layer_norm)

  def _conv(self, channels: int) -> nn.Conv:
    # On CPUs, XLA's convolution is fast enough if it has no stride.
    return nn.Conv(
      channels,
      (3, 3),
      dtype=self.dtype,
      kernel_init=nn.initializers.orthogonal(2.0**0.5),
    )


def strided_cnn(**options: Any) -> SmallCNN:
  """Returns a network for images with sides of 16 to 35 pixels.

  The channels are those of Mnih et al. 2013, https://arxiv.org/abs/1312.5602.
  An image of 32 pixels costs less than one of 36 pixels in `NatureCNN`: about
  half of its CPU time with the gradient, in batches of 128.
  """
  return SmallCNN(channels=(16, 32), stride=2, **options)


def minatar_cnn(**options: Any) -> SmallCNN:
  """Returns the network of MinAtar's experiments, with one convolution.

  Young and Tian 2019, https://arxiv.org/abs/1903.03176: 16 channels and 128
  units, as in the `QNetwork` of their `examples/dqn.py`. A step costs a sixth
  of a step of `SmallCNN`.
  """
  return SmallCNN(channels=(16,), **options)


class BoardNetwork(nn.Module):
  """The residual network of AlphaZero, for an observation with one board.

  Silver et al. 2018, https://doi.org/10.1126/science.aar6404, "Representation"
  and "Architecture", with layer instead of batch normalization, so that a
  position's value does not depend on its batch.

  Attributes:
    blocks: number of residual blocks, of two convolutions each.
    channels: channels of each convolution.
    size: number of units of the last dense layer.
  """

  blocks: int
  channels: int = 64
  dtype: Any = jnp.float32
  size: int = 128

  @nn.compact
  def __call__(self, observation: types.Tree) -> jax.Array:
    """Maps a nest with one leaf, `[B, C, H, W]`, to `[B, size]`."""
    (board,) = jax.tree.leaves(observation)
    features = jnp.moveaxis(board, 1, -1).astype(self.dtype)
    features = self._conv()(_padded(features))
    for _ in range(self.blocks):
      block = self._conv()(_padded(self._activated(features)))
      features += self._conv()(_padded(self._activated(block)))
    features = self._activated(features).reshape(len(board), -1)
    return nn.relu(dense(self.size, self.dtype)(features))

  def _activated(self, features: jax.Array) -> jax.Array:
    return nn.relu(nn.LayerNorm(dtype=self.dtype)(features))

  def _conv(self) -> convolutions.Conv:
    return convolutions.Conv(self.channels, 3, 1, self.dtype)


IMAGE_TORSOS: dict[str, Callable[..., nn.Module]] = {
  "nature": NatureCNN,
  "impala": ImpalaResNet,
  "minatar": minatar_cnn,
}

# Height and width of the smallest images of NatureCNN and of strided_cnn.
_NATURE_PIXELS, _STRIDED_PIXELS = 36, 16


class Torso(nn.Module):
  """A torso for nests of images, discrete values and vectors.

  Each image (see `types.is_image`) has an image network, which sees its pixels
  from 0 to 255. All other parts share one `MLP`: choices as one-hot vectors,
  bytes divided by 255, and the rest flattened. The features are concatenated.

  Attributes:
    observation: leaves of the observation's nest of specs.
    sizes: number of units of each layer of the MLP.
    image_torso: key of `IMAGE_TORSOS`. `strided_cnn`, or `SmallCNN`, replaces
      `NatureCNN` for images that are too small for it.
    activation: key of `ACTIVATIONS`, for the MLP.
    layer_norm: whether each activation follows a layer normalization.
  """

  observation: tuple[dm_env.specs.Array, ...]
  sizes: Sequence[int]
  image_torso: str = "nature"
  dtype: Any = jnp.float32
  activation: str = "tanh"
  layer_norm: bool = False

  @nn.compact
  def __call__(self, observation: types.Tree) -> jax.Array:
    """Maps a nest of `[B, ...]` to `[B, F]`."""
    features, vectors = [], []
    for spec, leaf in zip(
      self.observation, jax.tree.leaves(observation), strict=True
    ):
      if types.is_image(spec):
        torso, side = IMAGE_TORSOS[self.image_torso], min(spec.shape[1:])
        if torso is NatureCNN and side < _NATURE_PIXELS:
          torso = strided_cnn if side >= _STRIDED_PIXELS else SmallCNN
        network = torso(dtype=self.dtype, layer_norm=self.layer_norm)
        features.append(network(_in_bytes(spec, leaf)))
      elif isinstance(spec, dm_env.specs.DiscreteArray):
        vectors.append(jax.nn.one_hot(leaf, spec.num_values, dtype=self.dtype))
      elif isinstance(spec, types.MultiDiscreteArray):
        vectors.append(_one_hots(spec, leaf).astype(self.dtype))
      else:
        vector = leaf.reshape(leaf.shape[0], -1).astype(self.dtype)
        vectors.append(vector / 255 if spec.dtype == np.uint8 else vector)
    if vectors:
      joined = jnp.concatenate(vectors, axis=-1)
      mlp = MLP(self.sizes, self.dtype, self.activation, self.layer_norm)
      features.append(mlp(joined))
    return jnp.concatenate(features, axis=-1)


def _one_hots(spec: types.MultiDiscreteArray, leaf: jax.Array) -> jax.Array:
  """Returns the joined one-hot vectors of an array of choices, `[B, F]`."""
  num_values = spec.num_values.ravel()
  values = np.concatenate([np.arange(n) for n in num_values])
  choices = leaf.reshape(leaf.shape[0], -1)
  return choices[:, np.repeat(np.arange(len(num_values)), num_values)] == values


def _padded(board: jax.Array) -> jax.Array:
  """Adds a border of zeros to boards `[B, H, W, C]`."""
  return jnp.pad(board, ((0, 0), (1, 1), (1, 1), (0, 0)))


def _in_bytes(spec: dm_env.specs.Array, image: jax.Array) -> jax.Array:
  """Scales the pixels of an image to those of bytes, from 0 to 255."""
  if not isinstance(spec, types.ImageArray):
    return image
  low, high = float(spec.minimum), float(spec.maximum)
  return (image.astype(jnp.float32) - low) * (255 / (high - low))


def activated(features: jax.Array, name: str, layer_norm: bool) -> jax.Array:
  """Applies a function of `ACTIVATIONS`, perhaps to normalized features.

  Ba et al. 2016, https://arxiv.org/abs/1607.06450; over the last axis.
  """
  if layer_norm:
    features = nn.LayerNorm(dtype=features.dtype)(features)
  return ACTIVATIONS[name](features)


def dense(size: int, dtype: Any) -> nn.Dense:
  """Returns a dense layer for an activation, with an orthogonal kernel."""
  return nn.Dense(
    size, dtype=dtype, kernel_init=nn.initializers.orthogonal(2.0**0.5)
  )
