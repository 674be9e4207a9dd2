"""The simulated host: its environments' time, its tables, and a tiny run."""

import numpy as np
import pytest

from benchmarks import simulated_host, sleeping
from seedx import types

CONFIG = sleeping.config(sleeping.NUMBERS, 0.5)


class Clock:
  """A clock on which only sleeping takes time."""

  now = 100.0

  def monotonic(self):
    return self.now

  def sleep(self, seconds):
    self.now += seconds


@pytest.fixture(name="clock")
def _clock(monkeypatch):
  clock = Clock()
  monkeypatch.setattr(sleeping, "time", clock)
  return clock


def answer(environment, rows):
  environment.send(rows.index, np.zeros(len(rows.index), np.int32))


def test_a_core_steps_in_turn_and_is_idle_only_without_actions(clock):
  environment = sleeping.Environments(CONFIG, 4, batch_size=2)
  environment.reset()
  first = environment.recv()
  assert (clock.now, first.index.tolist()) == (101.0, [0, 1])
  answer(environment, first)  # In time: the core steps 2 and 3 meanwhile.
  second = environment.recv()
  assert (clock.now, second.index.tolist()) == (102.0, [2, 3])
  clock.now = 105.0  # The core was idle since 103.
  answer(environment, second)
  assert environment.recv().index.tolist() == [0, 1]
  assert clock.now == 105.0
  assert environment.recv().index.tolist() == [2, 3]
  assert clock.now == 106.0


def test_several_cores_step_parts_of_a_batch(clock):
  environment = sleeping.Environments(CONFIG, 6, num_threads=3)
  environment.reset()
  environment.recv()
  assert clock.now == 101.0
  with pytest.raises(types.ConfigError, match="6 in a batch, 4 cores"):
    sleeping.Environments(CONFIG, 6, num_threads=4)


def test_episodes_have_the_length_that_the_rate_assumes(clock, monkeypatch):
  monkeypatch.setattr(sleeping, "EPISODE", 4)
  environment = sleeping.Environments(CONFIG, 2)
  environment.reset()
  steps, returns = [], []
  for _ in range(15):
    rows = environment.recv()
    steps.append(rows.timestep.step_type)
    ended = rows.timestep.step_type == 2
    assert (~np.isnan(rows.episode_return) == ended).all()
    returns += rows.episode_return[ended].tolist()
    answer(environment, rows)
  columns = np.array(steps).T.tolist()
  assert columns[0][:10] == [0, 1, 1, 1, 2] * 2
  assert columns[1][:10] == [0, 1, 1, 2, 0, 1, 1, 1, 2, 0]
  assert sorted(returns) == [3.0, *[4.0] * (len(returns) - 1)]
  host = simulated_host.Host(3, 2, 2, 0.5)
  assert host.rate == pytest.approx(6 * np.mean(np.array(steps[5:]) > 0))


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ["sync", "impala", "seed"])
def test_an_arm_is_measured(pipeline, monkeypatch):
  host = simulated_host.Host(2, 4, 2, 0.0005)
  name = next(x for x in simulated_host.ARMS if x.startswith(pipeline))
  load = simulated_host.measure(name, host, 0.0, 3.0)
  assert 0.05 < load.steps / load.seconds / host.rate < 1.2
  assert load.updates > 0 and load.learner > 0
  assert set(load.roles) == (set() if pipeline == "sync" else {"actor"})
  monkeypatch.setitem(simulated_host.ARMS, name, simulated_host.Arm(host, None))
  for header, cells in (
    (simulated_host._RATES, simulated_host._rates(name, load)),
    (simulated_host._COSTS, simulated_host._costs(name, load)),
  ):
    assert len(cells) == len(header) and cells[0] == name
