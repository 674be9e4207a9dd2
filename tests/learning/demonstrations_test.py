"""Recordings as experience, and pipelines that mix them in."""

import dataclasses
import shutil

import chex
import dm_env
import jax
import numpy as np
import pytest

from experiments import impala
from seedx import app, checkpoint, types
from seedx.agents import base, dqn, r2d2
from seedx.app import record
from seedx.app.runs import checkpointer
from seedx.learning import demonstrations, learner
from seedx.runtime import memory
from tests import programs, running
from tests.pipelines import cells
from tests.recordings import episodes

own_signals = programs.own_signals
compiled_once = programs.compiled_once

SPEC = episodes.CARTPOLE
AGENT = dqn.Config(hidden_sizes=(8,), n_step=2)


def test_episodes_become_one_unroll(tmp_path):
  agent = r2d2.Config(hidden_sizes=(8,), lstm_size=4).make(SPEC)
  share = demonstrations.unroll_of(
    episodes.write(tmp_path, lengths=(40, 30, 70)), agent, SPEC
  )
  unroll, inputs = share.data, share.data.inputs
  number = inputs.timestep.observation[:, 0, 0] * 100
  np.testing.assert_allclose(number, np.arange(140), rtol=1e-6)
  kinds = inputs.timestep.step_type[:, 0]
  assert np.flatnonzero(kinds == dm_env.StepType.FIRST).tolist() == [0, 40, 70]
  assert np.flatnonzero(kinds == dm_env.StepType.LAST).tolist() == [39, 69, 139]
  before = np.concatenate([[0], unroll.action[:-1, 0]])
  before[[0, 40, 70]] = 0
  np.testing.assert_array_equal(inputs.action_tm1[:, 0], before)
  assert (unroll.version == base.UNKNOWN_VERSION).all()
  assert share.priorities.shape == (1, 140 - agent.needs.window + 1)
  zeros = agent.initial_core_state(1)
  chex.assert_trees_all_equal(unroll.core_state, zeros)


def test_steps_of_unknown_versions_have_no_policy_lag(tmp_path):
  agent = AGENT.make(SPEC)
  unroll = demonstrations.unroll_of(episodes.write(tmp_path), agent, SPEC).data
  assert agent.needs.lag(types.Sample(unroll, ()), 7) == (0, 0)
  mixed = unroll._replace(
    version=np.where(np.arange(47)[:, None] % 2, 3, base.UNKNOWN_VERSION)
  )
  lag, steps = agent.needs.lag(types.Sample(mixed, ()), 7)
  resets = 2
  assert 47 // 2 - resets <= steps <= 47 // 2 and lag == 4 * steps


def other_spec():
  return dataclasses.replace(
    SPEC, action=dm_env.specs.DiscreteArray(3, np.int32)
  )


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"spec": other_spec()}, "to have int32 .* as action, like"),
    ({"lengths": ()}, "expected episodes in"),
    ({"lengths": (2,)}, "expected at least 3 time steps"),
  ],
)
def test_a_recording_that_does_not_fit_is_refused(tmp_path, changes, message):
  path = episodes.write(tmp_path, **changes)
  with pytest.raises(types.ConfigError, match=message):
    demonstrations.unroll_of(path, AGENT.make(SPEC), SPEC)


def test_a_recording_larger_than_the_memory_is_refused(tmp_path, monkeypatch):
  path = episodes.write(tmp_path)
  monkeypatch.setattr(memory, "free_bytes_of_machine", lambda: 1000)
  with pytest.raises(types.ConfigError, match="that fits into memory"):
    demonstrations.unroll_of(path, AGENT.make(SPEC), SPEC)


def with_demonstrations(config, path, ratio=0.5):
  changed = dataclasses.replace(
    config.replay, demonstrations=path, demonstration_ratio=ratio
  )
  return dataclasses.replace(config, replay=changed)


@pytest.mark.parametrize(
  ("pipeline", "name", "path", "ratio", "message"),
  [
    ("sync", "dqn", "data", 0.0, "demonstrations and a demonstration_ratio"),
    ("sync", "dqn", "", 0.5, "demonstrations and a demonstration_ratio"),
    ("sync", "dqn", "nowhere", 0.5, "the directory of a recording"),
    ("sync", "alphazero", "data", 0.5, "learn from the actions of others"),
    ("gorila", "dqn", "data", 0.5, "expected no demonstrations"),
  ],
)
def test_demonstrations_that_cannot_be_used_are_refused(
  tmp_path, pipeline, name, path, ratio, message
):
  episodes.write(tmp_path / "data")
  config = cells.config_of(pipeline, name, tmp_path)
  path = str(tmp_path / path) if path else ""
  with pytest.raises(types.ConfigError, match=message):
    running.Own(with_demonstrations(config, path, ratio))


def test_pipelines_without_a_replay_have_no_demonstrations(capfd):
  words = ["--demonstrations", "data"]
  refused = programs.refused(impala, words, capfd)
  assert "unrecognized arguments: --demonstrations" in refused


@pytest.mark.slow
@pytest.mark.parametrize(
  ("pipeline", "name"),
  [
    ("sync", "rainbow"),
    ("sync", "sac"),
    ("seed", "dqn"),
    ("apex", "r2d2"),
    ("anakin", "dqn"),
    ("anakin", "ddpg"),
  ],
)
def test_a_pipeline_learns_from_demonstrations_alone(pipeline, name, tmp_path):
  config = cells.config_of(pipeline, name, tmp_path)
  path = str(tmp_path / "data")
  words = f"--env {config.env.env} --episodes 4 --output {path}"
  assert record.main(words.split()) == 0
  made = running.Own(with_demonstrations(config, path, 1.0))
  last = cells.run_all(made)
  assert last["learner_steps"] > 10 and last["policy_lag"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ["sync", "anakin"])
def test_a_resume_is_bitwise_and_saves_no_demonstrations(pipeline, tmp_path):
  path = episodes.write(tmp_path / "data", lengths=(997,))
  config = with_demonstrations(
    cells.config_of(pipeline, "rainbow", tmp_path), path, 0.25
  )
  app.train(config, run_dir=str(tmp_path / "run"), quiet=True)
  longer = dataclasses.replace(config, total_steps=2 * cells.TOTAL_STEPS)
  ends = []
  for name in ("one", "other"):
    shutil.copytree(tmp_path / "run", tmp_path / name)
    app.train(longer, resume=str(tmp_path / name), quiet=True)
    folder = checkpoint.Checkpoints(checkpointer.directory(tmp_path / name))
    step, arrays = folder.steps()[-1], {}
    for item in ("run", "replay"):
      if folder.has(step, item):
        arrays |= {
          f"{item}/{k}": x for k, x in folder.restore(step, item).items()
        }
    ends.append({k: x for k, x in arrays.items() if "wall_seconds" not in k})
  chex.assert_trees_all_equal(*ends)
  # The priorities of demonstrations are saved, and have changed.
  (tree,) = (x for k, x in ends[0].items() if k.endswith("fixed/tree/0"))
  assert len(np.unique(tree)) > 3
  assert not any(997 in x.shape for x in ends[0].values())


@pytest.mark.slow
def test_seeds_of_anakin_share_the_demonstrations(tmp_path):
  path = episodes.write(tmp_path / "data", lengths=(997,))
  config = with_demonstrations(
    cells.config_of("anakin", "dqn", tmp_path), path, 0.5
  )
  config = dataclasses.replace(
    config, num_seeds=8, learner=learner.Config(unroll_length=5)
  )
  made = running.Own(config)
  cells.run_all(made)
  training = made.process.parts["agent"]
  state = [x.shape for x in jax.tree.leaves(training._state.replay)]
  assert not any(997 in shape for shape in state)
  recorded = [x.shape for x in jax.tree.leaves(training._recorded)]
  assert max(recorded)[0] == 997 and all(8 not in x[:1] for x in recorded)
