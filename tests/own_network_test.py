"""A network from a file of the user's, trained by any pipeline."""

import os
import pathlib
import subprocess
import sys

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests import pipelines_test

_ROOT = pathlib.Path(__file__).parent.parent
# The simplest agent for each pipeline.
_CELLS = dict(reversed(pipelines_test.CELLS))


class Gained(nn.Module):
  """Features that one vector of gains makes, all 1 at first."""

  @nn.compact
  def __call__(self, observation):
    gains = self.param("gains", nn.initializers.ones, observation.shape[-1:])
    return nn.relu(nn.Dense(8)(observation * gains))


@pytest.mark.parametrize(
  ("pipeline", "name"),
  [
    pytest.param(*cell, marks=() if cell[0] == "sync" else pytest.mark.long)
    for cell in _CELLS.items()
  ],
)
def test_any_pipeline_trains_it(pipeline, name, tmp_path):
  own, nodes = pipelines_test.make(pipeline, name, tmp_path, torso=Gained())
  acting = []
  process = own.process
  last = pipelines_test.run_all(
    own, nodes, finish=lambda: acting.append(process.policy(process.saved()))
  )
  assert last["env_steps"] >= pipelines_test.TOTAL_STEPS
  leaves = jax.tree_util.tree_leaves_with_path(acting[0])
  gains = [
    leaf for path, leaf in leaves if "gains" in jax.tree_util.keystr(path)
  ]
  assert [leaf.shape for leaf in gains] == [(4,)]
  assert np.all(np.asarray(gains[0]) != 1.0)


_SCRIPT = """
import flax.linen as nn

from seedx import app
from seedx.acting import slots
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
    actors=slots.Config(num_actors=1, envs_per_actor=4),
    learner=learner.InboxConfig(unroll_length=5, batch_size=4),
  )
  run = app.train(config, run_dir="run", quiet=True)
  print("learned", run.metrics["learner_steps"] > 2)
  print("loaded", app.load("run", config=config).env_steps >= 400)
"""


@pytest.mark.slow
def test_the_script_itself_can_define_it_for_other_processes(tmp_path):
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
