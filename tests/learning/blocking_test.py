"""The time for which updates make acting on the same device wait."""

import dataclasses

import pytest

from seedx.learning import blocking, experience
from seedx.runtime import publication
from tests.learning import cases


@dataclasses.dataclass(frozen=True)
class Device:
  """A device that is only a name."""

  platform: str
  index: int = 0


GPU = Device("cuda")


class Meter:
  """A meter with a clock and an update that a test controls."""

  def __init__(self, micro_batches=1, acting_on=(GPU,), divisible=64):
    self.seconds, self.is_updating = 0.0, False
    self.blocking = blocking.Blocking(
      [GPU],
      acting_on,
      micro_batches,
      lambda: self.is_updating,
      lambda: self.seconds,
    )
    self.blocking.divisible = divisible

  def wait(self, seconds, is_updating, device=GPU):
    """Waits for actions; the update ends before the actions are computed."""
    self.is_updating = is_updating
    with self.blocking.waiting(device):
      self.is_updating = False
      self.seconds += seconds

  def measure(self):
    """Returns the share of time and the number of micro-batches."""
    line = self.blocking.measure()
    return line["acting_wait_update"], line["micro_batches_advised"]


def test_only_waits_that_begin_while_an_update_runs_are_waits_for_it():
  meter = Meter()
  meter.wait(0.002, False)
  meter.wait(0.008, True)
  meter.seconds += 0.006
  share, _ = meter.measure()
  assert share == pytest.approx(0.5)
  meter.wait(0.002, False)
  assert meter.measure()[0] == 0.0


@pytest.mark.parametrize(
  ("micro_batches", "alone", "behind", "divisible", "expected"),
  [
    (1, 0.002, 0.012, 64, 8),  # The update takes 5 times as long as a step.
    (2, 0.002, 0.012, 64, 16),
    (1, 0.002, 0.012, 15, 5),
    (1, 0.002, 0.0039, 64, None),  # The update is shorter than a step.
    (1, 0.001, 1.0, 4, 4),
    (4, 0.001, 1.0, 4, None),  # Each micro-batch is a single unroll.
    (1, 0.001, 1.0, 1, None),  # The agent needs whole batches.
  ],
)
def test_an_advised_micro_batch_takes_no_longer_than_a_step_alone(
  micro_batches, alone, behind, divisible, expected
):
  meter = Meter(micro_batches, divisible=divisible)
  for _ in range(3):
    meter.wait(alone, False)
    meter.wait(behind, True)
  assert meter.measure()[1] == expected


@pytest.mark.parametrize("is_updating", [False, True])
def test_without_both_kinds_of_waits_nothing_is_advised(is_updating):
  meter = Meter()
  meter.wait(1.0, is_updating)
  assert meter.measure() == (float(is_updating), None)


@pytest.mark.parametrize("device", [Device("cuda", 1), Device("cpu")])
def test_a_device_that_only_acts_or_is_a_cpu_is_not_measured(device):
  meter = Meter(acting_on=(device,))
  meter.wait(1.0, True, device)
  assert meter.blocking.measure() == {}


def test_an_update_runs_from_its_dispatch_to_its_end(monkeypatch):
  learner = cases.make(agent=cases.tiny_agent())
  update, seen = learner._update, []

  def recorded(state, inputs):
    seen.append(learner._is_updating())
    return update(state, inputs)

  monkeypatch.setattr(learner, "_update", recorded)
  shares = learner.shares(cases.unroll_of())
  (batch,) = experience.Once()(shares)
  assert not learner._is_updating()
  with monkeypatch.context() as patch:
    patch.setattr(publication, "is_ready", lambda nest: not nest)
    learner.learn(batch)
    assert learner._is_updating()
  assert seen == [True]
  assert not learner._is_updating()
  learner.finish()


@pytest.mark.parametrize(
  ("agent", "expected"),
  [(cases.tiny_agent, cases.BATCH), (cases.ppo_agent, 1)],
)
def test_micro_batches_divide_the_unrolls_of_a_core(agent, expected):
  learner = cases.make(1, agent=agent())
  learner._zeros(learner.shares(cases.unroll_of()))
  assert learner.blocking.divisible == expected


def test_a_learner_without_acting_devices_measures_no_waits(monkeypatch):
  """Actors of IMPALA and Ape-X act in their own processes."""
  acting_on = []
  blocking_of = blocking.Blocking

  def recorded(cores, devices, *arguments):
    acting_on.append(tuple(devices))
    return blocking_of(cores, devices, *arguments)

  monkeypatch.setattr(blocking, "Blocking", recorded)
  cases.make(1)
  (device,) = cases.make(1).cores
  cases.make(1, acting_on=[device])
  assert acting_on == [(), (), (device,)]
