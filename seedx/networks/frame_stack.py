"""Stacks of the latest frames, kept in the core state."""

import dataclasses

import dm_env
import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class FrameStack:
  """A stack of each frame and the frames before it in the same episode.

  Actors send single frames. The state `[B, (num_frames - 1) * C, H, W]` holds
  the frames before the current one. Frames before the episode are zeros.

  Attributes:
    num_frames: number of frames in a stack, with the current one; at least 1.
  """

  num_frames: int

  def initial_state(
    self, batch_size: int, frame_shape: tuple[int, ...], dtype: type
  ) -> jax.Array:
    """Returns zeros of `[batch_size, (num_frames - 1) * C, H, W]`."""
    channels, height, width = frame_shape
    past = (self.num_frames - 1) * channels
    return jnp.zeros((batch_size, past, height, width), dtype)

  def unroll(
    self, frames: jax.Array, step_type: jax.Array, state: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Stacks a stream of frames.

    Args:
      frames: `[T, B, C, H, W]`.
      step_type: `[T, B]`; a FIRST step starts a new stack.
      state: `[B, (num_frames - 1) * C, H, W]`, the frames before `frames[0]`.

    Returns:
      Stacks `[T, B, num_frames * C, H, W]`, oldest frame first, and the state
      after the last step.
    """
    length, batch_size, channels, height, width = frames.shape
    past = self.num_frames - 1
    before = state.reshape(batch_size, past, channels, height, width)
    before = jnp.moveaxis(before, 1, 0)
    stream = jnp.concatenate([before, frames])  # [past + T, B, C, H, W]

    time = jnp.arange(length)[:, None]
    first = step_type == int(dm_env.StepType.FIRST)
    started = jax.lax.cummax(jnp.where(first, time, -past))  # [T, B]
    stack = []
    for lag in range(past, -1, -1):
      lagged = stream[past - lag : past - lag + length]
      same_episode = (time - lag >= started)[..., None, None, None]
      stack.append(jnp.where(same_episode, lagged, 0).astype(frames.dtype))
    stacked = jnp.concatenate(stack, axis=2)
    return stacked, stacked[-1, :, channels:]
