"""Schedules and ratios follow env steps, however short episodes are."""

import dataclasses
from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import envs, replay
from seedx.acting import evaluator
from seedx.agents import base
from seedx.envs import functional, functional_adapter
from tests import conftest, fakes, programs, running
from tests.pipelines import cells

compiled_once = programs.compiled_once


class State(NamedTuple):
  time: jax.Array
  steps: jax.Array


class Short(functional.Environment):
  """An environment that counts its env steps; all episodes are equally long.

  The observation is (steps of this episode, steps of all episodes).
  """

  observation = dm_env.specs.Array((2,), np.float32, "observation")
  action = dm_env.specs.DiscreteArray(2, np.int32, "action")

  def __init__(self, length):
    self.length = length

  def init(self, rng_key):
    return State(jnp.int32(self.length), jnp.int32(0))

  def step(self, state, action, rng_key):
    first = state.time == self.length
    time = jnp.where(first, 0, state.time + 1)
    steps = state.steps + ~first
    last = time == self.length
    kind = jnp.where(first, 0, jnp.where(last, 2, 1)).astype(jnp.uint8)
    timestep = dm_env.TimeStep(
      kind,
      jnp.where(first, 0.0, action.astype(jnp.float32)),
      jnp.where(last, 0.0, 1.0),
      jnp.stack([time, steps]).astype(jnp.float32),
    )
    return State(time, steps), timestep


def short(length):
  return Short(length)


def env_of(length):
  return envs.Config(f"jax:{__name__}:short", env_options={"length": length})


@pytest.fixture
def seen(monkeypatch):
  """Returns the env steps that each environment has counted itself."""
  counts, recv = {}, functional_adapter.FunctionalEnvironment.recv

  def spy(environment):
    rows = recv(environment)
    steps = counts.setdefault(environment, np.zeros(environment.num_envs))
    steps[rows.index] = rows.timestep.observation[:, 1]
    return rows

  monkeypatch.setattr(functional_adapter.FunctionalEnvironment, "recv", spy)
  return counts


def run(pipeline, name, length, folder):
  kind, replayed = name.rstrip("+"), name.startswith(cells.REPLAYED)
  fields = {"learning_rate": 1.0, "learning_rate_end": 0.0}
  if replayed:
    fields |= {"epsilon_end": 0.0, "epsilon_steps": TOTAL_STEPS}
  config = cells.config_of(pipeline, kind, folder, TOTAL_STEPS, **fields)
  env = env_of(length)
  changes = {"env": env}
  if replayed:
    prioritized = pipeline == "apex" or name != kind
    kind = replay.PrioritizedConfig if prioritized else type(config.replay)
    # Gorila's workers count resets, too, until learning begins.
    min_steps = 20 if pipeline == "gorila" else MIN_STEPS
    options = cells.REPLAY | {"replay_min_steps": min_steps}
    changes["replay"] = kind(**options)
  config = dataclasses.replace(config, **changes)
  made = running.Own(config)
  return cells.run_all(made), made


# The replay is filled for a large part of the run, in which nothing is learned.
TOTAL_STEPS, MIN_STEPS = 1500, 300
# Env steps of an update without resets.
BATCH_STEPS = 20
# Pipelines with remote actors or workers, some of whose steps are on the way.
REMOTE = ("seed", "impala", "pool", "apex", "gorila")
CELLS = [
  ("sync", "ppo", 1),
  ("sync", "r2d2+", 1),
  ("anakin", "dqn+", 1),
  ("seed", "dqn+", 2),
  ("impala", "vtrace", 3),
  ("pool", "vtrace", 2),
  ("apex", "dqn", 1),
  ("a3c", "a2c", 2),
  ("gorila", "dqn", 1),
]


@pytest.mark.parametrize(
  ("pipeline", "name", "length"), conftest.slow_but([], CELLS)
)
def test_schedules_and_ratios_follow_env_steps(
  pipeline, name, length, tmp_path, seen
):
  last, made = run(pipeline, name, length, tmp_path)
  env_steps = last["env_steps"]
  # Processes act until the end reaches them, later on a loaded machine.
  remote = 10 * BATCH_STEPS if pipeline in REMOTE else 0
  assert TOTAL_STEPS <= env_steps <= TOTAL_STEPS + BATCH_STEPS + remote
  if pipeline == "anakin":
    learner = made.process.parts["agent"]
    counted = np.asarray(learner.saved().counts["acting"].env.steps)
    # Steps before the first unroll with windows do not count.
    remote = learner._one.past * len(counted)
  else:
    counted = np.concatenate(list(seen.values()))
  assert env_steps <= np.sum(counted) <= env_steps + remote
  replayed = name.startswith(cells.REPLAYED)
  filling = made.config.plan.filling_steps
  # On average, each step is learned from once.
  assert last["learned_steps"] == pytest.approx(env_steps - filling, abs=80)
  # Schedules follow env steps in all lines. With a replay, schedules begin when
  # learning does, and an unfinished unroll is not in the replay yet.
  update = 40 if "r2d2" in name else 8 if replayed else BATCH_STEPS
  # Workers of A3C see each other's updates later.
  tolerance_steps = (
    remote
    + (5 if pipeline == "a3c" else 3) * max(update, BATCH_STEPS)
    + (2 * BATCH_STEPS if replayed else 0)
  )
  for line in made.sink.lines:
    if "learning_rate" in line:
      share = (line["env_steps"] - filling) / (TOTAL_STEPS - filling)
      rest = max(0.0, 1.0 - share)
      reported = (
        line["learning_rate"],
        line.get("epsilon", line["learning_rate"]),
      )
      assert reported == pytest.approx(
        (rest, rest), abs=tolerance_steps / (TOTAL_STEPS - filling)
      )
  parts = made.process.parts
  if "learned" not in parts:
    clock = parts["agent"].saved().agent.clock * update
    assert clock == pytest.approx(last["learned_steps"], abs=1)


@pytest.mark.parametrize("length", [1, 3])
def test_an_evaluator_returns_the_number_of_its_env_steps(length, seen):
  config = evaluator.Config(env_of(length), 6, greedy=False, num_envs=3)
  made = evaluator.Evaluator(fakes.counting_agent(), config)
  played = made.play(np.float32(0), seed=0)
  (steps,) = seen.values()
  assert played.env_steps == 6 * length == steps.sum()


def test_without_resets_the_clock_is_the_number_of_updates():
  state = base.AgentState((), (), {}, jnp.int32(3), jnp.float32(0))
  assert state.count_resets(jnp.float32(1)).clock == 3
  state = state.count_resets(jnp.float32(0.5)).count_resets(0.25)
  assert state.clock == 1.75
