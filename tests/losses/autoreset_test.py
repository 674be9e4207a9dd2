"""Streams of environments that reset themselves, in both ways."""

import chex
import jax
import numpy as np
import pytest

from seedx import losses
from tests.losses import cases, streams
from tests.losses.streams import FIRST, LAST, MID

GAMMA = 0.9
from_same_step, gae = jax.jit(losses.from_same_step), jax.jit(losses.gae)
# Episodes end by truncation, termination after one step, truncation after one
# step, and termination.
EVENTS = [
  "step",
  "truncate",
  "reset",
  "terminate",
  "reset",
  "truncate",
  "reset",
  "step",
  "terminate",
  "reset",
  "step",
]
# Losses with the value that each bootstraps from, at every time step.
BOOTSTRAPS = {
  "vtrace": lambda x: x["values"],
  "ppo": lambda x: x["behaviour_values"],
}


def whole_stream():
  """Returns the stream of `EVENTS`, with all LAST and FIRST steps."""
  stream = streams.random_stream(EVENTS, seed=3, gamma=GAMMA)
  kinds = [MID, LAST, FIRST, LAST, FIRST, LAST, FIRST, MID, LAST, FIRST, MID]
  assert stream["step_type"].tolist() == kinds
  return stream


def same_step(stream, final_values):
  """Returns the stream as an environment gives it that resets in a step.

  No action leads to a FIRST step, and no observation is that of a LAST step.

  Returns:
    The indices `[K]` of the actions, and the arguments of losses.
  """
  kept = np.flatnonzero(stream["step_type"][:-1] != LAST)
  after = kept + 1
  ended = stream["step_type"][after] == LAST
  terminated = ended & (stream["discount"][after] == 0)
  seen = [*kept, len(stream["step_type"]) - 1]
  arguments = {
    k: (v[kept] if k in streams.PER_TRANSITION else v[seen])
    if np.ndim(v)
    else v
    for k, v in stream.items()
  }
  made = from_same_step(
    stream["reward"][after],
    terminated,
    ended & ~terminated,
    # Only the values of truncated episodes are read.
    np.where(ended & ~terminated, final_values[after], np.float32(np.nan)),
    gamma=GAMMA,
  )
  return kept, arguments | made._asdict()


@pytest.mark.parametrize("name", BOOTSTRAPS)
def test_losses_of_same_step_resets_equal_those_of_whole_episodes(name):
  case, stream = cases.CASES[name], whole_stream()
  kept, arguments = same_step(stream, BOOTSTRAPS[name](stream))
  actual = jax.jit(case.every_setting)(
    {k: arguments[k] for k in case.arguments}
  )
  expected = jax.tree.map(lambda x: x[kept], case.expected(stream))
  chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("double", [False, True])
def test_td_errors_of_same_step_resets_equal_those_of_whole_episodes(double):
  stream = whole_stream()
  chooses = stream["q_values" if double else "target_q_values"].argmax(-1)
  best = stream["target_q_values"][np.arange(len(chooses)), chooses]
  kept, arguments = same_step(stream, best)
  case, setting = cases.CASES["q_learning"], {"n": 2, "double": double}
  weight = {"importance_weight": np.float32(1)}
  actual = jax.jit(lambda x: case(x, **setting))(arguments | weight)
  expected = case.reference(stream | weight, stream | weight, **setting)
  chex.assert_trees_all_close(
    actual, jax.tree.map(lambda x: x[kept], expected), rtol=1e-4, atol=1e-4
  )


def test_an_episode_that_terminates_and_is_truncated_does_not_bootstrap():
  one = np.array([True])
  stream = from_same_step(np.float32([1]), one, one, np.float32([8]), gamma=0.5)
  assert stream.reward.tolist() == [0, 1] and stream.discount[1] == 0


def test_without_truncations_values_of_last_observations_are_not_needed():
  done = np.float32([0, 1])  # CleanRL stores them as floats.
  stream = losses.from_same_step(np.float32([1, 2]), done, gamma=0.5)
  assert stream.discount.tolist() == [0.5, 0.5, 0]
  with pytest.raises(ValueError, match="truncated and final_values"):
    losses.from_same_step(np.ones(2, np.float32), done, done, gamma=0.5)


def test_final_values_have_no_gradient():
  def total(values):
    one = np.array([True])
    stream = losses.from_same_step(
      np.float32([1]), ~one, one, values, gamma=0.5
    )
    return stream.reward.sum()

  assert jax.grad(total)(np.float32([8])) == 0


@pytest.mark.parametrize("ended", [False, True])
def test_next_step_resets_are_the_last_and_first_steps_of_a_stream(ended):
  stream = whole_stream()
  start = 1 if ended else 0  # Time step 1 is LAST.
  reward, discount, kinds = (
    stream[name][start + 1 :] for name in ("reward", "discount", "step_type")
  )
  last = kinds == LAST
  made = jax.jit(losses.from_next_step)(
    np.where(kinds == FIRST, 0, reward),
    last & (discount == 0),
    last & (discount != 0),
    gamma=GAMMA,
    ended=ended,
  )
  assert made.step_type.tolist() == [LAST if ended else MID, *kinds]
  np.testing.assert_allclose(made.discount, stream["discount"][start:])
  values = stream["values"][start:]
  expected = gae(values, *(stream[name][start:] for name in cases.STREAM))
  np.testing.assert_allclose(gae(values, *made), expected, rtol=1e-5)


@pytest.mark.parametrize(
  "make",
  [
    lambda x: losses.from_same_step(x, x, gamma=0.5),
    lambda x: losses.from_next_step(x, x, x, gamma=0.5),
  ],
)
def test_batches_need_vmap(make):
  with pytest.raises(AssertionError, match=r"jax\.vmap"):
    make(np.zeros((3, 2), np.float32))
