"""Eight virtual cores for every test, and random experience."""

import functools
import os
import signal
from importlib import metadata

# The long set runs the fast tests once more with XLA's own settings.
_AS_USERS_DO = os.environ.get("SEEDX_TESTS_AS_USERS") == "1"
_FLAGS = ["--xla_force_host_platform_device_count=8"]
_JAXLIB = tuple(map(int, metadata.version("jaxlib").split(".")[:2]))
# XLA aborts on an unknown flag.
if not _AS_USERS_DO and (0, 10) <= _JAXLIB <= (0, 12):
  # Splitting a program pays only if it is large.
  _FLAGS.append("--xla_cpu_parallel_codegen_split_count=1")
  if _JAXLIB == (0, 10):
    # The older loop emitters compile in less than half the time.
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
# Each flag only once: a worker of pytest-xdist inherits those of its parent.
_FLAGS = dict.fromkeys(os.environ.get("XLA_FLAGS", "").split() + _FLAGS)
os.environ["XLA_FLAGS"] = " ".join(_FLAGS)
# Losses and networks can be tested on other devices: see CONTRIBUTING.md.
os.environ["JAX_PLATFORMS"] = os.environ.get("SEEDX_TEST_PLATFORMS", "cpu")
if os.environ["JAX_PLATFORMS"] != "cpu":
  # By default, a GPU multiplies with 10 bits of mantissa (TF32).
  os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# After a killed program left an incomplete entry, JAX warns and compiles again.
os.environ["PYTHONWARNINGS"] = (
  "ignore:Error reading persistent compilation cache entry:UserWarning"
)

import dm_env
import numpy as np
import pytest

from tests import budget

# A shell's background job ignores Ctrl-C, a program under nohup ignores SIGHUP.
# Without these lines, the programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
  signal.signal(signal.SIGHUP, lambda *_: None)


def slow_but(fast, cases):
  """Returns `cases`, tuples of arguments, marked `slow` unless in `fast`."""
  unknown = [case for case in fast if case not in cases]
  assert not unknown, unknown
  return [
    pytest.param(*case, marks=() if case in fast else pytest.mark.slow)
    for case in cases
  ]


# The files that take longest come first, so that no worker starts one late.
_LONGEST = (
  "pipelines_test",
  "agents_test",
  "resume_test",
  "anakin_test",
  "evaluate_test",
  "wire_test",
  "own_envs_test",
  "every_loss_test",
  "hangs_test",
  "first_lines_test",
  "experience_test",
  "app_test",
  "learner_test",
  "unroll_server_test",
  "rows_test",
  "hostile_test",
  "sync_test",
  "functional_test",
)


def pytest_configure(config):
  """Disables most of XLA's optimizations unless the tests measure time.

  The programs of tests take longer to compile than to run.
  """
  if not _AS_USERS_DO and config.option.markexpr != "alone":
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "True"
  # Tests and the programs that they start compile many equal programs.
  cache = config.rootpath / config.getini("cache_dir") / "jax"
  os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache)
  # Tests cost more with other compiler settings, or if coverage is measured.
  as_usual = os.environ["JAX_PLATFORMS"] == "cpu" and not _AS_USERS_DO
  budget.register(config, cache, as_usual and "COVERAGE_RUN" not in os.environ)


def pytest_collection_modifyitems(items):
  """Sorts the tests; `--no-loadscope-reorder` keeps this order."""
  rank = {name: k for k, name in enumerate(_LONGEST)}
  items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


def recorded(calls, name, function):
  """Returns the function; each call (or trace by JAX) adds the name."""

  def call(*arguments):
    calls.append(name)
    return function(*arguments)

  return call


def random_unroll(agent, spec, length, ends, seed=0):
  """Returns an unroll `[L, B]` of random experience, as NumPy arrays.

  Args:
    agent: agent whose extras and core state the unroll has.
    spec: spec of the environment.
    length: L, the number of time steps.
    ends: `[B]` probabilities that an episode ends at a step.
    seed: seed of the experience.
  """
  import jax

  from seedx import types

  rng = np.random.default_rng(seed)
  rows = (length, len(ends))
  step_type, terminated = random_episodes(rng, length, ends)
  first = step_type == 0
  timestep = dm_env.TimeStep(
    step_type=step_type,
    reward=np.where(first, 0.0, rng.normal(size=rows)).astype(np.float32),
    discount=np.where(first | terminated, 0.0, 1.0).astype(np.float32),
    observation=random_observation(rng, spec, rows),
  )
  action = random_values(rng, spec.action, rows)
  if spec.action_mask is not None:
    # Makes the chosen actions legal.
    chosen = np.arange(spec.action.num_values) == action[..., None]
    timestep.observation[spec.action_mask] |= chosen
  action_tm1 = np.roll(action, 1, axis=0)
  action_tm1[first] = 0
  extras, core_state = _carried(agent, spec, len(ends))
  return types.Unroll(
    inputs=types.Inputs(timestep, action_tm1, np.zeros(rows, np.float32)),
    action=action,
    extras=jax.tree.map(
      lambda x: -rng.uniform(0.5, 1.5, (length, *x.shape)).astype(x.dtype),
      extras,
    ),
    version=np.zeros(rows, np.int32),
    core_state=core_state,
  )


_CARRIED = {}


def _carried(agent, spec, batch_size):
  """Returns the shapes of extras, `[B]`, and an initial core state."""
  import jax

  from seedx.agents import acting_step

  # Keeps the agent, so that no other agent gets its id.
  _, carried = _CARRIED.setdefault((id(agent), batch_size), (agent, []))
  if not carried:
    core_state = agent.initial_core_state(batch_size)
    zeros = acting_step.zero_inputs(spec, batch_size)
    key = jax.random.key(0)
    output, _ = jax.eval_shape(
      lambda: agent.step(agent.acting(agent.init(key)), key, zeros, core_state)
    )
    carried += output.extras, jax.tree.map(np.asarray, core_state)
  return carried


def random_episodes(rng, length, ends):
  """Returns step types (uint8) and terminations (bool), both `[L, B]`."""
  step_type = np.full((length, len(ends)), dm_env.StepType.MID, np.uint8)
  terminated = np.zeros(step_type.shape, bool)
  for b, probability in enumerate(ends):
    last = rng.random() < probability
    for t in range(length):
      if last:
        step_type[t, b], last = dm_env.StepType.FIRST, False
      elif rng.random() < probability:
        step_type[t, b], last = dm_env.StepType.LAST, True
        terminated[t, b] = rng.random() < 0.5
  return step_type, terminated


def random_observation(rng, spec, rows):
  """Returns random observations of an environment, `[*rows, ...]`.

  Those of a game are positions that games with random moves have reached.
  """
  import jax

  if spec.game is None:
    return jax.tree.map(lambda x: random_values(rng, x, rows), spec.observation)
  positions = _random_positions(spec.game)
  chosen = rng.integers(0, len(jax.tree.leaves(positions)[0]), rows)
  return jax.tree.map(lambda x: x[chosen], positions)


@functools.cache
def _random_positions(game, num_games=64):
  """Returns the observations of unfinished games, `[N, ...]`."""
  import jax
  import jax.numpy as jnp

  def step(carry, rng_key):
    state, over = carry
    legal = jax.vmap(game.legal)(state)
    action = jax.random.categorical(rng_key, jnp.where(legal, 0.0, -jnp.inf))
    move = jax.vmap(game.play)(state, action)
    seen = jax.vmap(game.observe)(state), ~over
    return (move.state, over | move.over), seen

  @jax.jit
  def play(rng_key):
    start = jax.tree.map(
      lambda x: jnp.broadcast_to(x, (num_games, *x.shape)), game.start()
    )
    keys = jax.random.split(rng_key, game.max_moves)
    carry = start, jnp.zeros(num_games, bool)
    return jax.lax.scan(step, carry, keys)[1]

  observations, unfinished = jax.device_get(play(jax.random.key(0)))
  return jax.tree.map(lambda x: x[unfinished], observations)


def random_values(rng, spec, rows):
  """Returns random values of a spec, `[*rows, *spec.shape]`."""
  from seedx import types

  shape = (*rows, *spec.shape)
  if isinstance(spec, dm_env.specs.DiscreteArray):
    return rng.integers(0, spec.num_values, shape).astype(spec.dtype)
  if spec.dtype == bool:
    return rng.random(shape) < 0.5
  if np.issubdtype(spec.dtype, np.integer):
    high = np.minimum(np.int64(getattr(spec, "maximum", 255)), 255)
    return rng.integers(0, high + 1, shape).astype(spec.dtype)
  values = rng.normal(size=shape).astype(spec.dtype)
  if isinstance(spec, types.HybridArray):
    choices = random_values(rng, spec.choices, rows)
    values[..., : spec.num_choices] = choices
  return values
