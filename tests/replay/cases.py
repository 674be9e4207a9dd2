"""Unrolls that contain the numbers of their steps, and their windows."""

import dm_env
import numpy as np

from seedx import types

LENGTH = 6


def steps_of(number, item):
  """Returns unrolls whose arrays contain the given `number` and `item`.

  Args:
    number: `[L, S]`, number of each step.
    item: `[L, S]`, number of each step's unroll.
  """
  number, item = np.asarray(number), np.asarray(item)
  return types.Unroll(
    inputs=types.Inputs(
      timestep=dm_env.TimeStep(
        step_type=(number % 3).astype(np.uint8),
        reward=number.astype(np.float32),
        discount=(),  # Missing parts are allowed, and make the test faster.
        observation={
          "image": np.stack([number, item], -1)[..., None].astype(np.uint8),
          "item": item.astype(np.int32),
        },
      ),
      action_tm1=(),
      exploration=(item / 4).astype(np.float32),
    ),
    action=number.astype(np.int32),
    extras=(-number.astype(np.float32),),
    version=item.astype(np.int32),
    core_state={
      "lstm": np.stack([number[0] + 0.5, item[0] + 0.5], -1).astype(np.float32),
      "frames": (item[0] + 1).astype(np.uint8),
    },
  )


def make_unrolls(items, length=LENGTH):
  """Returns unrolls `[L, S]`; step t of unroll i has the number 10 i + t."""
  item = np.broadcast_to(np.asarray(items), (length, len(items)))
  return steps_of(10 * item + np.arange(length)[:, None], item)


def share_of(items, priorities=(), length=LENGTH):
  return types.Share(make_unrolls(items, length), priorities)


def expected_windows(items, starts, window):
  """Returns the windows that begin at steps `starts` of unrolls `items`."""
  item = np.broadcast_to(np.asarray(items), (window, len(items)))
  number = 10 * item + starts + np.arange(window)[:, None]
  unroll = steps_of(number, item)
  begins = starts == 0
  core_state = {
    "lstm": unroll.core_state["lstm"] * begins[:, None],
    "frames": unroll.core_state["frames"] * begins,
  }
  return unroll._replace(core_state=core_state)
