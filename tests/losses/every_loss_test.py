"""Properties of every loss and every return."""

import functools
import itertools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import losses
from tests.losses import cases, streams

every_case = pytest.mark.parametrize("name", cases.CASES)
every_loss = pytest.mark.parametrize("name", cases.LOSSES)


@every_case
def test_results_match_the_papers_formulas(name):
  case = cases.CASES[name]
  for stream, (actual, _) in cases.results(name).items():
    expected = case.expected(cases.all_streams()[stream])
    chex.assert_trees_all_close(
      actual, expected, rtol=case.tolerance, atol=case.tolerance
    )


# Dtypes


def cast(stream, *dtypes):
  """Returns a stream whose float arrays have these dtypes in turn."""
  turn = itertools.cycle(dtypes)
  return {
    k: jnp.asarray(x, next(turn)) if x.dtype == np.float32 else x
    for k, x in stream.items()
  }


@pytest.mark.slow
@every_case
@pytest.mark.parametrize(
  "dtypes", [("float16", "bfloat16"), ("float32", "float64")]
)
def test_floats_of_two_dtypes_are_computed_in_the_widest(name, dtypes):
  case = cases.CASES[name]
  with jax.enable_x64(True):
    stream = cast(cases.all_streams()["resets"], *dtypes)
    learned = {k: stream.pop(k) for k in {x for _, x in case.gradients}}

    def total(floats, others):
      result = case(floats | others, **case.settings[0])
      parts = [getattr(result, x) for x in case.learns] or [result]
      return sum(x.sum() for x in parts), parts

    of_batch = jax.vmap(jax.grad(total, has_aux=True) if learned else total)
    batches = jax.tree.map(lambda x: jnp.stack([x, x]), (learned, stream))
    gradients, parts = jax.eval_shape(of_batch, *batches)
    # The n-step functions of RLax use float64 whenever it is enabled.
    assert {str(x.dtype) for x in parts} <= {"float32", "float64"}
    for k, x in learned.items():
      assert gradients[k].dtype == x.dtype


@every_case
def test_floats_of_fewer_bits_give_the_numbers_of_float32(name):
  case = cases.CASES[name]
  stream = cast(cases.all_streams()["resets"], "bfloat16", "float32", "float16")
  narrow = {"bfloat16", "float16"}
  wide = {
    k: x.astype("float32") if str(x.dtype) in narrow else x
    for k, x in stream.items()
  }
  one, two = (case(x, **case.settings[0]) for x in (stream, wide))
  chex.assert_trees_all_equal(one, two)


# Episode boundaries


@every_case
@pytest.mark.parametrize("end", ["truncate", "terminate"])
def test_an_episode_does_not_affect_its_neighbours(name, end):
  case, results = cases.CASES[name], cases.results(name)
  for change, same, different in (
    ("other end", slice(4), slice(5, None)),
    ("other start", slice(5, None), slice(4)),
  ):
    one, two = (
      [np.asarray(x) for x in jax.tree.leaves(results[stream])]
      for stream in (end, f"{end}, {change}")
    )
    chex.assert_trees_all_close(
      [x[same] for x in one], [x[same] for x in two], rtol=1e-6, atol=1e-6
    )
    gaps = [
      np.abs(x[different] - y[different]) for x, y in zip(one, two, strict=True)
    ]
    assert max(map(np.max, gaps)) > 0.1
  stream = cases.all_streams()[end]
  at_reset = 0.0
  if name.endswith("returns"):  # The value of LAST.
    at_reset = np.max(stream[case.arguments[0]][4])
  actual, jacobian = results[end]
  for number in jax.tree.leaves(jax.tree.map(lambda x: x[4], actual)):
    assert number == at_reset
  for part, argument in case.gradients:
    for setting in jacobian:
      gradient = np.abs(getattr(setting, part)[argument])
      assert gradient[:4].max() > 0.1 and gradient[5:].max() > 0.1


@every_case
def test_reward_and_discount_of_a_first_step_are_ignored(name):
  (actual, jacobian), (expected, expected_jacobian) = (
    cases.results(name)[stream] for stream in ("nan at FIRST", "resets")
  )
  chex.assert_trees_all_equal(actual, expected)
  for part, argument in cases.CASES[name].gradients:
    for one, two in zip(jacobian, expected_jacobian, strict=True):
      chex.assert_trees_all_equal(
        getattr(one, part)[argument], getattr(two, part)[argument]
      )


# Gradients


def extreme(seed):
  """Returns a stream of finite numbers that are very large or very small."""
  stream = streams.random_stream(streams.random_events(seed), seed)
  rng = np.random.default_rng(seed)
  sizes = {
    "log_prob": (1.0, 150.0, 1e4),
    "behaviour_log_prob": (1.0, 150.0, 1e4),
    "logits": (1.0, 1e4),
    "target_logits": (1.0, 1e4),
    "discount": (0.0, 1.0),
    "entropy": (1e-30, 1.0, 1e4),
    "importance_weight": (1e-30, 1.0),
    "log_temperature": (1e-30, 1.0, 10.0),
    "critics.logits": (1.0, 1e4),
    "critics.target_logits": (1.0, 1e4),
  }
  scaled = {}
  for name, x in stream.items():
    if x.dtype == np.float32:
      scale = rng.choice(sizes.get(name, (1e-30, 1.0, 1e12)))
      x = (x * scale).astype(np.float32)
    scaled[name] = x
  return scaled


@every_loss
def test_extreme_numbers_have_finite_losses_and_gradients(name):
  # For example, a ratio of e^300 overflows float32.
  case = cases.CASES[name]
  batch = jax.tree.map(lambda *x: np.stack(x), *map(extreme, range(100)))
  learned = {k: batch.pop(k) for k in {x for _, x in case.gradients}}

  def total(floats, others):
    results = case.every_setting(floats | others)
    parts = [getattr(x, part).sum() for x in results for part in case.learns]
    return sum(parts), parts

  gradients, parts = jax.jit(jax.vmap(jax.grad(total, has_aux=True)))(
    learned, batch
  )
  chex.assert_tree_all_finite((gradients, parts))
  if "log_prob" in learned:
    ratio = learned["log_prob"] - batch["behaviour_log_prob"]
    assert ratio.max() > 1000 and ratio.min() < -1000


def difference(case, stream, argument, i):
  """Returns the finite difference of the reference, with constant targets."""
  results = []
  for step in (1e-5, -1e-5):
    moved = stream[argument].astype(np.float64)
    moved.flat[i] += step
    results.append(case.expected(stream | {argument: moved}, stream))
  return jax.tree.map(lambda a, b: (a - b) / 2e-5, *results)


@every_loss
def test_gradient_is_the_finite_difference_with_constant_targets(name):
  case = cases.CASES[name]
  stream = cases.all_streams()["resets"]
  _, actual = cases.results(name)["resets"]
  for part, argument in case.gradients:
    differences = [
      difference(case, stream, argument, i)
      for i in range(stream[argument].size)
    ]
    for setting, jacobian in enumerate(actual):
      expected = [getattr(x[setting], part) for x in differences]
      gradient = getattr(jacobian, part)[argument]
      gradient = np.reshape(gradient, (len(gradient), -1)).T
      chex.assert_trees_all_close(
        gradient, np.array(expected), rtol=1e-3, atol=1e-3
      )
      assert np.count_nonzero(np.abs(gradient) > 0.05) >= 2


@every_loss
def test_each_part_has_a_gradient_for_its_arguments_only(name):
  case = cases.CASES[name]
  results = cases.results(name)
  for stream in results.keys() - {"nan at FIRST"}:
    actual = results[stream][1]
    for setting in actual:
      parts = setting._asdict()
      parts |= parts.pop("diagnostics", {})
      for part, gradients in parts.items():
        for argument, gradient in gradients.items():
          if (part, argument) not in case.gradients:
            assert not gradient.any(), (part, argument)


# Refused arguments


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
      "values",
      "log_prob",
      "behaviour_log_prob",
      "entropy",
      "advantage",
      "target",
      "weight",
      "behaviour_values",
    ),
  ),
}
every_signature = pytest.mark.parametrize("name", SIGNATURES)


def refusal(name, **wrong):
  """Returns the error message for wrong arguments."""
  function, arguments = SIGNATURES[name]
  with pytest.raises(AssertionError) as refused:
    jax.eval_shape(function, *(wrong.get(x, right(name)[x]) for x in arguments))
  return str(refused.value)


def parameter(argument):
  """Returns the name of the parameter for an argument of a stream."""
  return argument.rpartition(".")[2]


def blamed(message):
  """Returns the names of the arguments that an error message blames."""
  names = re.search(r"\[((?:\w+, )*\w+)[^]]*\]$", message)[1].split(", ")
  _, differ, shapes = message.partition("different shapes: ")
  if differ:
    shapes = re.findall(r"\([\d, ]*\)", shapes)
    assert len(shapes) == len(names), message
    return [
      x for x, y in zip(names, shapes, strict=True) if shapes.count(y) == 1
    ]
  numbers = re.findall(r"input (\d+) has", message)
  assert numbers or len(names) == 1, message
  return [names[int(number)] for number in numbers] or names


@functools.cache
def right(name):
  """Returns arguments that are accepted."""
  stream = streams.random_stream(["step"] * 6, seed=0)
  if name == "ppo":
    stream = {x: np.ones(5, np.float32) for x in SIGNATURES["ppo"][1]}
  function, arguments = SIGNATURES[name]
  jax.eval_shape(function, *(stream[x] for x in arguments))
  return {x: stream[x] for x in arguments}


@every_signature
def test_wrong_length_is_refused(name):
  for argument, array in right(name).items():
    # An array of length 1 would broadcast.
    wrong = [array[:-1], array[:1]] if array.ndim else [np.ones(5, np.float32)]
    for each in wrong:
      message = refusal(name, **{argument: each})
      # With a wrong step_type, the message blames other arguments.
      assert argument == "step_type" or blamed(message) == [parameter(argument)]


@every_signature
def test_wrong_rank_is_refused(name):
  for argument, array in right(name).items():
    for wrong in (array[..., None], *([array[..., 0]] if array.ndim else [])):
      message = refusal(name, **{argument: wrong})
      assert blamed(message) == [parameter(argument)]


@every_signature
def test_wrong_type_is_refused(name):
  for argument, array in right(name).items():
    wrong = np.int32 if array.dtype == np.float32 else np.float32
    message = refusal(name, **{argument: array.astype(wrong)})
    assert blamed(message) == [parameter(argument)]
    assert wrong.__name__ in message


@every_signature
def test_a_batch_without_vmap_is_refused(name):
  batch = {k: np.stack([v, v], axis=-1) for k, v in right(name).items()}
  message = refusal(name, **batch)
  assert blamed(message) == ([*batch] if name == "ppo" else ["step_type"])
  assert "jax.vmap" in message


@pytest.mark.parametrize(
  ("name", "argument"),
  [
    ("alphazero", "search_policy"),
    ("q_learning", "target_q_values"),
    ("categorical_q_learning", "target_logits"),
    ("categorical_clipped_double_q_learning", "critics.target_logits"),
    ("deterministic_policy_gradient", "actor.action_gradient"),
  ],
)
def test_a_wrong_number_of_actions_or_atoms_is_refused(name, argument):
  message = refusal(name, **{argument: right(name)[argument][..., :-1]})
  assert parameter(argument) in blamed(message)


@pytest.mark.parametrize("n", [0, -1])
def test_n_below_1_is_refused(n):
  stream = cases.all_streams()["resets"]
  for name in (
    "n_step_returns",
    "q_learning",
    "categorical_q_learning",
    "clipped_double_q_learning",
    "categorical_clipped_double_q_learning",
  ):
    with pytest.raises(ValueError, match=f"expected n .*found {n}"):
      jax.eval_shape(functools.partial(cases.CASES[name], n=n), stream)
