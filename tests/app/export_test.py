"""An exported policy acts as the original one, with JAX alone."""

import dataclasses
import functools
import json
import pathlib
import subprocess
import sys

import dm_env
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from flax import linen as nn

from experiments import a2c
from seedx import envs, types
from seedx.agents import acting_step, alphazero, ddpg, dqn, sac, vtrace
from seedx.app import export, policies
from seedx.envs import actions
from tests import conftest, programs
from tests.agents import cases

own_signals = programs.own_signals
compiled_once = programs.compiled_once

# `use_policy.py` in docs/tasks.md is a shorter form of this script.
USE_IT = """\
import json, pathlib, jax, jax.export, numpy as np
spec = json.loads(pathlib.Path("policy.json").read_text())
policy = jax.export.deserialize(pathlib.Path("policy.stablehlo").read_bytes())
zeros = lambda x: np.zeros((2, *x["shape"]), x["dtype"])  # For a batch of 2.
memory = [zeros(x) for x in spec["memory"]]
leaf = lambda x: "dtype" in x  # Of a nest of arrays.
timestep = jax.tree.map(zeros, spec["timestep"], is_leaf=leaf)
for step in range(3):  # Put what your environment gives into `timestep`.
  timestep["step_type"][:] = step > 0  # 0 in an episode's first step, else 1.
  action, memory = policy.call(timestep, memory)
"""

VECTOR = specs.Array((4,), np.float32)
IMAGE = specs.BoundedArray((1, 4, 3), np.uint8, 0, 255)
DISCRETE = specs.DiscreteArray(3)
MASK = {"observation": VECTOR, "legal": specs.Array((3,), bool)}
CONTINUOUS = specs.BoundedArray((2,), np.float32, -1.0, [1.0, 3.0])
UNBOUNDED = specs.BoundedArray((2, 1), np.float32, 0, np.inf)
SEVERAL = specs.BoundedArray((2,), np.int32, 0, [4, 2])


class Torso(nn.Module):
  """A torso for images that are too small for the torsos of seedx."""

  @nn.compact
  def __call__(self, observation):
    leaves = jax.tree.leaves(observation)
    rows = [jnp.float32(x.reshape(x.shape[0], -1)) / 100 for x in leaves]
    return nn.tanh(nn.Dense(8)(jnp.concatenate(rows, axis=-1)))


# For each kind of policy, fields of the agent's config, and the specs of
# observations and actions.
KINDS = {
  "lstm": ({"recurrent": True, "lstm_size": 8}, VECTOR, DISCRETE),
  "frames": (
    {"stack_frames": 3, "torso": Torso()},
    {"a": (IMAGE, VECTOR)},
    DISCRETE,
  ),
  "dqn": ({"epsilon_steps": 9, "dueling": True}, VECTOR, DISCRETE),
  "masked": ({}, MASK, DISCRETE),
  "continuous": ({"normalize_observations": True}, VECTOR, CONTINUOUS),
  "several": ({}, VECTOR, SEVERAL),
  "td3": ({"noise_correlation": 0.5}, VECTOR, CONTINUOUS),
  "sac": ({"normalize_observations": True}, VECTOR, CONTINUOUS),
  "soft_choices": ({}, VECTOR, DISCRETE),
  "nest": ({}, VECTOR, {"turn": DISCRETE, "pull": (UNBOUNDED,)}),
  "game": ({"num_simulations": 4}, None, None),
  "game_without_search": ({}, None, None),
}
# Agents of these kinds; other kinds have V-trace, or AlphaZero in games.
CONFIGS = {
  "dqn": dqn.Config(),
  "td3": ddpg.td3(),
  "sac": sac.Config(),
  "soft_choices": sac.Config(),
}
# Kinds in the fast set: one with a core state, one with statistics, one with
# groups of parameters.
FAST = [("lstm",), ("continuous",), ("td3",)]
ROWS = 5


@functools.cache
def make_policy(name):
  """Returns a policy that random parameters make far from uniform."""
  fields, observation, action = KINDS[name]
  if "game" in name:
    spec = envs.spec(envs.Config("seedx:TicTacToe"))
  else:
    spec = types.EnvironmentSpec(
      observation,
      actions.Actions(name, action).spec,
      action_mask="legal" if name == "masked" else None,
      native_action=action,
    )
  default = (alphazero if spec.game else vtrace).Config()
  config = CONFIGS.get(name, default)
  config = dataclasses.replace(config, hidden_sizes=(8,), **fields)
  agent = config.make(spec)
  state = cases.random_state(agent, config)
  policy = policies.Policy(
    directory=pathlib.Path(),
    name="fake",
    seed=0,
    env_steps=7,
    env=envs.Config("Fake-v0"),
    spec=spec,
    agent=agent,
    acting=agent.acting(state),
  )
  return policy.without_search() if name == "game_without_search" else policy


def random_timesteps(spec, rows, steps):
  """Yields time steps whose episodes end at random."""
  rng = np.random.default_rng(rows)
  for step in range(steps):
    kinds = rng.choice([0, 1, 1, 1, 2], rows) if step else np.zeros(rows)
    observation = conftest.random_observation(rng, spec, (rows,))
    if spec.action_mask is not None and spec.game is None:
      observation[spec.action_mask][:, 1] = True
    yield dm_env.TimeStep(
      step_type=kinds.astype(np.uint8),
      reward=rng.normal(size=rows).astype(np.float32),
      discount=np.ones(rows, np.float32),
      observation=observation,
    )


def in_nest_of(description, timestep):
  """Returns a time step as `policy.json` nests it, without tuples."""
  structure = jax.tree.structure(description, is_leaf=lambda x: "dtype" in x)
  return jax.tree.unflatten(structure, jax.tree.leaves(timestep._asdict()))


@pytest.mark.parametrize(
  "name", conftest.slow_but(FAST, [(name,) for name in KINDS])
)
def test_an_exported_policy_agrees_with_the_original(name):
  policy = make_policy(name)
  exported, spec = export.export(policy)
  assert spec["search"] == (name == "game")
  loaded = jax.export.deserialize(exported.serialize())
  assert loaded.platforms == ("cpu", "cuda", "tpu")
  assert json.loads(json.dumps(spec)) == spec
  call = jax.jit(loaded.call)
  agent = dataclasses.replace(policy.agent, step=policy.agent.greedy)

  @jax.jit
  def take_step(key, timestep, state):
    exploration = np.full(timestep.reward.shape, 0.5, np.float32)
    return acting_step.take(
      agent, policy.acting, key, timestep, state, exploration
    )

  live = acting_step.initial_state(agent, policy.spec, ROWS)
  memory = zeros = [
    np.zeros((ROWS, *leaf["shape"]), leaf["dtype"]) for leaf in spec["memory"]
  ]
  seen = []
  for step, timestep in enumerate(random_timesteps(policy.spec, ROWS, 8)):
    inputs = in_nest_of(spec["timestep"], timestep)
    assert described(inputs) == spec["timestep"]
    if step in (0, 4):
      # A batch of one row, with the memory of that row.
      one = call(*jax.tree.map(lambda x: np.asarray(x)[:1], (inputs, memory)))
    taken = take_step(jax.random.key(step), timestep, live)  # Any key works.
    action, memory = call(inputs, memory)
    live = taken.acting_state
    expected = policy.actions(np.asarray(taken.output.action))
    jax.tree.map(assert_close, in_lists(action), in_lists(expected))
    jax.tree.map(assert_close, memory, jax.tree.leaves(live))
    if step in (0, 4):
      rows = jax.tree.map(lambda x: np.asarray(x)[:1], (action, memory))
      jax.tree.map(assert_close, one, rows)
    in_words = described(in_lists(action))
    bounds = jax.tree.map(bounded, in_lists(policy.actions.native))
    leaf = {"is_leaf": lambda x: "dtype" in x}
    assert spec["action"] == jax.tree.map(dict.__or__, in_words, bounds, **leaf)
    parts = [np.reshape(x, (ROWS, -1)) for x in jax.tree.leaves(action)]
    seen.append(np.hstack(parts))
  assert len(np.unique(np.concatenate(seen), axis=0)) > 1
  # The memory matters only within an episode.
  for step_type in (0, 1):
    inputs["step_type"] = np.full(ROWS, step_type, np.uint8)
    after = [call(inputs, x)[1] for x in (zeros, memory)]
    differ = any(np.any(a != b) for a, b in zip(*after, strict=True))
    # The memory of all other agents is only the last action, and of a game's
    # agent the number of moves.
    has_memory = name in ("lstm", "frames") or policy.spec.game is not None
    assert differ == (step_type == 1 and has_memory)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sac", "nest"])
def test_an_exported_policy_samples_as_the_original_does(name):
  policy = make_policy(name)
  exported, spec = export.export(policy, sample=True)
  assert spec["greedy"] is False
  call = jax.jit(jax.export.deserialize(exported.serialize()).call)
  memory = [np.zeros((ROWS, *x["shape"]), x["dtype"]) for x in spec["memory"]]
  (timestep,) = random_timesteps(policy.spec, ROWS, 1)
  inputs, drawn = in_nest_of(spec["timestep"], timestep), []
  for seed in range(4):
    action, _ = call(inputs, memory, np.uint32(seed))
    expected, _ = jax.jit(policy.act)(
      timestep, policy.initial_state(ROWS), jax.random.key(seed)
    )
    jax.tree.map(assert_close, in_lists(action), in_lists(expected))
    drawn.append(np.hstack([np.ravel(x) for x in jax.tree.leaves(action)]))
  assert len(np.unique(drawn, axis=0)) > 1


def in_lists(nest):
  """Returns a nest with lists instead of tuples, as JSON has them."""
  if isinstance(nest, dict):
    return {key: in_lists(value) for key, value in nest.items()}
  return [*map(in_lists, nest)] if isinstance(nest, tuple) else nest


def bounded(spec):
  """Describes bounds as `policy.json` does."""
  bounds = {"minimum": spec.minimum.tolist(), "maximum": spec.maximum.tolist()}
  return {k: None if x == np.inf else x for k, x in bounds.items()}


def described(nest):
  """Describes a nest as `policy.json` does."""
  return jax.tree.map(
    lambda x: {"shape": list(x.shape[1:]), "dtype": str(x.dtype)}, nest
  )


def assert_close(actual, expected):
  assert np.isfinite(expected).all()
  if np.issubdtype(expected.dtype, np.floating):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
  else:
    np.testing.assert_array_equal(actual, expected)


def test_a_policy_that_does_not_search_cannot_do_so_without():
  with pytest.raises(
    types.ConfigError, match="expected an agent that searches"
  ):
    make_policy("lstm").without_search()


def test_an_agent_without_a_greedy_step_is_refused():
  policy = make_policy("lstm")
  agent = dataclasses.replace(policy.agent, greedy=None)
  with pytest.raises(types.ConfigError, match="greedy"):
    export.export(dataclasses.replace(policy, agent=agent))


# The program


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
  path = tmp_path_factory.mktemp("runs") / "run"
  words = "--num-envs 4 --unroll-length 8 --hidden-sizes 8 --total-steps 64"
  words = [*words.split(), "--run-dir", str(path)]
  assert programs.main(a2c, words) == 0
  return path


@pytest.mark.slow
def test_ten_lines_use_a_policy_without_seedx(run_dir, tmp_path, capfd):
  assert export.main([str(run_dir), "--output", str(tmp_path / "policy")]) == 0
  assert f"{tmp_path / 'policy'}.stablehlo" in capfd.readouterr().out
  assert len(USE_IT.splitlines()) <= 10
  (tmp_path / "use_it.py").write_text(
    USE_IT
    + "import sys\n"
    + 'assert not {"seedx", "flax", "rlax", "optax"} & set(sys.modules)\n'
    + "print(np.asarray(action))\n"
    + "print(json.dumps([x.tolist() for x in memory]))\n"
  )
  done = subprocess.run(
    [sys.executable, "use_it.py"],
    cwd=tmp_path,
    env={"JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert done.returncode == 0, done.stderr
  action, memory = done.stdout.splitlines()
  # The policy itself, as `evaluate` would load it.
  policy = policies.load(str(run_dir), "latest")
  live = policy.initial_state(2)
  timestep = acting_step.zero_inputs(policy.spec, 2).timestep
  for step_type in (0, 1, 1):
    timestep = timestep._replace(step_type=np.full(2, step_type, np.uint8))
    taken, live = policy.act(timestep, live)
  assert action == str(np.asarray(taken))
  pairs = zip(json.loads(memory), jax.tree.leaves(live), strict=True)
  for actual, expected in pairs:
    np.testing.assert_allclose(
      np.reshape(actual, expected.shape), expected, rtol=1e-5, atol=1e-6
    )
  description = json.loads((tmp_path / "policy.json").read_text())
  assert description["experiment"] == "a2c"
  assert description["env"] == "CartPole-v1"
  assert description["env_steps"] == policy.env_steps >= 64
  assert description["step_type"] == {"FIRST": 0, "MID": 1, "LAST": 2}
  assert description["action"] == {
    **{"shape": [], "dtype": "int32", "minimum": 0, "maximum": 1}
  }


@pytest.mark.slow
def test_a_policy_is_exported_without_its_search_on_request(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(export.foreign_code, "trusted", lambda *_: None)
  monkeypatch.setattr(policies, "load", lambda *_, **__: make_policy("game"))
  words = ["run", "--output", str(tmp_path / "policy"), "--without-search"]
  assert export.main(words) == 0
  description = json.loads((tmp_path / "policy.json").read_text())
  assert description["search"] is False and description["env_steps"] == 7


@pytest.mark.parametrize(
  ("words", "reason"),
  [
    ("{run} --output {tmp}/nowhere/policy", "/nowhere/policy"),
    ("{run} --without-search", "expected an agent that searches"),
  ],
)
def test_wrong_options_are_refused_in_one_line(
  words, reason, run_dir, tmp_path, capfd
):
  words = words.format(run=run_dir, tmp=tmp_path).split()
  assert reason in programs.refused(export, words, capfd).lower()
  assert list(tmp_path.iterdir()) == []
