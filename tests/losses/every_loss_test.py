"""What holds of every loss and every return."""

import functools
import re

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from seedx import losses
from tests.losses import cases, streams

every_case = pytest.mark.parametrize("name", cases.CASES)
every_loss = pytest.mark.parametrize("name", cases.LOSSES)


# Against the papers


@every_case
@hypothesis.settings(max_examples=60, deadline=None, database=None)
@hypothesis.given(
  events=streams.some_events,
  start=st.booleans(),
  seed=st.integers(0, 2**31),
)
# A weight that is above the threshold, but does not count as clipped.
@hypothesis.example(events=10 * ["step"], start=False, seed=305)
def test_is_the_sum_of_the_paper(name, events, start, seed):
  case, stream = cases.CASES[name], streams.random_stream(events, seed, start)
  cases.assert_close(
    cases.jitted(name)(stream), case.expected(stream), case.tolerance
  )


@every_case
def test_without_jit(name):
  case, stream = (
    cases.CASES[name],
    streams.random_stream(streams.THREE_RESETS, 1),
  )
  cases.assert_close(
    case.every_setting(stream), case.expected(stream), case.tolerance
  )


@every_case
def test_vmap_keeps_streams_apart(name):
  case = cases.CASES[name]
  other = ["step"] * 4 + ["terminate"] + ["step"] * 5
  several = [
    streams.random_stream(events, seed)
    for seed, events in enumerate((streams.THREE_RESETS, other, ["step"] * 10))
  ]
  # The batch axis is last, so that a scalar can have one as well.
  batch = jax.tree.map(lambda *x: np.stack(x, axis=-1), *several)
  batched = jax.vmap(case.every_setting, in_axes=-1, out_axes=-1)
  expected = map(case.expected, several)
  cases.assert_close(
    jax.jit(batched)(batch),
    jax.tree.map(lambda *x: np.stack(x, axis=-1), *expected),
    case.tolerance,
  )


# Episode boundaries


def learned_of(case, stream):
  return {name: stream[name] for name in set(case.learns.values())}


@functools.cache
def gradient_of_all(name):
  """The function `(learned, stream)` to the gradient of all parts' sum."""
  case = cases.CASES[name]

  def total(learned, stream):
    parts = case.every_setting(stream | learned)
    return sum(
      part.sum() for setting in parts for part in setting[: len(case.learns)]
    )

  return jax.jit(jax.grad(total))


@every_case
@pytest.mark.parametrize("end", ["truncate", "terminate"])
def test_a_stream_is_its_two_halves(name, end):
  case = cases.CASES[name]
  # Time steps 0 to 4 (LAST) and 5 (FIRST) to 9; transition 4 is the reset.
  stream = streams.random_stream(["step"] * 4 + [end] + ["step"] * 5, seed=5)
  halves = [streams.cut(stream, *span) for span in ((0, 5), (5, 10))]
  whole, one, two = map(cases.jitted(name), (stream, *halves))
  cases.assert_close(jax.tree.map(lambda x: x[:4], whole), one, 1e-6)
  cases.assert_close(jax.tree.map(lambda x: x[5:], whole), two, 1e-6)
  at_reset = stream["values"][4] if name.endswith("returns") else 0.0
  for number in jax.tree.leaves(jax.tree.map(lambda x: x[4], whole)):
    assert number == at_reset
  if not case.learns:
    return
  whole, one, two = (
    gradient_of_all(name)(learned_of(case, x), x) for x in (stream, *halves)
  )
  for argument in whole:
    # The reset has a log-probability of its own, but no values.
    gap = np.zeros_like(one[argument][: argument in streams.PER_TRANSITION])
    joined = np.concatenate([one[argument], gap, two[argument]])
    cases.assert_close(whole[argument], joined, 1e-6)
    assert np.abs(one[argument]).max() > 0.1
    assert np.abs(two[argument]).max() > 0.1


@every_case
def test_what_a_first_step_carries_does_not_matter(name):
  stream = streams.random_stream(streams.THREE_RESETS, seed=6)
  first = stream["step_type"] == streams.FIRST
  # dm_env has None there; a NaN spreads wherever it is so much as added to.
  nothing = {
    k: np.where(first, np.float32(np.nan), stream[k])
    for k in ("reward", "discount")
  }
  cases.assert_equal(
    cases.jitted(name)(stream | nothing), cases.jitted(name)(stream)
  )


# Gradients


@functools.cache
def jacobians(name):
  """A stream, and by setting and part d part_t / d argument_i, `[T, ...]`."""
  case = cases.CASES[name]
  stream = streams.random_stream(streams.THREE_RESETS, seed=9)
  floats = {
    name: stream[name]
    for name in case.arguments
    if stream[name].dtype == np.float32 and name != "importance_weight"
  }
  jacobian = jax.jacrev(lambda floats: case.every_setting(stream | floats))
  return stream, jax.jit(jacobian)(floats)


def difference(case, stream, argument, i):
  """Of the reference, in float64, with all that is constant left as it is."""
  results = []
  for step in (1e-5, -1e-5):
    moved = stream[argument].astype(np.float64)
    moved.flat[i] += step
    results.append(case.expected(stream | {argument: moved}, stream))
  return jax.tree.map(lambda a, b: (a - b) / 2e-5, *results)


@every_loss
def test_gradient_is_the_finite_difference_with_constant_targets(name):
  case = cases.CASES[name]
  stream, actual = jacobians(name)
  for part, argument in case.learns.items():
    differences = [
      difference(case, stream, argument, i)
      for i in range(stream[argument].size)
    ]
    for setting, found in enumerate(actual):
      expected = [getattr(x[setting], part) for x in differences]
      found = getattr(found, part)[argument]
      found = np.reshape(found, (len(found), -1)).T
      cases.assert_close(found, np.array(expected), 1e-3)
      assert np.count_nonzero(np.abs(found) > 0.05) >= 2


CONSTANTS = [
  (name, argument)
  for name in cases.LOSSES
  for argument in cases.CASES[name].arguments
  if argument not in ("step_type", "action", "importance_weight")
]


@pytest.mark.parametrize(("name", "argument"), CONSTANTS)
def test_no_gradient_flows_elsewhere(name, argument):
  _, actual = jacobians(name)
  for setting in actual:
    parts = setting._asdict()
    parts |= parts.pop("diagnostics", {})
    for part, gradients in parts.items():
      if cases.CASES[name].learns.get(part) != argument:
        cases.assert_equal(
          gradients[argument], np.zeros_like(gradients[argument])
        )


@every_loss
def test_no_gradient_flows_at_a_reset(name):
  stream, actual = jacobians(name)
  reset = streams.resets(stream)
  assert len(reset) == 3
  for setting in actual:
    for part, argument in cases.CASES[name].learns.items():
      gradient = np.asarray(getattr(setting, part)[argument])
      for at in (gradient[reset], gradient[:, reset]):
        np.testing.assert_array_equal(at, np.zeros_like(at))


# What is refused


def ppo_of_steps(*arguments):
  *arguments, behaviour_values = arguments
  return losses.ppo(*arguments, behaviour_values=behaviour_values)


SIGNATURES = {
  name: (case.function, case.arguments)
  for name, case in cases.CASES.items()
  if name not in ("ppo", "n_step_returns")
} | {
  "transitions": (losses.transitions, (*cases.STREAM, "values")),
  "n_step_returns": (
    functools.partial(losses.n_step_returns, n=2),
    ("values", *cases.STREAM),
  ),
  "ppo": (
    ppo_of_steps,
    (
      *("values", "log_prob", "behaviour_log_prob", "entropy", "advantage"),
      *("target", "weight", "behaviour_values"),
    ),
  ),
}
every_argument = pytest.mark.parametrize(
  ("name", "argument"),
  [(name, argument) for name in SIGNATURES for argument in SIGNATURES[name][1]],
)


def refusal(name, **wrong):
  """The message that refuses the arguments that are not as they should be."""
  function, arguments = SIGNATURES[name]
  with pytest.raises(ValueError) as refused:
    function(*(wrong.get(x, right(name)[x]) for x in arguments))
  return str(refused.value)


def assert_says(message, blamed):
  assert re.search(rf"expected {blamed} .*found", message), message


@functools.cache
def right(name):
  """Arguments that are not refused."""
  stream = streams.random_stream(["step"] * 6, seed=0)
  if name == "ppo":
    stream = {x: np.ones(5, np.float32) for x in SIGNATURES["ppo"][1]}
  function, arguments = SIGNATURES[name]
  function(*(stream[x] for x in arguments))
  return stream


@every_argument
def test_wrong_length_is_refused(name, argument):
  array = right(name)[argument]
  # One step would broadcast.
  wrong = [array[:-1], array[:1]] if array.ndim else [np.ones(5, np.float32)]
  # These say how long all others should be, so that another is blamed.
  others = argument == ("values" if name == "ppo" else "step_type")
  blamed = r"\w+" if others else argument
  for array in wrong:
    assert_says(refusal(name, **{argument: array}), blamed)


@every_argument
def test_wrong_rank_is_refused(name, argument):
  array = right(name)[argument]
  for wrong in (array[..., None], *([array[..., 0]] if array.ndim else [])):
    assert_says(refusal(name, **{argument: wrong}), argument)


@every_argument
def test_wrong_type_is_refused(name, argument):
  array = right(name)[argument]
  wrong = np.int32 if array.dtype == np.float32 else np.float32
  message = refusal(name, **{argument: array.astype(wrong)})
  assert_says(message, argument)
  assert wrong.__name__ in message


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_batch_without_vmap_is_refused(name):
  batch = {k: np.stack([v, v], axis=-1) for k, v in right(name).items()}
  message = refusal(name, **batch)
  assert_says(message, "values" if name == "ppo" else "step_type")
  assert "jax.vmap" in message


@pytest.mark.parametrize("n", [0, -1])
def test_n_below_1_is_refused(n):
  stream = streams.random_stream(["step"] * 6, seed=0)
  for name in ("n_step_returns", "q_learning"):
    with pytest.raises(ValueError, match=f"expected n .*found {n}"):
      cases.CASES[name](stream, n=n)
