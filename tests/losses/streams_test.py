"""Streams, and how they are cut at episode boundaries."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np

from seedx import losses
from tests.losses import streams
from tests.losses.streams import FIRST, LAST, MID


def test_transitions_at_a_boundary():
  steps = losses.transitions(
    jnp.array([MID, LAST, FIRST, MID]),
    jnp.array([0.0, 1.0, 50.0, 2.0]),
    jnp.array([1.0, 1.0, 1.0, 0.0]),
    jnp.array([3.0, 4.0, 5.0, 6.0]),
  )
  np.testing.assert_array_equal(steps.reward_t, [1.0, 4.0, 2.0])
  np.testing.assert_array_equal(steps.discount_t, [1.0, 0.0, 0.0])
  np.testing.assert_array_equal(steps.weight, [1.0, 0.0, 1.0])


def test_a_stream_that_begins_with_an_episode_has_no_boundary_there():
  steps = losses.transitions(
    jnp.array([FIRST, MID, LAST]),
    jnp.array([50.0, 1.0, 2.0]),
    jnp.array([1.0, 0.5, 0.0]),
    jnp.array([3.0, 4.0, 5.0]),
  )
  np.testing.assert_array_equal(steps.reward_t, [1.0, 2.0])
  np.testing.assert_array_equal(steps.discount_t, [0.5, 0.0])
  np.testing.assert_array_equal(steps.weight, [1.0, 1.0])


def test_transitions_are_constant_to_the_gradient_of_values():
  def total(values):
    steps = losses.transitions(
      jnp.array([MID, LAST, FIRST]), jnp.ones(3), jnp.ones(3), values
    )
    return steps.reward_t.sum() + steps.discount_t.sum()

  np.testing.assert_array_equal(jax.grad(total)(jnp.arange(3.0)), np.zeros(3))


# The other tests are worth what these streams are.


@hypothesis.settings(max_examples=50, deadline=None, database=None)
@hypothesis.given(streams.some_events, hypothesis.strategies.booleans())
def test_episodes_of_a_random_stream(events, start):
  stream = streams.random_stream(events, 0, start)
  step_type, steps = stream["step_type"], len(events) - 1
  assert (step_type[0] == FIRST) == start
  np.testing.assert_array_equal(step_type[1:] == FIRST, step_type[:-1] == LAST)
  assert set(step_type[stream["discount"] == 0.0]) <= {LAST}
  for name, array in stream.items():
    if name != "importance_weight":
      assert len(array) == steps + (name not in streams.PER_TRANSITION)


def test_three_resets_have_every_kind_of_end():
  stream = streams.random_stream(streams.THREE_RESETS, 0)
  spans = [(0, 2), (2, 5), (5, 7), (7, 10)]
  assert list(streams.spans(stream)) == spans
  ends = [stream["discount"][stop - 1] for _, stop in spans[:-1]]
  np.testing.assert_array_equal(ends, np.float32([0.9, 0.0, 0.9]))
