"""Losses against the papers' sums, written out in NumPy."""

import functools
import itertools
import pathlib
import subprocess
import sys

import dm_env
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from seedx import losses, sharding

FIRST, MID, LAST = (int(step_type) for step_type in dm_env.StepType)
ARGUMENTS = (
  *("values", "log_prob", "behaviour_log_prob", "entropy"),
  *("step_type", "reward", "discount"),
)
SETTINGS = (
  {"lambda_": 1.0, "clip_rho_threshold": 1.0, "clip_pg_rho_threshold": 1.0},
  {"lambda_": 0.9, "clip_rho_threshold": 2.0, "clip_pg_rho_threshold": 1.5},
  {"lambda_": 0.0, "clip_rho_threshold": 0.5, "clip_pg_rho_threshold": 3.0},
)


@functools.cache
def jitted(setting):
  return jax.jit(functools.partial(losses.vtrace, **SETTINGS[setting]))


def call(function, stream):
  """Calls a loss on a stream by position."""
  return function(*(stream[name] for name in ARGUMENTS))


def episodes(events, start):
  """Step types and discounts of a stream.

  Args:
    events: T + 1 of "step", "terminate", "truncate"; an event right after the
      end of an episode is a reset, whatever it says.
    start: whether the first time step is a reset.
  """
  step_type, discount, reset = [], [], start
  for event in events:
    kind = LAST if event != "step" else MID
    step_type.append(FIRST if reset else kind)
    discount.append(0.0 if event == "terminate" and not reset else 1.0)
    reset = step_type[-1] == LAST
  return np.array(step_type, np.int32), np.array(discount, np.float32)


def random_stream(events, seed, start=False, gamma=0.9):
  rng = np.random.default_rng(seed)
  step_type, discount = episodes(events, start)
  steps = len(events) - 1
  # What a FIRST step carries must not matter: poison it.
  reward = np.where(step_type == FIRST, 50.0, rng.normal(size=steps + 1))
  stream = {
    "values": 3 * rng.normal(size=steps + 1),
    "log_prob": -rng.uniform(0.1, 2.0, steps),
    "behaviour_log_prob": -rng.uniform(0.1, 2.0, steps),
    "entropy": rng.uniform(0.0, 1.0, steps),
    "reward": reward,
    "discount": gamma * discount,
  }
  stream = {k: v.astype(np.float32) for k, v in stream.items()}
  return stream | {"step_type": step_type}


def reference(
  stream, lambda_=1.0, clip_rho_threshold=1.0, clip_pg_rho_threshold=1.0
):
  """Targets, advantages and weights, each episode by itself.

  Equation (1) of Espeholt et al. 2018 as it stands there, a sum of products:

      v_s = V(x_s) + sum_{t=s}^{s+n-1} gamma^{t-s} (prod_{i=s}^{t-1} c_i)
            rho_t (r_t + gamma V(x_{t+1}) - V(x_t))
  """
  stream = {k: np.asarray(v, np.float64) for k, v in stream.items()}
  v, r, d = stream["values"], stream["reward"], stream["discount"]
  ratio = np.exp(stream["log_prob"] - stream["behaviour_log_prob"])
  rho = np.minimum(clip_rho_threshold, ratio)
  c = lambda_ * np.minimum(1.0, ratio)
  steps = len(ratio)
  targets, advantages, weights = (np.zeros(steps) for _ in range(3))
  resets = [t for t in range(1, steps + 1) if stream["step_type"][t] == FIRST]

  def target(s, end):
    total = v[s]
    for t in range(s, end - 1):
      gammas = np.prod(d[s + 1 : t + 1])
      delta = rho[t] * (r[t + 1] + d[t + 1] * v[t + 1] - v[t])
      total += gammas * np.prod(c[s:t]) * delta
    return total

  for start, end in itertools.pairwise([0, *resets, steps + 1]):
    for s in range(start, end - 1):
      targets[s] = target(s, end)
      # Of lambda the paper says nothing here; its lambda-return is this one.
      after = lambda_ * target(s + 1, end) + (1 - lambda_) * v[s + 1]
      q = r[s + 1] + d[s + 1] * after
      advantages[s] = np.minimum(clip_pg_rho_threshold, ratio[s]) * (q - v[s])
      weights[s] = 1.0
  return targets, advantages, weights


def reference_losses(stream, **setting):
  targets, advantages, weights = reference(stream, **setting)
  return losses.VTraceLoss(
    policy_gradient=-advantages * stream["log_prob"] * weights,
    value=0.5 * (targets - stream["values"][:-1]) ** 2 * weights,
    entropy=-stream["entropy"] * weights,
    weight=weights,
  )


def assert_close(actual, expected, rtol=1e-4, atol=1e-4):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol),
    actual,
    expected,
  )


def targets_of(stream, **setting):
  """The targets: the loss is half of (target - V) squared."""

  def value_loss(values):
    loss = call(
      functools.partial(losses.vtrace, **setting), stream | {"values": values}
    )
    return loss.value.sum()

  return stream["values"][:-1] - jax.grad(value_loss)(stream["values"])[:-1]


# V-trace against the paper


event = st.sampled_from(["step", "step", "step", "terminate", "truncate"])


@hypothesis.settings(max_examples=150, deadline=None, database=None)
@hypothesis.given(
  events=st.sampled_from([2, 3, 10]).flatmap(
    lambda n: st.lists(event, min_size=n, max_size=n)
  ),
  start=st.booleans(),
  seed=st.integers(0, 2**31),
  setting=st.sampled_from(range(len(SETTINGS))),
)
def test_vtrace_is_the_sum_of_the_paper(events, start, seed, setting):
  stream = random_stream(events, seed, start)
  assert_close(
    call(jitted(setting), stream), reference_losses(stream, **SETTINGS[setting])
  )


TWO_RESETS = [
  *("step", "truncate", "step", "step", "terminate", "step"),
  *("truncate", "step", "step", "step"),
]


@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_vtrace_without_jit(setting):
  stream = random_stream(TWO_RESETS, seed=setting)
  function = functools.partial(losses.vtrace, **SETTINGS[setting])
  assert_close(
    call(function, stream), reference_losses(stream, **SETTINGS[setting])
  )


def test_vtrace_under_vmap_keeps_streams_apart():
  other = ["step"] * 4 + ["terminate"] + ["step"] * 5
  streams = [
    random_stream(events, seed)
    for seed, events in enumerate((TWO_RESETS, other, ["step"] * 10))
  ]
  batch = jax.tree.map(lambda *x: np.stack(x, axis=1), *streams)
  batched = jax.vmap(losses.vtrace, in_axes=1, out_axes=1)
  expected = [reference_losses(stream) for stream in streams]
  assert_close(
    call(jax.jit(batched), batch),
    jax.tree.map(lambda *x: np.stack(x, axis=1), *expected),
  )


def worked_stream():
  return {
    "values": np.array([1.0, 2.0, 3.0], np.float32),
    "log_prob": np.log(np.array([0.5, 0.8], np.float32)),
    "behaviour_log_prob": np.log(np.array([0.25, 1.0], np.float32)),
    "entropy": np.array([0.3, 0.4], np.float32),
    "step_type": np.array([FIRST, MID, MID], np.int32),
    "reward": np.array([9.0, 1.0, 2.0], np.float32),
    "discount": np.array([1.0, 0.5, 0.5], np.float32),
  }


def test_worked_arithmetic():
  # rho = 0.5 / 0.25 = 2 and 0.8 / 1 = 0.8; rho_bar = 1.5, rho_pg = 1.25.
  # delta_1 = 0.8 (2 + 0.5 * 3 - 2)                 = 1.2
  # vs_1    = 2 + 1.2                               = 3.2
  # delta_0 = 1.5 (1 + 0.5 * 2 - 1)                 = 1.5
  # vs_0    = 1 + 1.5 + 0.5 * min(1, 2) * (3.2 - 2) = 3.1
  # A_1     = 0.8 (2 + 0.5 * 3 - 2)                 = 1.2
  # A_0     = 1.25 (1 + 0.5 * 3.2 - 1)              = 2.0
  stream = worked_stream()
  setting = {"clip_rho_threshold": 1.5, "clip_pg_rho_threshold": 1.25}
  loss = call(functools.partial(losses.vtrace, **setting), stream)
  np.testing.assert_allclose(
    targets_of(stream, **setting), [3.1, 3.2], rtol=1e-6
  )
  np.testing.assert_allclose(
    loss.value, [0.5 * 2.1**2, 0.5 * 1.2**2], rtol=1e-5
  )
  np.testing.assert_allclose(
    loss.policy_gradient, [2.0 * np.log(2), -1.2 * np.log(0.8)], rtol=1e-5
  )
  np.testing.assert_allclose(loss.entropy, [-0.3, -0.4], rtol=1e-6)
  np.testing.assert_array_equal(loss.weight, [1.0, 1.0])


def on_policy(stream):
  return stream | {"behaviour_log_prob": stream["log_prob"]}


def test_on_policy_targets_are_the_n_step_returns():
  stream = on_policy(random_stream(["step"] * 8, seed=3))
  expected, following = [], stream["values"][-1]
  arrived = zip(stream["reward"][1:], stream["discount"][1:], strict=True)
  for r, d in reversed(list(arrived)):
    following = r + d * following
    expected.insert(0, following)
  np.testing.assert_allclose(targets_of(stream), expected, rtol=1e-5)


def test_on_policy_targets_of_lambda_0_are_one_step_returns():
  stream = on_policy(random_stream(["step"] * 8, seed=4))
  expected = stream["reward"] + stream["discount"] * stream["values"]
  np.testing.assert_allclose(
    targets_of(stream, lambda_=0.0), expected[1:], rtol=1e-4
  )


# Episode boundaries


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


def test_transitions_are_constant_to_the_gradient_of_values():
  def total(values):
    steps = losses.transitions(
      jnp.array([MID, LAST, FIRST]), jnp.ones(3), jnp.ones(3), values
    )
    return steps.reward_t.sum() + steps.discount_t.sum()

  np.testing.assert_array_equal(jax.grad(total)(jnp.arange(3.0)), np.zeros(3))


@pytest.mark.parametrize(("first_discount", "wrong"), [(0.0, 1.0), (0.9, 3.27)])
def test_a_mask_alone_is_wrong(first_discount, wrong):
  # Step 0 earns 1 and its episode is truncated at step 1, worth 7. Step 2 is
  # the next episode's first, which earns 1 and goes on to a step worth 2.
  # Right: 1 + 0.9 * 7 = 7.3. Bootstrapped from what comes after the reset,
  # 1 + 0.9 * 0 = 1 or 1 + 0.9 * 0.9 * (1 + 0.9 * 2) = 3.27.
  stream = {
    "values": np.array([0.0, 7.0, 5.0, 2.0], np.float32),
    "log_prob": np.full(3, -0.7, np.float32),
    "behaviour_log_prob": np.full(3, -0.7, np.float32),
    "entropy": np.zeros(3, np.float32),
    "step_type": np.array([MID, LAST, FIRST, MID], np.int32),
    "reward": np.array([0.0, 1.0, 0.0, 1.0], np.float32),
    "discount": np.array([0.9, 0.9, first_discount, 0.9], np.float32),
  }
  masked_only = stream["values"][:-1] + rlax.vtrace(
    stream["values"][:-1],
    stream["values"][1:],
    stream["reward"][1:],
    stream["discount"][1:],
    np.ones(3, np.float32),
  )
  assert masked_only[0] == pytest.approx(wrong, abs=0.005)
  assert targets_of(stream)[0] == pytest.approx(7.3, rel=1e-6)
  # The next episode: 1 + 0.9 * 2.
  assert targets_of(stream)[2] == pytest.approx(2.8, rel=1e-6)


@pytest.mark.parametrize("end", ["truncate", "terminate"])
@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_a_stream_is_its_two_halves(end, setting):
  stream = random_stream(["step"] * 4 + [end] + ["step"] * 5, seed=5)
  function = functools.partial(losses.vtrace, **SETTINGS[setting])
  per_step = {"log_prob", "behaviour_log_prob", "entropy"}
  # Time steps 0 to 4 (LAST) and 5 (FIRST) to 9; transition 4 is the reset.
  halves = [
    {k: v[start : stop - (k in per_step)] for k, v in stream.items()}
    for start, stop in ((0, 5), (5, 10))
  ]

  def total(values, log_prob, stream):
    loss = call(function, stream | {"values": values, "log_prob": log_prob})
    return sum(part.sum() for part in loss[:3]), loss

  def evaluated(stream):
    return jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(
      stream["values"], stream["log_prob"], stream
    )

  (_, whole), whole_gradients = evaluated(stream)
  ((_, one), one_gradients), ((_, two), two_gradients) = map(evaluated, halves)
  assert_close(
    whole,
    jax.tree.map(lambda a, b: np.concatenate([a, [0.0], b]), one, two),
    rtol=1e-6,
    atol=1e-6,
  )
  for name, gap, *gradients in zip(
    ("values", "log_prob"),
    ([], [0.0]),  # Transition 4 lies between the halves.
    whole_gradients,
    one_gradients,
    two_gradients,
    strict=True,
  ):
    together, first, second = gradients
    assert_close(together, np.concatenate([first, gap, second]), 1e-6, 1e-6)
    assert np.abs(first).max() > 0.1, name
    assert np.abs(second).max() > 0.1, name


def test_what_a_first_step_carries_does_not_matter():
  stream = random_stream(TWO_RESETS, seed=6)
  first = stream["step_type"] == FIRST
  other = stream | {
    "reward": np.where(first, -1e6, stream["reward"]).astype(np.float32),
    "discount": np.where(first, 0.0, stream["discount"]).astype(np.float32),
  }
  jax.tree.map(
    np.testing.assert_array_equal,
    call(losses.vtrace, stream),
    call(losses.vtrace, other),
  )


# Gradients


def gradients_of(part, stream):
  floats = {k: jnp.asarray(v) for k, v in stream.items() if k != "step_type"}

  def total(floats):
    loss = call(losses.vtrace, floats | {"step_type": stream["step_type"]})
    return getattr(loss, part).sum()

  return jax.grad(total)(floats)


@pytest.mark.parametrize(
  ("part", "learns"),
  [
    ("policy_gradient", "log_prob"),
    ("value", "values"),
    ("entropy", "entropy"),
  ],
)
def test_gradient_flows_where_it_should_and_is_exactly_0_elsewhere(
  part, learns
):
  stream = random_stream(TWO_RESETS, seed=7)
  targets, advantages, weights = reference(stream)
  expected = {
    "policy_gradient": -advantages,
    "value": np.append(weights * (stream["values"][:-1] - targets), 0.0),
    "entropy": -weights,
  }[part]
  gradients = gradients_of(part, stream)
  np.testing.assert_allclose(
    gradients.pop(learns), expected, rtol=1e-4, atol=1e-5
  )
  for gradient in gradients.values():
    np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


def test_gradient_of_a_reset_is_exactly_0():
  stream = random_stream(TWO_RESETS, seed=8)
  (reset,) = np.nonzero(stream["step_type"][1:] == FIRST)
  assert len(reset) == 3
  for part, name in (
    *(("policy_gradient", "log_prob"), ("value", "values")),
    ("entropy", "entropy"),
  ):
    gradient = np.asarray(gradients_of(part, stream)[name])
    np.testing.assert_array_equal(gradient[reset], np.zeros(len(reset)))
    assert np.count_nonzero(gradient) >= 6


@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_gradient_is_the_finite_difference_with_constant_targets(setting):
  stream = random_stream(TWO_RESETS, seed=9)
  targets, advantages, weights = reference(stream, **SETTINGS[setting])
  learned = ("values", "log_prob", "entropy")

  def frozen(values, log_prob, entropy):
    value = 0.5 * (targets - values[:-1]) ** 2
    return np.sum(
      weights * (0.5 * value - advantages * log_prob - 0.01 * entropy)
    )

  def actual(*arrays):
    loss = call(
      jitted(setting), stream | dict(zip(learned, arrays, strict=True))
    )
    return (loss.policy_gradient + 0.5 * loss.value + 0.01 * loss.entropy).sum()

  point = [stream[name].astype(np.float64) for name in learned]
  gradients = jax.grad(actual, argnums=(0, 1, 2))(
    *(stream[name] for name in learned)
  )
  for which, gradient in enumerate(gradients):
    for i in range(len(gradient)):
      above, below = ([x.copy() for x in point] for _ in range(2))
      above[which][i] += 1e-4
      below[which][i] -= 1e-4
      difference = (frozen(*above) - frozen(*below)) / 2e-4
      assert gradient[i] == pytest.approx(difference, rel=1e-3, abs=1e-4)


# What is refused


@pytest.mark.parametrize("name", ARGUMENTS)
def test_wrong_length_is_refused(name):
  stream = random_stream(["step"] * 6, seed=0)
  with pytest.raises(AssertionError):
    call(losses.vtrace, stream | {name: stream[name][:-1]})
  with pytest.raises(AssertionError):
    call(losses.vtrace, stream | {name: stream[name][:1]})


@pytest.mark.parametrize("name", ARGUMENTS)
def test_wrong_rank_is_refused(name):
  stream = random_stream(["step"] * 6, seed=0)
  with pytest.raises(AssertionError, match="rank"):
    call(losses.vtrace, stream | {name: stream[name][:, None]})
  batch = {k: v[:, None] for k, v in stream.items()}
  with pytest.raises(AssertionError, match="rank"):
    call(losses.vtrace, batch)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_wrong_type_is_refused(name):
  stream = random_stream(["step"] * 6, seed=0)
  wrong = np.float32 if name == "step_type" else np.int32
  with pytest.raises(AssertionError, match="type"):
    call(losses.vtrace, stream | {name: stream[name].astype(wrong)})


def test_import_is_light():
  script = (
    "import sys; from seedx import losses;"
    "heavy = {'grpc', 'envpool', 'flax'} & set(sys.modules);"
    "assert not heavy, heavy; assert losses.vtrace"
  )
  subprocess.run(
    [sys.executable, "-c", script],
    check=True,
    cwd=pathlib.Path(__file__).parent.parent,
  )


# Reductions


def test_mean_share_alone_is_the_weighted_mean():
  # (1 * 1 + 2 * 0 + 4 * 3) / (1 + 0 + 3) = 3.25
  mean = losses.mean_share(jnp.array([1.0, 2.0, 4.0]), jnp.array([1.0, 0, 3]))
  assert mean == 3.25


def test_mean_share_without_weights_is_0():
  assert losses.mean_share(jnp.ones(3), jnp.zeros(3)) == 0.0


def test_shares_of_8_cores_add_up_to_the_mean_and_to_its_gradient():
  rng = np.random.default_rng(0)
  values = rng.normal(size=(8, 5)).astype(np.float32)
  weights = np.array([np.arange(5) < n for n in (5, 0, 1, 5, 2, 3, 0, 4)])
  weights = weights.astype(np.float32)
  mesh = sharding.mesh(jax.devices())
  cores = PartitionSpec(sharding.CORES)

  def share(scale, values, weights):
    return losses.mean_share(scale * values, weights, sharding.CORES)

  def per_core(scale, values, weights):
    shares = jax.value_and_grad(share)(scale, values, weights)
    return jax.tree.map(lambda x: x[None], shares), losses.sum_over_cores(
      shares, sharding.CORES
    )

  program = sharding.per_core(
    per_core,
    mesh,
    (sharding.REPLICATED, cores, cores),
    (cores, sharding.REPLICATED),
  )
  (shares, _), (total, gradient) = program(jnp.float32(3.0), values, weights)
  mean = np.sum(values * weights) / 20
  assert shares.shape == (8,)
  assert len({float(x) for x in shares}) == 7  # Two cores have no weight.
  assert np.sum(shares) == pytest.approx(3 * mean, rel=1e-5)
  assert total == pytest.approx(3 * mean, rel=1e-5)
  assert gradient == pytest.approx(mean, rel=1e-5)
