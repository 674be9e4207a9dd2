"""Custom networks and memories, trained by any pipeline."""

import dataclasses
import functools
import inspect
import os
import pathlib
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from flax import nnx

from examples import memory
from seedx import app, types
from seedx.acting import thin_actor
from seedx.agents import dqn, ppo, r2d2, vtrace
from seedx.learning import learner
from seedx.pipelines import anakin, seed, sync
from tests import conftest
from tests.agents import cases
from tests.networks import helpers
from tests.pipelines import cells

_ROOT = pathlib.Path(__file__).parents[2]
# The first and simplest agent of each pipeline.
_CELLS = dict(reversed(cells.CELLS))


class Gained(nn.Module):
  """A torso that multiplies an observation by gains, which are 1 at first."""

  @nn.compact
  def __call__(self, observation):
    gains = self.param("gains", nn.initializers.ones, observation.shape[-1:])
    return nn.relu(nn.Dense(8)(observation * gains))


@pytest.mark.parametrize(
  ("pipeline", "name"),
  [
    pytest.param(
      *cell, marks=pytest.mark.slow if cell[0] == "sync" else pytest.mark.long
    )
    for cell in _CELLS.items()
  ],
)
def test_any_pipeline_trains_a_custom_torso(pipeline, name, tmp_path):
  running = cells.make(pipeline, name, tmp_path, torso=Gained())
  acting = []
  process = running.process
  last = cells.run_all(
    running, lambda: acting.append(process.policy(process.saved()))
  )
  assert last["env_steps"] >= cells.TOTAL_STEPS
  leaves = jax.tree_util.tree_leaves_with_path(acting[0])
  gains = [
    leaf for path, leaf in leaves if "gains" in jax.tree_util.keystr(path)
  ]
  assert [leaf.shape for leaf in gains] == [(4,)]
  assert np.all(np.asarray(gains[0]) != 1.0)


_SCRIPT = """
import flax.linen as nn

from seedx import app
from seedx.acting import protocol
from seedx.agents import a2c
from seedx.learning import learner
from seedx.pipelines import impala


class Torso(nn.Module):
  @nn.compact
  def __call__(self, observation):
    return nn.relu(nn.Dense(8)(observation))


if __name__ == "__main__":
  config = impala.Config(
    agent=a2c.Config(torso=Torso()),
    total_steps=400,
    actors=protocol.Actors(num_actors=1, envs_per_actor=4),
    learner=learner.InboxConfig(unroll_length=5, batch_size=4),
  )
  run = app.train(config, run_dir="run", quiet=True)
  print("learned", run.metrics["learner_steps"] > 2)
  print("loaded", app.load("run", config=config).env_steps >= 400)
"""


@pytest.mark.slow
def test_a_script_can_define_a_torso_for_its_other_processes(tmp_path):
  script = tmp_path / "script.py"
  script.write_text(_SCRIPT)
  done = subprocess.run(
    [sys.executable, script.name],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": str(_ROOT)},
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert done.stdout.split() == ["learned", "True", "loaded", "True"], (
    done.stderr
  )


# Memories

# The window is shorter than a stream and longer than the shortest episode.
CORES = {
  "gru": memory.GRU(6),
  "transformer": memory.Transformer(size=8, layers=2, window=4),
}
LENGTH, BATCH, FEATURES = 12, 3, 5
SPEC = types.EnvironmentSpec(
  specs.Array((4,), np.float32), specs.DiscreteArray(2)
)


class Wrong(nn.Module):
  """A torso with layers that agents cannot have."""

  layer: str

  @nn.compact
  def __call__(self, observation):
    features = nn.Dense(8)(observation)
    match self.layer:
      case "batch norm":
        return nn.BatchNorm(use_running_average=False)(features)
      case "dropout":
        return nn.Dropout(0.1, deterministic=False)(features)
      case "no batch":
        return features.mean(axis=0)
      case "several":
        return {"features": features}
    return features


class OfNnx(nnx.Module):
  """A module of Flax NNX."""


def function(observation):
  return observation


@pytest.mark.parametrize(
  ("torso", "message"),
  [
    (Wrong("batch norm"), r"collections batch_stats; .*nn\.LayerNorm"),
    (Wrong("dropout"), r'Dropout_0 needs PRNG for "dropout"; .*deterministic'),
    (Wrong("no batch"), r"\[1, 'F'\] of the torso Wrong.*found \[8\]"),
    (Wrong("several"), "found dict"),
    (Wrong, "the class Wrong"),
    (function, "the function function"),
    (OfNnx(), "an instance of OfNnx"),
  ],
)
def test_a_torso_that_cannot_be_used_is_named(torso, message):
  with pytest.raises(types.ConfigError, match=message):
    agent = ppo.Config(torso=torso).make(SPEC)
    jax.eval_shape(agent.init, jax.random.key(0))


@functools.cache
def unrolled(name):
  """Returns a core's `apply`, arguments, and what `apply` returns for them."""
  core, rng = CORES[name], np.random.default_rng(0)
  features = rng.normal(size=(LENGTH, BATCH, FEATURES)).astype(np.float32)
  step_type = np.ones((LENGTH, BATCH), np.uint8)
  step_type[[0, 3, 9], 0] = 0
  step_type[5, 1] = 0
  params = helpers.random_params(
    core, features, step_type, core.initial_state(BATCH)
  )
  apply = jax.jit(core.apply)
  # With this state, streams 1 and 2 begin within an episode.
  _, state = apply(params, features, step_type, core.initial_state(BATCH))
  arguments = params, features, step_type, state
  return apply, arguments, apply(*arguments)


def assert_close(actual, expected):
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
    actual,
    expected,
  )


def test_the_notebook_shows_the_memories_of_the_example():
  source = (_ROOT / "colab" / "bring_your_own.py").read_text()
  for kind in (memory.GRU, memory.Transformer):
    assert inspect.getsource(kind) in source


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("parts", [LENGTH, 2])
def test_a_memory_unrolls_the_same_in_parts(name, parts):
  apply, (params, features, step_type, state), expected = unrolled(name)
  outputs = []
  for now in np.split(np.arange(LENGTH), parts):
    output, state = apply(params, features[now], step_type[now], state)
    outputs.append(output)
  assert_close((np.concatenate(outputs), state), expected)
  start = CORES[name].initial_state(BATCH)
  assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == (
    jax.tree.map(lambda x: (x.shape, x.dtype), start)
  )


@pytest.mark.parametrize("name", CORES)
def test_a_memory_forgets_at_the_first_step_of_an_episode(name):
  apply, (params, features, step_type, state), (expected, _) = unrolled(name)
  other = features.copy()
  other[2, 0] += 1.0
  # Stream 2 has no reset, so a change affects outputs for at least a window.
  other[2, 2] += 1.0
  outputs, _ = apply(params, other, step_type, state)
  differs = np.any(np.abs(outputs - expected) > 1e-6, axis=-1)
  assert differs[2, 0] and not np.any(np.delete(differs[:, 0], 2))
  assert np.all(differs[2:6, 2]) and not np.any(differs[:2, 2])
  start = CORES[name].initial_state(BATCH)
  outputs, _ = apply(params, features, step_type, start)
  differs = np.any(np.abs(outputs - expected) > 1e-6, axis=-1)
  assert not np.any(differs[:, 0])
  assert differs[0, 1] and not np.any(differs[5:, 1])


@pytest.mark.parametrize(
  ("config", "towers"),
  [
    (vtrace.Config(recurrent=True, hidden_sizes=(8,), towers="apart"), 2),
    (r2d2.Config(hidden_sizes=(8,), burn_in=2, sequence_length=6), 1),
  ],
  ids=["vtrace_apart", "r2d2"],
)
def test_an_agent_has_the_given_memory_in_each_tower(config, towers):
  core = CORES["transformer"]
  agent = dataclasses.replace(config, core=core).make(SPEC)
  state = jax.eval_shape(agent.init, jax.random.key(0))
  cores = [x for x in state.params["params"] if x.startswith("Transformer")]
  assert len(cores) == towers
  core_state = agent.initial_core_state(3)
  jax.tree.map(
    np.testing.assert_array_equal,
    core_state.memory,
    (core.initial_state(3),) * towers,
  )


class Sum(nn.Module):
  """A memory that sums features over an episode, starting from 1."""

  def initial_state(self, batch_size):
    return np.ones((batch_size, 2), np.float32)

  @nn.compact
  def __call__(self, features, step_type, state):
    x = nn.Dense(2)(features)

    def step(state, inputs):
      x, first = inputs
      state = jnp.where(first[:, None], 1.0, state) + x
      return state, state

    state, sums = jax.lax.scan(step, state, (x, step_type == 0))
    return sums, state


def q_mean(stored_state):
  """Returns the mean Q-value as a function of the stored state's value."""
  config = r2d2.Config(
    hidden_sizes=(8,),
    dueling=False,
    burn_in=0,
    sequence_length=6,
    core=Sum(),
    stored_state=stored_state,
  )
  agent = config.make(SPEC)
  state = cases.random_state(agent, config)
  unroll = conftest.random_unroll(agent, SPEC, 7, [0.0] * BATCH)

  @jax.jit
  def function(memory):
    core_state = unroll.core_state._replace(memory=(memory,))
    weight = np.ones(BATCH, np.float32)
    batch = types.Sample(unroll._replace(core_state=core_state), weight)
    return agent.gradients(state, jax.random.key(0), batch)[1].metrics["q_mean"]

  return lambda value: function(np.full((BATCH, 2), value, np.float32))


def test_a_sequence_begins_with_the_stored_state_or_a_fresh_one():
  stored, fresh = q_mean(stored_state=True), q_mean(stored_state=False)
  assert len({float(stored(x)) for x in (0.0, 1.0, 3.0)}) == 3
  # A fresh state of `Sum` is all ones, like the stored state here.
  np.testing.assert_allclose(fresh(3.0), stored(1.0), rtol=1e-6)


def test_a_core_for_an_agent_without_memory_is_refused():
  with pytest.raises(types.ConfigError, match="recurrent True"):
    ppo.Config(core=Sum())
  with pytest.raises(TypeError, match="core"):
    dqn.Config(core=Sum())


@pytest.mark.parametrize("config", [ppo.Config(recurrent=True), r2d2.Config()])
def test_a_module_that_is_no_core_is_refused(config):
  with pytest.raises(types.ConfigError, match=r"initial_state.*GRUCell"):
    dataclasses.replace(config, core=nn.GRUCell(8))


@pytest.mark.slow
@pytest.mark.parametrize(
  ("pipeline", "name"),
  [
    ("a3c", "a2c"),
    ("gorila", "r2d2"),
    ("apex", "r2d2"),
  ],
)
def test_any_pipeline_trains_a_memory(pipeline, name, tmp_path):
  """The other pipelines learn below, which takes little longer."""
  fields = {"core": memory.Transformer(size=8, window=4)}
  if name != "r2d2":
    fields |= {"recurrent": True, "towers": "apart"}
  last = cells.run_all(cells.make(pipeline, name, tmp_path, **fields))
  assert last["env_steps"] >= cells.TOTAL_STEPS
  assert last["learner_steps"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
  ("pipeline", "core"),
  [
    ("sync", memory.Transformer()),
    ("seed", memory.Transformer()),
    ("anakin", memory.GRU()),
  ],
)
def test_a_memory_remembers_the_bit(pipeline, core, tmp_path):
  """The best mean return without a memory is 0."""
  example = memory.EXPERIMENT.config
  agent = dataclasses.replace(memory.AGENT, core=core)
  common = {"env": example.env, "agent": agent, "total_steps": 60_000}
  if pipeline == "seed":
    config = seed.Config(
      **common,
      actors=thin_actor.Config(num_actors=1, envs_per_actor=32),
      learner=learner.InboxConfig(unroll_length=16, batch_size=32),
    )
  else:
    kind = {"sync": sync, "anakin": anakin}[pipeline]
    config = kind.Config(**common, num_envs=32, learner=example.learner)
  run = app.train(config, run_dir=tmp_path, quiet=True, stop_at=0.95)
  assert run.metrics["episode_return"] >= 0.9
