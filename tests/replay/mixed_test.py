"""A user's replay: a mix of demonstrations and new experience, as in R2D3.

Paine et al. 2019, https://arxiv.org/abs/1909.01387, section 3.
"""

import dataclasses
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import replay, types
from seedx.replay import sum_tree
from tests import running
from tests.pipelines import cells
from tests.replay import cases

WINDOW = 3
WINDOWS = cases.LENGTH - WINDOW + 1


class State(NamedTuple):
  new: Any
  old: Any


@dataclasses.dataclass(frozen=True)
class Mixed:
  """Two replays; a window is a demonstration with the given probability."""

  new: replay.Replay
  old: replay.Replay
  probability: float
  demonstrations: Any

  def init(self, example):
    old = self.old.init(example)
    return State(
      self.new.init(example), self.old.add(old, self.demonstrations(example))
    )

  def add(self, state, share):
    return state._replace(new=self.new.add(state.new, share))

  def sample(self, state, rng_key, size, done):
    choice_key, *keys = jax.random.split(rng_key, 3)
    is_old = jax.random.uniform(choice_key, (size,)) < self.probability
    pairs = zip((self.new, self.old), state, keys, strict=True)
    (new, new_windows), (old, old_windows) = (
      each.sample(part, key, size, done) for each, part, key in pairs
    )

    def choose(axis):
      def where_old(a, b):
        shape = [1] * a.ndim
        shape[axis] = size
        return jnp.where(is_old.reshape(shape), b, a)

      return where_old

    unrolls = [x.unroll._replace(core_state=()) for x in (new, old)]
    states = [x.unroll.core_state for x in (new, old)]
    unroll = jax.tree.map(choose(1), *unrolls)._replace(
      core_state=jax.tree.map(choose(0), *states)
    )
    weight = choose(0)(new.importance_weight, old.importance_weight)
    nowhere = sum_tree.NOWHERE
    windows = (
      new_windows._replace(leaf=jnp.where(is_old, nowhere, new_windows.leaf)),
      old_windows._replace(leaf=jnp.where(is_old, old_windows.leaf, nowhere)),
    )
    return types.Sample(unroll, weight), windows

  def update(self, state, windows, priorities):
    parts = zip((self.new, self.old), state, windows, strict=True)
    return State(*(each.update(x, y, priorities) for each, x, y in parts))

  def measure(self, state):
    return {"demonstrations": state.old.ring.inserted}

  def kept(self, state):
    return state.new

  def with_kept(self, state, kept):
    return state._replace(new=kept)


@dataclasses.dataclass(frozen=True)
class Config(replay.PrioritizedConfig):
  probability: float = 0.25

  def make(self, **sizes):
    prioritized = super().make(**sizes)
    return Mixed(prioritized, prioritized, self.probability, without_resets)


def marked(example):
  """Returns demonstrations, marked by a version that no update has."""
  version = example.data.version
  data = example.data._replace(version=jnp.full_like(version, 10**6))
  return types.Share(data, jnp.ones(example.priorities.shape, jnp.float32))


def without_resets(example):
  """Returns `marked` demonstrations, without the resets of the example."""
  share = marked(example)
  inputs = share.data.inputs
  step_type = jnp.ones_like(inputs.timestep.step_type)
  inputs = inputs._replace(
    timestep=inputs.timestep._replace(step_type=step_type)
  )
  return share._replace(data=share.data._replace(inputs=inputs))


def test_windows_are_mixed_and_each_replay_gets_its_own_priorities():
  prioritized = replay.Prioritized(8, WINDOW)
  mixed = Mixed(prioritized, prioritized, 0.25, marked)
  share = cases.share_of(range(4), np.ones((4, WINDOWS), np.float32))
  state = jax.jit(mixed.add)(jax.jit(mixed.init)(share), share)
  sample = jax.jit(mixed.sample, static_argnums=2)
  drawn, windows = sample(state, jax.random.key(0), 4000, 0.0)
  is_old = np.asarray(drawn.unroll.version[0]) == 10**6
  assert np.mean(is_old) == pytest.approx(0.25, abs=0.03)
  after = jax.jit(mixed.update)(state, windows, jnp.full(4000, 100.0))
  for index, (before, now) in enumerate(zip(state, after, strict=True)):
    changed = np.flatnonzero(np.asarray(before.tree[0] != now.tree[0]))
    leaf = np.asarray(windows[index].leaf)
    leaf = leaf[leaf != sum_tree.NOWHERE]
    assert len(leaf) == np.sum(is_old == index)
    np.testing.assert_array_equal(changed, np.unique(leaf))


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ["sync", "anakin"])
def test_a_pipeline_learns_from_both_replays_and_saves_only_the_new_experience(
  pipeline, tmp_path
):
  """The pipeline is given only the config of a mixed replay."""
  config = cells.config_of(pipeline, "dqn", tmp_path, 1_000)
  mixed = Config(**cells.REPLAY, probability=0.5)
  config = dataclasses.replace(config, replay=mixed)
  run = running.Own(config)
  last = cells.run_all(run)
  assert last["learner_steps"] > 10
  # A demonstration's version is 10^6, so each demonstration in a batch of 8
  # lowers the mean policy lag by 10^6 / 8.
  lags = [x.get("policy_lag") for x in run.sink.lines]
  counts = [round(-8 * lag / 10**6) for lag in lags if lag is not None]
  assert set(counts) <= set(range(9))
  assert 0 < np.mean(counts) < 8
  made = run.process
  kept = made.replay.saved()() if made.replay else made.parts["agent"].saved()
  names = {jax.tree_util.keystr(x) for x, _ in jax.tree.leaves_with_path(kept)}
  assert any("inserted" in name for name in names)
  assert not any(re.search(r"\.old\b", name) for name in names)
