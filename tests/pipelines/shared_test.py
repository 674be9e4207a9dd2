"""The shared state of the workers of one process, such as A3C's."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from seedx import types
from seedx.acting import local_actor
from seedx.agents import base
from seedx.learning import shared_state
from seedx.runtime import process
from tests import fakes
from tests.pipelines import cells

KEY = jax.random.key(0)
# Env steps of a batch without resets.
STEPS = 4


class Batch(NamedTuple):
  """A batch with a given gradient."""

  version: Any
  gradient: Any
  weight: Any


@functools.cache
def agent():
  def gradients(state, rng_key, batch):
    del state, rng_key
    loss = {"loss_value": batch.gradient}
    return base.Gradients(batch.gradient), types.LossOutput(batch.weight, loss)

  adding = fakes.adding_agent()
  return dataclasses.replace(adding, gradients=gradients)


def make():
  state = agent().start(np.zeros(2, np.float32), 0)
  return shared_state.Shared(agent(), state, jax.devices("cpu")[0])


def learn(state_shared, copy, gradient, weight=STEPS):
  version = np.zeros((3, 2), np.int32)
  state_shared.learn(
    *copy, KEY, Batch(version, np.float32(gradient), np.float32(weight))
  )


def test_gradients_of_an_old_copy_are_applied_to_the_newest_state():
  state_shared = make()
  old = state_shared.newest()
  learn(state_shared, old, 1.0)
  learn(state_shared, state_shared.newest(), 2.0)
  learn(state_shared, old, 4.0, weight=STEPS - 1)
  state, version = state_shared.newest()
  np.testing.assert_array_equal(state.params, [-7.0, -7.0])
  assert state.updates == version == 3
  assert state.resets == 1 / STEPS
  np.testing.assert_array_equal(old[0].params, [0.0, 0.0])
  line = state_shared.learned.measure()
  assert line["learner_steps"] == 3 and line["learned_steps"] == 3 * STEPS - 1
  assert line["policy_lag"] == 2 and line["loss_value"] == 4.0
  assert line["gradient_staleness"] == pytest.approx(2 / 3)


def test_an_update_that_is_not_finite_is_skipped_and_counted():
  state_shared = make()
  learn(state_shared, state_shared.newest(), 1.0)
  learn(state_shared, state_shared.newest(), np.inf)
  state, _ = state_shared.newest()
  np.testing.assert_array_equal(state.params, [-1.0, -1.0])
  assert state.updates == 1
  line = state_shared.learned.measure()
  assert (line["learner_steps"], line["updates_skipped"]) == (1, 1)
  with pytest.raises(RuntimeError, match="in 100 in a row"):
    for _ in range(100):
      learn(state_shared, state_shared.newest(), np.nan)


def test_shared_state_continues_from_a_checkpoint():
  state_shared, other = make(), make()
  learn(state_shared, state_shared.newest(), 3.0)
  other.restore(jax.device_get(state_shared.saved()))
  state, version = other.newest()
  np.testing.assert_array_equal(state.params, [-3.0, -3.0])
  assert version == 1
  learn(other, other.newest(), 1.0)
  assert other.learned.measure()["policy_lag"] == 0


class _MadeError(Exception):
  """Raised instead of acting."""


def test_no_two_environments_of_a3cs_workers_have_the_same_seed(
  tmp_path, monkeypatch
):
  config = cells.config_of("a3c", "a2c", tmp_path)
  seeds = []

  def make_actor(*arguments, seed, **options):
    seeds.extend(seed + k for k in range(config.workers.envs_per_worker))
    raise _MadeError

  monkeypatch.setattr(local_actor, "LocalActor", make_actor)
  made = config.learn(process.Context())
  made.stopping()  # No worker waits for the first one.
  for work in made.threads.values():
    with pytest.raises(_MadeError):
      work()
  assert len({*seeds}) == len(seeds) == config.workers.num_envs
