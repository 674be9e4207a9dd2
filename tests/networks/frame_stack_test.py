"""The frame stack, compared with a deque."""

import collections

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import networks

FIRST, MID = int(dm_env.StepType.FIRST), int(dm_env.StepType.MID)


def stack_reference(frames, step_type, num_frames):
  """Stacks frames by a deque for each environment."""
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


@pytest.mark.parametrize("num_frames", [1, 4])
def test_unroll_and_single_steps_match_a_deque(num_frames):
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
    np.testing.assert_array_equal(row, expected[t : t + 1])
  np.testing.assert_array_equal(state, last_state)
