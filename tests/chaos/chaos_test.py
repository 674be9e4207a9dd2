"""Tests of chaos: its checks, and a minute of each pipeline."""

import json
import types as python_types

import numpy as np
import pytest

from seedx import wire
from seedx.wire import serving
from tests.chaos import audit, environment, peers, trial, trials


def _windows(count=3):
  """Returns windows `[4, count]` whose step 1 is a LAST and step 2 a FIRST."""
  origin = np.zeros((4, count, 2), np.int32)
  origin[..., 0] = 1 + np.arange(count)
  origin[..., 1] = 7 + np.arange(4)[:, None]
  step_type = np.tile(np.uint8([1, 2, 0, 1])[:, None], count)
  reward = np.ones((4, count), np.float32)
  discount = np.tile(np.float32([1, 0, 1, 1])[:, None], count)
  return [origin, step_type, reward, discount, np.True_]


def _spoil(part, index, value):
  windows = _windows()
  windows[part][index] = value
  return windows


def test_an_audit_accepts_the_steps_of_an_environment(capsys):
  audited = audit.Audit(once=True)
  windows = _windows()
  audited(*windows)
  windows[0][..., 1] += 3  # Consecutive windows share a step.
  audited(*windows)
  audited(*(np.zeros_like(x) for x in _windows()[:4]), np.True_)

  assert audit.VIOLATION not in capsys.readouterr().err


@pytest.mark.parametrize(
  ("windows", "words"),
  [
    (_spoil(0, (2, 1, 0), 9), "several origins"),
    (_spoil(0, (3, 1, 1), 11), "not consecutive"),
    (_spoil(1, (0, 0), 3), "step types"),
    (_spoil(1, (2, 0), 1), "not after a LAST"),
    (_spoil(2, (1, 1), np.nan), "rewards"),
    (_spoil(3, (0, 1), 0.0), "discounts"),
    (_spoil(3, (1, 1), 0.5), "discounts"),
    ([*_windows()[:4], np.False_], "parameters"),
  ],
)
def test_an_audit_reports_steps_that_no_environment_produces(
  windows, words, capsys
):
  audit.Audit(once=True)(*windows)

  output = capsys.readouterr().err
  assert output.startswith(audit.VIOLATION)
  assert words in output


def test_an_audit_reports_steps_that_are_learned_from_twice(capsys):
  for once in (False, True):
    audited = audit.Audit(once)
    audited(*_windows())
    windows = _windows()
    windows[0][..., 1] += 2
    audited(*windows)

    assert ("before" in capsys.readouterr().err) == once


def test_every_complete_episode_of_the_environment_has_the_same_return():
  env = environment.make(seed=3)
  timestep, total, counts = env.reset(), 0.0, []
  for _ in range(1000):
    counts.append(timestep.observation["origin"].copy())
    timestep = env.step(len(counts) % 3)
    total += timestep.reward or 0.0
    if timestep.last():
      assert total == environment.RETURN
    if timestep.first():
      total = 0.0

  origin, count = np.array(counts).T
  assert (origin == origin[0]).all()
  assert (np.diff(count) == 1).all()


def test_a_stream_that_ends_with_internal_is_a_violation(tmp_path, monkeypatch):
  monkeypatch.setattr(peers, "_IDLE_SECONDS", 0.01)

  def raises(inputs):
    raise RuntimeError("not clean")

  layout = wire.Layout.of(np.zeros((), np.float32), 4)
  server = serving.Server(f"unix:{tmp_path}/socket", 4)
  server.bind("raise", raises, layout, layout)
  hostile = peers.Peers(seed=0)
  with server:
    for _ in range(20):
      hostile.attack(server.address, [peers.Method("raise", layout)])

  assert hostile.statuses["INTERNAL"] > 0
  assert "ended with INTERNAL" in hostile.violations[0]


def _samples(rates):
  """Returns a sample for each quarter of a second, given each second's rate."""
  steps, samples = 0.0, []
  for k, rate in enumerate(np.repeat(rates, 4)):
    steps += rate / 4
    samples.append(trial.Sample(k / 4, 1, int(steps), 100, 10, 10))
  return samples


def _recoveries(*faults, of_all=("learner",)):
  """Returns the recoveries of a trial with these faults and two kills.

  The learner is killed at 20 s, recovers after 9 s, and is killed at the end.
  """
  first, last = (trial.Fault(x, "learner", trial.LEARNER) for x in (20.0, 68.0))
  done = python_types.SimpleNamespace(
    faults=[first, *faults, last],
    samples=_samples([100] * 20 + [0] * 9 + [80] * 40),
  )
  return trial.recoveries(done, of_all)


@pytest.mark.parametrize(
  ("target", "of_all", "minimum"),
  [
    (trial.LEARNER, ["learner"], 6.0),
    ("an actor", ["learner"], 9.0),
    ("an environment", ["learner", trial.ENVIRONMENT], 6.0),
  ],
)
def test_a_pause_of_the_whole_run_does_not_count_in_its_recovery_time(
  target, of_all, minimum
):
  faults = [trial.Fault(25.0, "pause", target), trial.Fault(40.0, "kill", "a")]

  of_one, ((fault, seconds),) = _recoveries(*faults, of_all=of_all)

  assert fault.seconds == 20.0
  assert minimum <= seconds <= minimum + 1.5
  assert faults[1] in [fault for fault, _ in of_one]


@pytest.mark.long
@pytest.mark.parametrize("pipeline", trials.PIPELINES)
def test_a_minute_of_chaos_has_no_violation(pipeline, tmp_path):
  output = tmp_path / "results.json"

  status = trials.main(
    ["--pipelines", pipeline, "--minutes", "1", "--output", str(output)]
  )

  summary = json.loads(output.read_text())[pipeline]
  assert summary["violations"] == []
  assert status == 0
  assert summary["faults"]["learner"] >= 1
  assert summary["audited_windows"] > 0


def test_growth_compares_the_end_with_minute_2():
  samples = [
    x._replace(memory_bytes=100 if x.seconds < 150 else 130)
    for x in _samples([100] * 300)
  ]
  growth = trial.growth(python_types.SimpleNamespace(samples=samples))
  assert growth == {"memory": 1.3, "threads": 0.0, "files": 0.0}


def test_a_cold_start_lasts_until_half_of_the_median_rate():
  samples = _samples([0] * 3 + [10] * 4 + [100] * 20)
  assert (
    7.0
    <= trial.cold_start(python_types.SimpleNamespace(samples=samples))
    <= 8.5
  )
  empty = python_types.SimpleNamespace(samples=[])
  assert trial.cold_start(empty) == np.inf
