"""Tests of chaos: that it finds what it looks for, and a minute of each."""

import json
import types as python_types

import numpy as np
import pytest

from seedx import wire
from seedx.app.chaos import audit, environment, main, options, peers, trial
from seedx.wire import server as server_lib


def _windows(count=3):
  """Windows `[4, 3]` as an environment that ends at step 2 leads to."""
  lease = np.zeros((4, count, 2), np.int32)
  lease[..., 0] = 1 + np.arange(count)
  lease[..., 1] = 7 + np.arange(4)[:, None]
  step_type = np.tile(np.uint8([1, 2, 0, 1])[:, None], count)
  reward = np.ones((4, count), np.float32)
  discount = np.tile(np.float32([1, 0, 1, 1])[:, None], count)
  return [lease, step_type, reward, discount, np.True_]


def _spoil(part, index, value):
  windows = _windows()
  windows[part][index] = value
  return windows


def test_an_audit_of_what_an_environment_said_finds_nothing(capsys):
  audited = audit.Audit(once=True)
  windows = _windows()
  audited(*windows)
  windows[0][..., 1] += 3  # They share a step.
  audited(*windows)
  audited(*(np.zeros_like(x) for x in _windows()[:4]), np.True_)

  assert audit.VIOLATION not in capsys.readouterr().err


@pytest.mark.parametrize(
  ("windows", "words"),
  [
    (_spoil(0, (2, 1, 0), 9), "several leases"),
    (_spoil(0, (3, 1, 1), 11), "not consecutive"),
    (_spoil(1, (0, 0), 3), "step types"),
    (_spoil(1, (2, 0), 1), "not after a LAST"),
    (_spoil(2, (1, 1), np.nan), "rewards"),
    (_spoil(3, (0, 1), 0.0), "discounts"),
    (_spoil(3, (1, 1), 0.5), "discounts"),
    ([*_windows()[:4], np.False_], "parameters"),
  ],
)
def test_an_audit_names_what_was_not_said(windows, words, capsys):
  audit.Audit(once=True)(*windows)

  found = capsys.readouterr().err
  assert found.startswith(audit.VIOLATION)
  assert words in found


def test_an_audit_finds_steps_that_are_learned_from_twice(capsys):
  for once in (False, True):
    audited = audit.Audit(once)
    audited(*_windows())
    windows = _windows()
    windows[0][..., 1] += 2
    audited(*windows)

    assert ("before" in capsys.readouterr().err) == once


def test_every_whole_episode_of_the_environment_has_one_return():
  env = environment.make(seed=3)
  timestep, total, counts = env.reset(), 0.0, []
  for _ in range(1000):
    counts.append(timestep.observation["lease"].copy())
    timestep = env.step(len(counts) % 3)
    total += timestep.reward or 0.0
    if timestep.last():
      assert total == environment.RETURN
    if timestep.first():
      total = 0.0

  lease, count = np.array(counts).T
  assert (lease == lease[0]).all()
  assert (np.diff(count) == 1).all()


def test_a_stream_that_ends_with_internal_is_a_violation(tmp_path, monkeypatch):
  monkeypatch.setattr(peers, "_IDLE_SECONDS", 0.01)

  def raises(inputs):
    raise RuntimeError("not clean")

  layout = wire.Layout.of(np.zeros((), np.float32), 4)
  server = server_lib.Server(f"unix:{tmp_path}/socket", 4)
  server.bind("raise", raises, layout, layout)
  found = peers.Peers(seed=0)
  with server:
    for _ in range(20):
      found.attack(server.address, [peers.Method("raise", layout)])

  assert found.statuses["INTERNAL"] > 0
  assert "ended with INTERNAL" in found.violations[0]


def _samples(rates):
  """A sample each quarter of a second, of a rate for each second."""
  steps, found = 0.0, []
  for k, rate in enumerate(np.repeat(rates, 4)):
    steps += rate / 4
    found.append(trial.Sample(k / 4, 1, int(steps), 100, 10, 10))
  return found


def _recoveries(*faults, of_all=("learner",)):
  """Of a learner killed at 20 s, back 9 s later, and killed at the end."""
  first, last = (trial.Fault(x, "learner", trial.LEARNER) for x in (20.0, 68.0))
  done = python_types.SimpleNamespace(
    faults=[first, *faults, last],
    samples=_samples([100] * 20 + [0] * 9 + [80] * 40),
  )
  return trial.recoveries(done, of_all)


@pytest.mark.parametrize(
  ("paused", "of_all", "least"),
  [
    (trial.LEARNER, ["learner"], 6.0),
    ("an actor", ["learner"], 9.0),
    ("an environment", ["learner", trial.ENVIRONMENT], 6.0),
  ],
)
def test_a_pause_counts_where_the_learner_goes_on(paused, of_all, least):
  faults = [trial.Fault(25.0, "pause", paused), trial.Fault(40.0, "kill", "a")]

  of_one, ((fault, seconds),) = _recoveries(*faults, of_all=of_all)

  assert fault.seconds == 20.0
  assert least <= seconds <= least + 1.5
  assert faults[1] in [fault for fault, _ in of_one]


@pytest.mark.long
@pytest.mark.parametrize("pipeline", options.PIPELINES)
def test_a_minute_of_chaos_finds_nothing(pipeline, tmp_path):
  output = tmp_path / "found.json"

  status = main.main(
    ["--pipelines", pipeline, "--minutes", "1", "--output", str(output)]
  )

  found = json.loads(output.read_text())[pipeline]
  assert found["violations"] == []
  assert status == 0
  assert found["faults"]["learner"] >= 1
  assert found["audited_windows"] > 0


def test_growth_compares_the_end_with_minute_2():
  samples = [
    x._replace(memory_bytes=100 if x.seconds < 150 else 130)
    for x in _samples([100] * 300)
  ]
  found = trial.growth(python_types.SimpleNamespace(samples=samples))
  assert found == {"memory": 1.3, "threads": 0.0, "files": 0.0}


def test_a_cold_start_lasts_until_half_of_the_rate():
  samples = _samples([0] * 3 + [10] * 4 + [100] * 20)
  assert (
    7.0
    <= trial.cold_start(python_types.SimpleNamespace(samples=samples))
    <= 8.5
  )
  none = python_types.SimpleNamespace(samples=[])
  assert trial.cold_start(none) == np.inf
