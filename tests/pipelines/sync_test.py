"""The synchronous pipeline end to end."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import envs, replay, types
from seedx.agents import a2c, dqn, ppo
from seedx.learning import learner, replay_source, updates
from seedx.pipelines import sync
from seedx.runtime import counters, process
from tests import programs, running

compiled_once = programs.compiled_once
AGENTS = {"a2c": a2c, "ppo": ppo, "dqn": dqn}
NUM_ENVS, UNROLL_LENGTH = 4, 5
REPLAY = replay.Config(
  replay_capacity=400,
  replay_min_steps=40,
  replay_batch_size=8,
  replay_ratio=1.0,
)


def agent_config(name, **fields):
  """Returns a small agent without schedules."""
  small = {
    "hidden_sizes": (8,),
    "learning_rate": 1e-2,
    "learning_rate_end": 1.0,
    "reward_scale": 1.0,
  }
  if name == "ppo":
    small |= {"epochs": 2, "minibatches": 2}
  if name == "dqn":
    small |= {"n_step": 1, "epsilon_end": 0.05, "epsilon_steps": 0}
  return AGENTS[name].Config(**small | fields)


def config_of(name, fields=None, **changes):
  config = sync.Config(
    agent=agent_config(name, **(fields or {})),
    total_steps=110,
    num_envs=NUM_ENVS,
    learner=learner.Config(unroll_length=UNROLL_LENGTH),
    replay=REPLAY if name == "dqn" else None,
  )
  return running.replaced(config, **changes)


@dataclasses.dataclass(frozen=True)
class After:
  """Counts and metrics after one step of all environments."""

  updates: int
  env_steps: int
  learned_steps: float
  metrics: dict
  compiled: int


def train(config):
  """Trains; returns the process, and an `After` for each step."""
  made, seen = running.Own(config), []
  with running.compiled() as compiled:
    for _ in made.process.steps():
      made.learner.finish()
      seen.append(
        After(
          made.learner.version,
          made.acted.env_steps,
          made.learner.learned_steps,
          made.learner.measure(),
          len(compiled),
        )
      )
  return made, seen


def distance(a, b):
  a, b = jax.device_get((a, b))
  gaps = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), a, b)
  return max(jax.tree.leaves(gaps))


@functools.cache
def trained(name):
  return train(config_of(name))


def test_the_newest_parameters_act_and_each_unroll_is_learned_from_at_once():
  made, seen = trained("a2c")
  for i, now in enumerate(seen):
    assert now.updates == i // UNROLL_LENGTH
    if i % UNROLL_LENGTH == 0:
      assert now.learned_steps == now.env_steps
    else:
      assert now.learned_steps < now.env_steps
    assert now.metrics["policy_lag"] in (None, 0.0)
  assert made.acted.env_steps >= 110 > seen[-2].env_steps
  assert {"policy_lag", "loss_value"} <= set(seen[-1].metrics)
  assert all(np.isfinite(x) for x in seen[-1].metrics.values())
  assert made.learner.state.updates == seen[-1].updates >= 5


def test_the_replay_ratio_sets_the_number_of_updates():
  _, seen = trained("dqn")
  # An unroll has one time step more than its 5 new ones.
  unrolls = seen[UNROLL_LENGTH::UNROLL_LENGTH]
  begin = next(i for i, now in enumerate(unrolls) if now.updates)
  assert unrolls[begin].env_steps >= 40 > unrolls[begin - 1].env_steps
  for now in unrolls[begin:]:
    due = now.env_steps - unrolls[begin - 1].env_steps
    # Not learned yet: less than a batch, and the last batch's resets.
    assert 0 <= due - now.learned_steps < 2 * 8
    assert now.learned_steps <= now.updates * 8
  assert seen[-1].updates >= 8
  assert seen[-1].learned_steps > 7 * seen[-1].updates
  assert np.isfinite(seen[-1].metrics["loss"])


# PPO's updates also draw random numbers, unlike A2C's.
@pytest.mark.parametrize(
  "name", ["a2c", "dqn", pytest.param("ppo", marks=pytest.mark.slow)]
)
def test_runs_with_the_same_seed_are_equal_and_with_another_seed_differ(name):
  made, _ = trained(name)
  same, _ = train(config_of(name))
  other, _ = train(config_of(name, seed=1))
  chex.assert_trees_all_equal(same.learner.state, made.learner.state)
  assert same.acted.env_steps == made.acted.env_steps
  params = made.learner.state.params
  assert distance(params, other.learner.state.params) > 0.01


@pytest.mark.parametrize("name", ["a2c", "dqn"])
def test_nothing_is_compiled_after_the_first_updates(name):
  _, seen = trained(name)
  counts = [now.compiled for now in seen if now.updates >= 3]
  assert len(counts) > 5
  assert counts[0] == counts[-1] > 0


@pytest.mark.parametrize("cores", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_due_updates_in_one_program_equal_single_ones(cores, monkeypatch):
  """Some updates are skipped, and resets make more updates due."""
  whole, combine = updates.OnCore.whole, replay_source.ReplaySource.combine

  def skipping(on_core, state, inputs):
    result = whole(on_core, state, inputs)
    skipped = result.skipped | (inputs.version % 7 == 3)
    after = jax.tree.map(
      lambda old, new: jnp.where(skipped, old, new), state, result.state
    )
    return result._replace(state=after, skipped=skipped)

  monkeypatch.setattr(updates.OnCore, "whole", skipping)
  config = config_of(
    "dqn",
    total_steps=260,
    learner=learner.Config(
      unroll_length=UNROLL_LENGTH, learner_devices=tuple(range(cores))
    ),
    replay=replay.Config(
      replay_capacity=200,
      replay_min_steps=40,
      replay_batch_size=8,
      replay_ratio=5.0,
    ),
  )
  seen, calls = [], []
  for combined in (True, False):
    monkeypatch.setattr(
      replay_source.ReplaySource,
      "combine",
      lambda source, update, combined=combined: (
        calls.append(source) or combine(source, update) if combined else None
      ),
    )
    made, steps = train(config)
    drawn = made.learner.source.saved()()
    seen.append((made.learner.state, drawn, steps[-1]))
  (state, drawn, last), (expected, expected_drawn, single) = seen
  assert len(calls) == 1 and last.updates == single.updates >= 100
  chex.assert_trees_all_close(state.params, expected.params, rtol=1e-5)
  chex.assert_trees_all_close(drawn, expected_drawn, rtol=1e-5)
  names = ["updates_skipped", "learner_steps", "learned_steps", "loss"]
  assert [last.metrics[x] for x in names] == pytest.approx(
    [single.metrics[x] for x in names], rel=1e-4
  )
  assert last.metrics["updates_skipped"] == (last.updates + 3) // 7
  assert last.learned_steps < 8 * last.metrics["learner_steps"]


PONG = envs.Config("Pong-v5", {"img_height": 36, "img_width": 36})


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "env", "fields"),
  [
    ("a2c", envs.Config("Game2048-v1"), {}),
    ("ppo", envs.Config("Pendulum-v1"), {"normalize_observations": True}),
    ("dqn", PONG, {"stack_frames": 2}),
  ],
  ids=lambda x: getattr(x, "env", None) or str(x),
)
def test_every_kind_of_environment_and_network_learns(name, env, fields):
  config = config_of(name, fields, env=env, total_steps=90)
  made, seen = train(config)
  first, last = seen[0], seen[-1]
  assert first.updates == 0
  assert last.updates >= 4
  assert all(np.isfinite(x) for x in last.metrics.values())
  if name != "dqn":
    at_update = [x for x in seen[1:] if x.learned_steps == x.env_steps]
    assert len(at_update) == last.updates
  start, end = running.Own(config).learner.state, made.learner.state
  assert distance(start.params, end.params) > 1e-3
  if fields.get("normalize_observations"):
    assert distance(start.statistics, end.statistics) > 0.01


def test_a_stop_ends_a_run_with_its_last_line_written():
  made = running.Own(config_of("a2c", log_seconds=0.0))
  checks = []

  def check():
    checks.append(made.acted.env_steps)
    if len(checks) == 12:
      made.stop.set()

  last = made.run(check)
  assert len(checks) == 12
  assert made.sink.lines[-1] == last
  assert last["learner_steps"] == made.learner.version == 2
  assert 12 * NUM_ENVS >= last["env_steps"] >= 10 * NUM_ENVS
  assert last["policy_lag"] == 0.0
  names = "learning_wait_experience", "acting_wait_environments"
  assert all(name in last for name in names)


@pytest.mark.parametrize(
  ("name", "changes", "message"),
  [
    ("ppo", {"micro_batches": 2}, "minibatches of its own"),
    (
      "dqn",
      {"num_envs": 6, "learner_devices": (0, 1, 2, 3)},
      "num_envs that .* 4 learner devices",
    ),
    (
      "a2c",
      {"num_envs": 6, "learner_devices": (0, 1), "micro_batches": 2},
      "num_envs that .* 2 learner devices and micro_batches is 2",
    ),
  ],
)
def test_invalid_options_are_refused(name, changes, message):
  with pytest.raises(types.ConfigError, match=message):
    config_of(name, **changes).learn(process.Context())


@pytest.mark.slow
def test_environments_explore_by_the_ladder_and_the_lowest_quarter_is_reported(
  monkeypatch,
):
  config = config_of(
    "dqn",
    {"epsilon_ladder": True},
    num_envs=8,
    total_steps=1400,
    replay_ratio=0.05,
  )
  made, ended = running.Own(config), []
  add = counters.LocalEnvironments.add

  def spy(self, rows):
    ended.append(~np.isnan(rows.episode_return))
    add(self, rows)

  monkeypatch.setattr(counters.LocalEnvironments, "add", spy)
  last = made.run()
  ended = np.sum(ended, axis=0)
  assert ended.min() >= 2
  assert last["episodes"] == ended[6:].sum()

  (state,) = made.learner.source.states
  exploration = np.asarray(state.unrolls.inputs.exploration)
  ladder = np.resize(0.4 ** (1.0 + np.arange(8)), len(exploration))
  expected = np.broadcast_to(ladder[:, None], exploration.shape)
  np.testing.assert_allclose(exploration, expected, 1e-5)
