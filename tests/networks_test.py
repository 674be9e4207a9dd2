"""Networks: fast paths against plain ones, unrolls against their steps."""

import collections

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dm_env import specs

from seedx import networks, types
from seedx.networks import convolutions, torsos

FIRST, MID = int(dm_env.StepType.FIRST), int(dm_env.StepType.MID)


def random_params(module, *inputs):
  """Parameters of the right shapes, without compiling the initialisers."""
  shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)
  rng = np.random.default_rng(0)

  def values(shape):
    scale = np.prod(shape.shape[:-1]) ** -0.5 if len(shape.shape) > 1 else 0.1
    return (scale * rng.normal(size=shape.shape)).astype(shape.dtype)

  return jax.tree.map(values, shapes)


# Convolutions

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


@pytest.mark.parametrize(("kernel", "stride", "height", "width"), GEOMETRIES)
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
  params = random_params(conv, images)

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
  params = random_params(conv, images)
  traced = jax.jit(conv.apply).trace(params, images)
  for platform, convolutions_expected in (("cpu", False), ("cuda", True)):
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("stablehlo.convolution" in text) == convolutions_expected
    assert ("stablehlo.dot_general" in text) != convolutions_expected


# The frame stack


def stack_reference(frames, step_type, num_frames):
  """A deque for each environment, filled with zeros when an episode starts."""
  stacked = []
  for b in range(frames.shape[1]):
    blank = np.zeros_like(frames[0, b])
    past = collections.deque([blank] * num_frames, maxlen=num_frames)
    column = []
    for t in range(len(frames)):
      if step_type[t, b] == FIRST:
        past.extend([blank] * num_frames)
      past.append(frames[t, b])
      column.append(np.concatenate(past))
    stacked.append(np.stack(column))
  return np.stack(stacked, axis=1)


@pytest.mark.parametrize("num_frames", [1, 2, 4])
def test_stack_unrolled_is_step_by_step_is_a_deque(num_frames):
  rng = np.random.default_rng(num_frames)
  length, batch_size, frame_shape = 12, 6, (2, 3, 4)
  frames = rng.integers(1, 256, (length, batch_size, *frame_shape), np.uint8)
  resets = rng.random((length, batch_size)) < np.linspace(0, 0.5, batch_size)
  step_type = np.where(resets, FIRST, MID).astype(np.uint8)
  stack = networks.FrameStack(num_frames)
  unroll = jax.jit(stack.unroll)
  state = stack.initial_state(batch_size, frame_shape, jnp.uint8)
  expected = stack_reference(frames, step_type, num_frames)

  whole, last_state = unroll(frames, step_type, state)
  np.testing.assert_array_equal(whole, expected)
  assert whole.dtype == state.dtype == last_state.dtype == np.uint8
  assert last_state.shape == state.shape
  assert state.shape == (batch_size, 2 * (num_frames - 1), 3, 4)

  for t in range(length):
    row, state = unroll(frames[t : t + 1], step_type[t : t + 1], state)
    np.testing.assert_array_equal(row[0], expected[t])
  np.testing.assert_array_equal(state, last_state)


def test_stack_by_hand():
  # Frames 1 2 3 | 4 5 of one pixel, 4 is a new episode's first; 9 came before.
  frames = np.array([1, 2, 3, 4, 5], np.uint8).reshape(5, 1, 1, 1, 1)
  step_type = np.array([MID, MID, MID, FIRST, MID]).reshape(5, 1)
  state = np.array([0, 9], np.uint8).reshape(1, 2, 1, 1)
  stacked, state = networks.FrameStack(3).unroll(frames, step_type, state)
  assert stacked.reshape(5, 3).tolist() == [
    *([0, 9, 1], [9, 1, 2], [1, 2, 3]),
    *([0, 0, 4], [0, 4, 5]),
  ]
  assert state.reshape(2).tolist() == [4, 5]


# Torsos


@pytest.mark.parametrize(
  ("spec", "image"),
  [
    (specs.Array((4, 84, 84), np.uint8), True),
    (specs.BoundedArray((1, 36, 36), np.uint8, 0, 255), True),
    (specs.Array((4, 84, 84), np.float32), False),
    (specs.Array((128,), np.uint8), False),
  ],
)
def test_what_an_image_is(spec, image):
  assert torsos.is_image(spec) == image


def test_discrete_observations_are_one_hot_and_others_flat():
  # The MLP has no layer, so the features are what it would be given.
  torso = networks.Torso(
    (specs.DiscreteArray(3), specs.Array((2, 2), np.float32)), sizes=()
  )
  observation = (
    np.array([2, 0]),
    np.arange(8, dtype=np.float32).reshape(2, 2, 2),
  )
  np.testing.assert_array_equal(
    torso.apply({}, observation),
    [[0, 0, 1, 0, 1, 2, 3], [1, 0, 0, 4, 5, 6, 7]],
  )


def test_observation_of_another_structure_is_refused():
  torso = networks.Torso((specs.Array((3,), np.float32),), sizes=(4,))
  observation = {"a": np.zeros((2, 3)), "b": np.zeros((2, 3))}
  with pytest.raises(ValueError, match="zip"):
    torso.init(jax.random.key(0), observation)


# The actor-critic

OBSERVATIONS = {
  "vector": specs.Array((5,), np.float32),
  "matrix_of_integers": specs.Array((2, 3), np.int16),
  "discrete": specs.DiscreteArray(7),
  "image": specs.Array((2, 36, 37), np.uint8),
  "dict": {
    "camera": specs.Array((1, 36, 36), np.uint8),
    "goal": specs.DiscreteArray(4),
    "joints": specs.Array((3, 2), np.float64),
    "map": (specs.Array((2, 40, 36), np.uint8), specs.Array((), np.float32)),
  },
}
LENGTH, BATCH = 6, 3


def random_inputs(observation, seed=0):
  rng = np.random.default_rng(seed)
  rows = (LENGTH, BATCH)
  resets = rng.random(rows) < [0.0, 0.3, 0.6]

  def values(spec):
    high = getattr(spec, "num_values", 256)
    shape = (*rows, *spec.shape)
    if np.issubdtype(spec.dtype, np.integer):
      return rng.integers(0, high, shape).astype(spec.dtype)
    return rng.normal(size=shape).astype(np.float32)

  timestep = dm_env.TimeStep(
    step_type=np.where(resets, FIRST, MID).astype(np.uint8),
    reward=rng.normal(size=rows).astype(np.float32),
    discount=np.ones(rows, np.float32),
    observation=jax.tree.map(values, observation),
  )
  return types.Inputs(timestep, np.zeros(rows, np.int32))


@pytest.mark.parametrize(
  ("kind", "dtype"),
  [*((kind, "float32") for kind in OBSERVATIONS), ("dict", "bfloat16")],
)
def test_unroll_is_its_steps_one_by_one(kind, dtype):
  inputs = random_inputs(OBSERVATIONS[kind])
  network = networks.ActorCritic(
    observation=tuple(jax.tree.leaves(OBSERVATIONS[kind])),
    num_policy_parameters=4,
    sizes=(16,),
    stack_frames=3,
    dtype=jnp.dtype(dtype),
  )
  core_state = network.initial_core_state(BATCH)
  params = random_params(network, inputs, core_state)
  apply = jax.jit(network.apply)

  whole, last_state = apply(params, inputs, core_state)
  assert whole.policy.shape == (LENGTH, BATCH, 4)
  assert whole.value.shape == (LENGTH, BATCH)
  assert whole.policy.dtype == whole.value.dtype == jnp.float32
  assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype("float32")}
  # What is compared differs from step to step and from row to row.
  assert np.std(whole.value, axis=0).min() > 1e-3
  assert np.std(whole.value, axis=1).min() > 1e-3

  tolerance = 1e-5 if dtype == "float32" else 2e-2
  for t in range(LENGTH):
    step = jax.tree.map(lambda x, t=t: x[t : t + 1], inputs)
    output, core_state = apply(params, step, core_state)
    for actual, expected in zip(output, whole, strict=True):
      np.testing.assert_allclose(
        actual[0], expected[t], rtol=tolerance, atol=tolerance
      )
  jax.tree.map(np.testing.assert_array_equal, core_state, last_state)


def test_compute_is_in_the_dtype_asked_for():
  network = networks.MLP((8, 8), dtype=jnp.bfloat16)
  features = jnp.ones((2, 3))
  params = network.init(jax.random.key(0), features)
  assert network.apply(params, features).dtype == jnp.bfloat16
  nature = networks.NatureCNN(size=8, dtype=jnp.bfloat16)
  images = jax.ShapeDtypeStruct((2, 4, 84, 84), np.uint8)
  output, params = jax.eval_shape(
    nature.init_with_output, jax.random.key(0), images
  )
  assert (output.shape, output.dtype) == ((2, 8), jnp.bfloat16)
  # 84 -> 20 -> 9 -> 7 pixels a side, 64 channels: the 3,136 of the paper.
  assert params["params"]["Dense_0"]["kernel"].shape == (3136, 8)


def test_initial_policy_is_close_to_uniform():
  inputs = random_inputs(OBSERVATIONS["vector"])
  network = networks.ActorCritic((OBSERVATIONS["vector"],), 4)
  output, _ = network.apply(
    network.init(jax.random.key(0), inputs, ()), inputs, ()
  )
  assert np.abs(output.policy).max() < 0.1


def test_a_few_pixels_are_seen_beside_the_background():
  """Which side a square of 2 by 3 is on, from 4,000 images, as in Pong."""
  rng = np.random.default_rng(0)
  cnn = networks.NatureCNN(size=64)

  def batch(size):
    side = rng.integers(0, 2, size)
    images = np.full((size, 1, 84, 84), 87, np.uint8)
    for i in range(size):
      row, column = rng.integers(0, 80), rng.integers(0, 38) + 42 * side[i]
      images[i, 0, row : row + 3, column : column + 2] = 236
    return images, side

  def loss(params, images, side):
    logits = cnn.apply(params["cnn"], images) @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, side).mean()

  optimizer = optax.adam(5e-4)

  @jax.jit
  def update(params, state, images, side):
    value, gradients = jax.value_and_grad(loss)(params, images, side)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, value

  params = {
    "cnn": cnn.init(jax.random.key(0), batch(1)[0]),
    "head": jnp.zeros((64, 2)),
  }
  state = optimizer.init(params)
  values = []
  for _ in range(60):
    params, state, value = update(params, state, *batch(64))
    values.append(float(value))
  assert np.mean(values[-10:]) < 0.2  # Guessing has 0.69.
