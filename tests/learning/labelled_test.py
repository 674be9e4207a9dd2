"""The train buffer, and the work of labellers."""

import threading

import jax
import numpy as np
import pytest

from seedx import types
from seedx.agents import base
from seedx.learning import experience, labelled

CORES = jax.devices()[:2]
LENGTH, SIZE = 2, 3


class Log(experience.Experience):
  """Batches whose rewards are their numbers, one for each call."""

  def __init__(self, cores=1, version=0):
    self.cores, self.version, self.number = CORES[:cores], version, 0
    self.resumed = ()

  def __call__(self, shares):
    self.number += 1
    yield self.example(shares)

  def example(self, shares):
    return experience.Batch([self._part(k) for k in range(len(self.cores))])

  def _part(self, core):
    shape = (LENGTH, SIZE)
    reward = np.full(shape, 100.0 * core + self.number, np.float32)
    timestep = types.dm_env.TimeStep(
      np.ones(shape, np.int32), reward, np.ones(shape, np.float32), reward
    )
    inputs = types.Inputs(timestep, reward, reward)
    version = np.full(shape, self.version, np.int32)
    unroll = types.Unroll(inputs, reward, (), version, ())
    sample = types.Sample(unroll, np.ones(SIZE, np.float32))
    return jax.device_put(sample, self.cores[core])

  def resume(self, updates, resets):
    self.resumed = updates, resets

  def measure(self):
    return {"replay_size": 7}


def make(log, capacity=4, ahead=2, stop=None):
  source = labelled.LabelledSource(
    log,
    log.cores,
    capacity,
    ahead,
    jax.random.key(0),
    stop or threading.Event(),
  )
  source.example(())
  return source


def label(source, count=1):
  """Labels work with the negative of its reward."""
  for _ in range(count):
    (work,) = source.unlabelled.get()
    reward = work.sample.unroll.inputs.timestep.reward
    source.give(work, -np.asarray(reward), lag=int(reward[0, 0]))


def run(source, batches):
  """Takes batches on a thread, and labels on this one."""
  taken = []

  def take():
    while len(taken) < batches:
      taken.extend(source(()))

  thread = threading.Thread(target=take, daemon=True)
  thread.start()
  while thread.is_alive():
    if len(source.unlabelled):
      label(source)
    thread.join(0.001)
  return taken


@pytest.mark.parametrize("cores", [1, 2])
def test_each_core_learns_from_its_own_batches_and_their_targets(cores):
  source = make(Log(cores))
  seen = set()
  for batch in run(source, 30):
    for core, part in enumerate(batch.parts):
      assert part.importance_weight.devices() == {CORES[core]}
      reward = np.asarray(part.unroll.inputs.timestep.reward)
      np.testing.assert_array_equal(part.unroll.extras, -reward)
      np.testing.assert_array_equal(reward[0], reward[1])
      assert (reward // 100 == core).all()
      seen |= {*(reward % 100).ravel().tolist()}
  # All batches are learned from, soon or later.
  assert len(seen) > 25


def test_the_train_buffer_has_the_newest_batches():
  source = make(Log(), capacity=3, ahead=1)
  for number, batch in enumerate(run(source, 40), start=1):
    reward = np.asarray(batch.parts[0].unroll.inputs.timestep.reward)
    # One batch may wait; three are kept.
    assert reward.max() <= number + 1 and reward.min() >= number - 3


def test_a_learner_waits_for_labellers_and_ends_with_the_run():
  stop = threading.Event()
  source = make(Log(), ahead=2, stop=stop)
  taken = []
  thread = threading.Thread(target=lambda: taken.extend(source(())))
  thread.start()
  thread.join(0.3)
  assert thread.is_alive()
  stop.set()
  thread.join(60)
  assert not thread.is_alive() and not taken
  source.close()
  assert len(source.unlabelled.get()) == 1 and not source.unlabelled.get()


def test_metrics_are_those_since_the_last_call():
  source = make(Log(version=base.UNKNOWN_VERSION))
  run(source, 3)
  first = source.measure()
  assert first["replay_size"] == 7 and first["on_policy_share"] == 0
  assert 1 <= first["target_lag"] <= 3
  assert source.measure()["target_lag"] is None
  source = make(Log(version=5))
  run(source, 3)
  assert source.measure()["on_policy_share"] == 1


def test_a_resume_continues_the_draws():
  log = Log()
  source = make(log)
  source.resume(12, 3.5)
  assert log.resumed == (12, 3.5)
  assert source.kept is log.kept is None
  assert source._drawn == 12
