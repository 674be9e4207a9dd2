"""Transitions at episode boundaries, and the random streams of other tests."""

import jax
import numpy as np

from seedx import losses
from tests.losses import streams
from tests.losses.streams import FIRST, LAST, MID


def test_a_reset_has_the_last_value_as_reward_and_no_weight():
  steps = jax.jit(losses.transitions)(
    np.array([MID, LAST, FIRST, MID]),
    np.array([0.0, 1.0, 50.0, 2.0]),
    np.array([1.0, 1.0, 1.0, 0.0]),
    np.array([3.0, 4.0, 5.0, 6.0]),
  )
  np.testing.assert_array_equal(steps.reward_t, [1.0, 4.0, 2.0])
  np.testing.assert_array_equal(steps.discount_t, [1.0, 0.0, 0.0])
  np.testing.assert_array_equal(steps.weight, [1.0, 0.0, 1.0])


def test_a_stream_that_begins_with_an_episode_has_no_reset_there():
  steps = jax.jit(losses.transitions)(
    np.array([FIRST, MID, LAST]),
    np.array([50.0, 1.0, 2.0]),
    np.array([1.0, 0.5, 0.0]),
    np.array([3.0, 4.0, 5.0]),
  )
  np.testing.assert_array_equal(steps.reward_t, [1.0, 2.0])
  np.testing.assert_array_equal(steps.discount_t, [0.5, 0.0])
  np.testing.assert_array_equal(steps.weight, [1.0, 1.0])


def test_transitions_have_no_gradient_with_respect_to_values():
  def total(values):
    steps = losses.transitions(
      np.array([MID, LAST, FIRST]), np.ones(3), np.ones(3), values
    )
    return steps.reward_t.sum() + steps.discount_t.sum()

  gradient = jax.jit(jax.grad(total))(np.arange(3.0))
  np.testing.assert_array_equal(gradient, np.zeros(3))


# The random streams that other tests use


def test_random_streams_consist_of_whole_episodes():
  ends = 0
  for seed in range(50):
    start = bool(seed % 2)
    stream = streams.random_stream(streams.random_events(seed), seed, start)
    step_type = stream["step_type"]
    assert (step_type[0] == FIRST) == start
    is_last = step_type[:-1] == LAST
    np.testing.assert_array_equal(step_type[1:] == FIRST, is_last)
    assert set(step_type[stream["discount"] == 0.0]) <= {LAST}
    ends += is_last.sum()
    for name, array in stream.items():
      if array.ndim:
        assert len(array) == 10 - (name in streams.PER_TRANSITION)
  assert ends > 100


def test_the_stream_of_three_resets_has_every_kind_of_end():
  stream = streams.random_stream(streams.THREE_RESETS, 0)
  spans = [(0, 2), (2, 5), (5, 7), (7, 10)]
  assert list(streams.spans(stream)) == spans
  ends = [stream["discount"][stop - 1] for _, stop in spans[:-1]]
  np.testing.assert_array_equal(ends, np.float32([0.9, 0.0, 0.9]))
