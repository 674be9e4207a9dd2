"""Torsos: features of vectors and images."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import networks, types
from seedx.networks import convolutions, torsos
from tests import conftest
from tests.networks import helpers


@pytest.mark.parametrize(
  ("spec", "image"),
  [
    (specs.Array((4, 84, 84), np.uint8), True),
    (specs.BoundedArray((1, 36, 36), np.uint8, 0, 255), True),
    (specs.Array((4, 84, 84), np.float32), False),
    (specs.Array((128,), np.uint8), False),
    (types.ImageArray((4, 84, 84), np.float32, 0, 1), True),
  ],
)
def test_an_image_is_uint8_of_rank_3_or_has_the_spec_of_one(spec, image):
  assert types.is_image(spec) == image


def test_images_of_all_dtypes_have_the_features_of_bytes():
  image = np.random.default_rng(0).integers(0, 256, (2, 1, 9, 9))
  shape, image = image.shape[1:], image.astype(np.uint8)
  specs_and_images = [(specs.Array(shape, np.uint8), image)]
  for dtype, minimum, maximum in (
    (np.float32, 0, 1),
    (np.float32, -1, 1),
    (np.uint16, 0, 255 * 257),
    (np.int32, 0, 255),
  ):
    spec = types.ImageArray(shape, dtype, minimum, maximum)
    scaled = image * ((maximum - minimum) / 255) + minimum
    specs_and_images.append((spec, scaled.astype(dtype)))

  @jax.jit
  def features_of(images):
    torsos = [networks.Torso((x,), sizes=()) for x, _ in specs_and_images]
    params = torsos[0].init(jax.random.key(0), images[0])
    return [x.apply(params, y) for x, y in zip(torsos, images, strict=True)]

  expected, *features = features_of([x for _, x in specs_and_images])
  assert np.std(expected) > 0.01
  for x in features:
    np.testing.assert_allclose(x, expected, rtol=1e-3, atol=1e-4)


def test_discrete_observations_are_one_hot_and_others_flat():
  # Without layers in the MLP, the features are its inputs.
  torso = networks.Torso(
    (
      specs.DiscreteArray(3),
      types.MultiDiscreteArray(np.array([[2], [3]]), np.int32),
      specs.Array((2, 2), np.float32),
    ),
    sizes=(),
  )
  observation = (
    np.array([2, 0]),
    np.array([[[0], [2]], [[1], [0]]]),
    np.arange(8, dtype=np.float32).reshape(2, 2, 2),
  )
  np.testing.assert_array_equal(
    jax.jit(torso.apply)({}, observation),
    [
      [0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 2, 3],
      [1, 0, 0, 0, 1, 1, 0, 0, 4, 5, 6, 7],
    ],
  )


@pytest.mark.parametrize(
  ("module", "pixels"),
  [
    # 84 -> 20 -> 9 -> 7 pixels a side, 64 channels, as in Mnih et al. 2015.
    (networks.NatureCNN, 7 * 7 * 64),
    # 84 -> 42 -> 21 -> 11 pixels a side, 32 channels.
    (networks.ImpalaResNet, 11 * 11 * 32),
  ],
)
def test_features_of_atari_frames_have_the_papers_sizes(module, pixels):
  network = module(size=8, dtype=jnp.bfloat16)
  images = jax.ShapeDtypeStruct((2, 4, 84, 84), np.uint8)
  output, params = jax.eval_shape(
    network.init_with_output, jax.random.key(0), images
  )
  assert (output.shape, output.dtype) == ((2, 8), jnp.bfloat16)
  assert params["params"]["Dense_0"]["kernel"].shape == (pixels, 8)
  assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype("float32")}


@pytest.mark.slow
def test_impala_is_three_sections_of_two_residual_blocks():
  images = np.random.default_rng(0).integers(0, 256, (2, 3, 19, 24), np.uint8)
  network = networks.ImpalaResNet((4, 6, 6), size=8)
  params = helpers.random_params(network, images)
  layers = params["params"]
  convs = iter([layers[f"Conv_{i}"] for i in range(15)])

  def conv(features):
    layer = next(convs)
    return layer["bias"] + jax.lax.conv_general_dilated(
      features,
      layer["kernel"],
      (1, 1),
      "SAME",
      dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )

  pixels = np.moveaxis(images, 1, -1).astype(np.float64)
  mean = pixels.mean((1, 2, 3), keepdims=True)
  variance = pixels.var((1, 2, 3), keepdims=True)
  features = ((pixels - mean) / np.sqrt(variance + 1)).astype(np.float32)
  for _ in range(3):
    features = nn.max_pool(conv(features), (3, 3), (2, 2), "SAME")
    for _ in range(2):
      features = features + conv(nn.relu(conv(nn.relu(features))))
  features = nn.relu(features).reshape(2, -1)
  dense = layers["Dense_0"]
  expected = nn.relu(features @ dense["kernel"] + dense["bias"])

  actual = jax.jit(network.apply)(params, images)
  assert np.std(expected) > 0.1
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


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


def test_brightness_does_not_change_features():
  rng = np.random.default_rng(0)
  images = rng.integers(0, 100, (3, 2, 36, 36), np.uint8)
  torso = networks.Torso((specs.Array(images.shape[1:], np.uint8),), ())
  params = helpers.random_params(torso, images)
  apply = jax.jit(torso.apply)
  dark, bright = (
    np.asarray(apply(params, x)) for x in (images, images + np.uint8(150))
  )
  assert np.std(dark, axis=0).max() > 0.05  # Different images differ.
  np.testing.assert_allclose(bright, dark, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
  ("shape", "module"),
  [
    ((3, 3, 3), "SmallCNN"),
    ((12, 7, 7), "SmallCNN"),
    ((4, 16, 16), "SmallCNN"),
    ((4, 35, 84), "SmallCNN"),
    ((4, 36, 36), "NatureCNN"),
  ],
)
def test_small_images_get_a_small_network(shape, module):
  torso = networks.Torso((specs.Array(shape, np.uint8),), ())
  images = jax.ShapeDtypeStruct((2, *shape), np.uint8)
  output, params = jax.eval_shape(
    torso.init_with_output, jax.random.key(0), images
  )
  assert list(params["params"]) == [f"{module}_0"]
  assert output.shape == (2, 128 if module == "SmallCNN" else 512)


def test_the_cost_of_an_image_grows_with_its_pixels():
  costs = []
  for side in (16, 24, 32, 36, 48, 64, 84):
    shape = 4 if side == 84 else 3, side, side
    torso = networks.Torso((specs.Array(shape, np.uint8),), ())
    image = jax.ShapeDtypeStruct((1, *shape), np.uint8)
    params = jax.eval_shape(torso.init, jax.random.key(0), image)
    costs.append(jax.jit(torso.apply).lower(params, image).cost_analysis())
  assert sorted(costs, key=lambda x: x["flops"]) == costs


def test_minatars_network_has_one_convolution_of_16_channels():
  torso = torsos.IMAGE_TORSOS["minatar"]()
  board = np.zeros((2, 4, 10, 10), np.uint8)
  output, variables = jax.eval_shape(
    torso.init_with_output, jax.random.key(0), board
  )
  assert output.shape == (2, 128)
  shapes = sorted(x.shape for x in jax.tree.leaves(variables))
  assert shapes == [(3, 3, 4, 16), (16,), (128,), (8 * 8 * 16, 128)]


def test_the_small_network_distinguishes_symbols_and_their_places():
  torso = networks.Torso((specs.Array((3, 7, 7), np.uint8),), ())
  images = np.full((3, 3, 7, 7), 2, np.uint8)
  images[1, 0, 3, 3], images[2, 0, 3, 4] = 8, 8
  params = helpers.random_params(torso, images)
  features = np.asarray(jax.jit(torso.apply)(params, images))
  for a, b in ((0, 1), (0, 2), (1, 2)):
    assert np.abs(features[a] - features[b]).max() > 0.05


def test_bytes_that_are_not_an_image_are_divided_by_255():
  parts = tuple(specs.Array((2,), x) for x in (np.uint8, np.float32))
  torso = networks.Torso(parts, (1,))
  leaves = (np.array([[0, 255]], np.uint8), np.array([[0, 255]], np.float32))
  params = helpers.random_params(torso, leaves)
  values = {(4, 1): 0.001, (1,): 0.0}
  params = jax.tree.map(lambda x: np.full_like(x, values[x.shape]), params)
  np.testing.assert_allclose(
    jax.jit(torso.apply)(params, leaves), [[np.tanh(0.256)]], rtol=1e-5
  )


BOARD_NETWORK = networks.BoardNetwork(blocks=1, channels=4, size=6)


@functools.cache
def board_network():
  """Returns the network as a function, and random parameters."""
  observation = {"board": np.zeros((2, 2, 6, 7), np.int8)}
  params = helpers.random_params(BOARD_NETWORK, observation)
  return jax.jit(BOARD_NETWORK.apply), params


def random_boards(size):
  rng = np.random.default_rng(0)
  return rng.integers(0, 2, (size, 2, 6, 7)).astype(np.int8)


def test_the_board_network_is_a_tower_of_residual_blocks():
  apply, params = board_network()
  board = random_boards(3)
  layers = params["params"]

  def conv(features, k):
    return layers[f"Conv_{k}"]["bias"] + jax.lax.conv_general_dilated(
      features,
      layers[f"Conv_{k}"]["kernel"],
      (1, 1),
      "SAME",
      dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )

  def activated(features, k):
    mean = features.mean(-1, keepdims=True)
    variance = features.var(-1, keepdims=True)
    normal = (features - mean) / np.sqrt(variance + 1e-6)
    layer = layers[f"LayerNorm_{k}"]
    return np.maximum(normal * layer["scale"] + layer["bias"], 0)

  features = conv(np.moveaxis(board, 1, -1).astype(np.float32), 0)
  block = conv(activated(features, 0), 1)
  features = features + conv(activated(block, 1), 2)
  dense = layers["Dense_0"]
  flat = activated(features, 2).reshape(3, -1)
  expected = np.maximum(flat @ dense["kernel"] + dense["bias"], 0)
  actual = apply(params, {"board": board})
  assert (actual.shape, actual.dtype) == ((3, 6), np.float32)
  assert np.std(expected) > 0.1
  np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)
  # Boards of a batch do not affect each other.
  again = apply(params, {"board": np.repeat(board[:1], 3, axis=0)})
  np.testing.assert_allclose(again[2], actual[0], rtol=1e-5, atol=1e-6)


def test_the_board_network_has_finite_gradients_and_float32_parameters():
  network = BOARD_NETWORK.clone(dtype=jnp.bfloat16)
  board = {"board": random_boards(2)}
  board["board"][0] = 0  # An empty board has equal channels.
  _, params = board_network()
  output, gradients = jax.jit(
    jax.value_and_grad(lambda x: network.apply(x, board).sum())
  )(params)
  assert output.dtype == jnp.bfloat16
  leaves = jax.tree.leaves(gradients)
  assert {x.dtype for x in leaves} == {np.dtype(np.float32)}
  assert all(np.isfinite(x).all() and x.any() for x in leaves)


def test_the_mlp_of_vectors_has_the_activation():
  features = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
  functions = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0)}
  assert set(functions) == set(networks.ACTIVATIONS)
  for activation, function in functions.items():
    torso = networks.Torso(
      (specs.Array((4,), np.float32),), (6, 3), activation=activation
    )
    params = helpers.random_params(torso, features)
    expected = features
    for i in range(2):
      layer = params["params"]["MLP_0"][f"Dense_{i}"]
      expected = function(expected @ layer["kernel"] + layer["bias"])
    output = jax.jit(torso.apply)(params, features)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-6)


# Layer normalization

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 1, 36, 36), np.uint8)
ACTION = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
SMALL_CNN = functools.partial(networks.SmallCNN, (4,), size=8)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_layers_of_an_mlp_are_normalized_before_their_activation(activation):
  mlp = networks.MLP((6, 5), activation=activation, layer_norm=True)
  params = helpers.random_params(mlp, ACTION)
  hidden, layers = ACTION.astype(float), params["params"]
  function = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}[activation]
  for i in range(2):
    dense, norm = layers[f"Dense_{i}"], layers[f"LayerNorm_{i}"]
    hidden = hidden @ dense["kernel"] + dense["bias"]
    hidden = hidden - hidden.mean(axis=1, keepdims=True)
    hidden /= np.sqrt(np.square(hidden).mean(axis=1, keepdims=True) + 1e-6)
    hidden = function(hidden * norm["scale"] + norm["bias"])
  np.testing.assert_allclose(
    jax.jit(mlp.apply)(params, ACTION), hidden, rtol=1e-3, atol=1e-4
  )


@pytest.mark.parametrize(
  ("module", "inputs"),
  conftest.slow_but(
    [(SMALL_CNN, (IMAGES,))],
    [
      (SMALL_CNN, (IMAGES,)),
      (functools.partial(networks.NatureCNN, size=8), (IMAGES,)),
      # Nothing is normalized between two sections.
      (functools.partial(networks.ImpalaResNet, (4,), size=8), (IMAGES,)),
      (functools.partial(networks.Critic, (8, 7)), (ACTION, ACTION)),
    ],
  ),
)
def test_larger_kernels_do_not_change_normalized_features(module, inputs):
  for layer_norm in (True, False):
    network = module(layer_norm=layer_norm)
    params = jax.jit(network.init)(jax.random.key(0), *inputs)

    def scaled(path, leaf):
      name = jax.tree_util.keystr(path)
      # The last layer of a critic has no activation.
      return leaf * (3.0 if "kernel" in name and "Dense_2" not in name else 1.0)

    larger = jax.tree_util.tree_map_with_path(scaled, params)
    one, two = (jax.jit(network.apply)(x, *inputs) for x in (params, larger))
    assert np.std(one) > 0.01
    is_equal = np.allclose(one, two, rtol=1e-3, atol=1e-3)
    assert is_equal == layer_norm
