"""The benchmark: its arithmetic, its table, and one complete run."""

import json
import os
import threading
import types as types_lib

import numpy as np
import pytest

from benchmarks.speed import __main__ as speed
from benchmarks.speed import figures, runs, work
from seedx import types
from seedx.app.studies import trials
from tests import conftest

SIZES = work.Sizes(
  pools=2,
  envs=100,
  period=20,
  unrolls=100,
  slots=200,
  rows=100,
  message_steps=100,
  elsewhere=("environments",),
)
# 10 us of CPU time per env step; environments (2 us) are in other processes.
WORK = work.OwnWork(SIZES, 400e3, 2e-6, 3e-6, 5e-6)
SMALL = "--hidden-sizes 8 --unroll-length 4"
SEED = f"seed_vtrace --num-actors 2 --envs-per-actor 8 {SMALL}"


def by_name(figures):
  assert len({(x.figure, x.unit) for x in figures}) == len(figures)
  return {(x.figure, x.unit): x.value for x in figures}


def sample(seconds, cpu_seconds, **line):
  return runs.Sample(seconds, line, cpu_seconds)


def test_a_runs_cpu_time_is_divided_into_work_and_overhead():
  replies = {"reply_seconds_p50": 0.002, "reply_seconds_p99": 0.005}
  samples = [sample(0.0, {}, steps_per_second=50e3, **replies)]
  values = by_name(runs.figures_of(WORK, samples, (1.0, 0.5), cores=2))
  assert values == {
    ("environments alone", "env steps/s"): 400e3,
    ("environments", "CPU us/env step"): pytest.approx(2),
    ("acting", "CPU us/env step"): pytest.approx(3),
    ("learning", "CPU us/env step"): pytest.approx(5),
    ("bound", "env steps/s"): pytest.approx(200e3),
    ("run", "env steps/s"): 50e3,
    ("run over bound", ""): pytest.approx(0.25),
    ("run over environments alone", ""): pytest.approx(0.125),
    ("idle share of the cores", ""): pytest.approx(0.25),
    # 1 core at 50e3 env steps/s is 20 us a step, 8 of them to act and learn.
    ("learner beside work", "CPU us/env step"): pytest.approx(12),
    ("other processes beside work", "CPU us/env step"): pytest.approx(8),
    ("learner beside work", "CPU ms/message"): pytest.approx(1.2),
    ("other processes beside work", "CPU ms/message"): pytest.approx(0.8),
    ("all processes beside work", "CPU ms/message"): pytest.approx(2.0),
    ("reply, median", "s"): 0.002,
    ("reply, 99th percentile", "s"): 0.005,
    ("reply, p99 over median", ""): pytest.approx(2.5),
  }


def test_medians_are_over_repetitions_and_lines_have_all_values(tmp_path):
  path = tmp_path / "found.jsonl"
  measured = figures.Figures(path)
  for of, value in [("b", 1), ("a", 1500), ("b", 9), ("b", 2), ("a", 500)]:
    measured.add(of, [figures.Figure("run", "env steps/s", value)])
  first, *lines = [json.loads(x) for x in path.read_text().splitlines()]
  assert first["machine"]["cpus"] >= 1 and first["machine"]["memory_gib"] >= 1
  common = {"figure": "run", "unit": "env steps/s"}
  assert lines == [
    {"of": "b", **common, "value": 2, "values": [1, 9, 2]},
    {"of": "a", **common, "value": 1000, "values": [1500, 500]},
  ]
  rows = [x for x in measured.table().splitlines() if "run" in x]
  assert rows == ["| run | 1,000 | env steps/s |", "| run | 2 | env steps/s |"]


def test_learning_is_measured_with_generated_experience():
  config = work.config_of(f"impala {SMALL}", "CartPole-v1")
  sizes = work.sizes_of(config)
  assert sizes.message_steps == config.actors.envs_per_actor * 4
  assert sizes.elsewhere == ("environments", "acting")
  assert work.learning(config, sizes, 0.01) > 0


@pytest.mark.parametrize(
  ("words", "message_steps", "elsewhere"),
  [
    ("ppo", 0, ()),
    (
      "gorila_dqn --envs-per-worker 3 --unroll-length 5",
      15,
      ("environments", "acting", "learning"),
    ),
    (
      "seed_vtrace --envs-per-actor 8 --actor-batch-size 4",
      4,
      ("environments",),
    ),
  ],
)
def test_work_of_other_processes_is_recognized(words, message_steps, elsewhere):
  sizes = work.sizes_of(work.config_of(words, "CartPole-v1"))
  assert sizes.message_steps == message_steps
  assert sizes.elsewhere == elsewhere


class Running:
  """A run with given lines of metrics."""

  pid = 7

  def __init__(self, lines):
    self._lines, self.ended = lines, False

  def lines(self, stop):
    del stop
    yield from self._lines

  def end(self):
    self.ended = True


def test_samples_come_from_the_later_half_of_a_run(monkeypatch):
  lines = [{"wall_seconds": x, "learner_steps": x > 2} for x in range(12)]
  # CPU seconds by process id: 7 is the learner, 8 ends early, 9 begins late.
  cpu = iter([{7: 1.0, 8: 1.0}, {7: 2.0, 8: 1.0}, {7: 3.0}, {7: 5.0, 9: 1.0}])
  outside = types_lib.SimpleNamespace(seconds=0.25)
  clock = iter([100.0, 101.0, 101.5, 102.0])
  monkeypatch.setattr(runs.cpu_time, "of_tree", lambda pid: next(cpu))
  monkeypatch.setattr(runs.cpu_time, "Others", lambda: outside)
  monkeypatch.setattr(runs.time, "monotonic", lambda: next(clock))
  run = Running(lines)
  samples = runs.sampled(run, 6.0, threading.Event())
  assert run.ended
  assert [x.line["wall_seconds"] for x in samples] == [6, 7, 8, 9]
  assert runs.cores_used(7, samples) == (2.0, 0.5)
  with pytest.raises(types.ConfigError, match="increase --seconds"):
    runs.cores_used(7, samples[:1])


@pytest.mark.parametrize(
  ("parts", "start", "end", "ratios"),
  conftest.slow_but(
    [(0.05, 1.0, 1.5, False)],
    [(0.05, 1.0, 1.1, True), (0.05, 1.0, 1.5, False), (0.15, 1.0, 1.0, False)],
  ),
)
def test_a_disturbed_run_has_no_ratios_and_a_reason(
  parts, start, end, ratios, monkeypatch, tmp_path, capsys
):
  """Outside processes disturb the parts' measurement, or the run's (2 s)."""
  replies = {"reply_seconds_p50": 0.002, "reply_seconds_p99": 0.005}
  line = {"steps_per_second": 50e3, "episode_return": 9.0, **replies}
  pid = os.getpid()
  samples = [
    runs.Sample(0.0, line, {pid: 1.0}, start),
    runs.Sample(2.0, line, {pid: 2.0}, end),
  ]
  trial = types_lib.SimpleNamespace(pid=pid, error=lambda: "")
  outside = types_lib.SimpleNamespace(cores=parts)
  for where, name, value in (
    (runs.cpu_time, "Others", lambda: outside),
    (runs.work, "measure", lambda *_: WORK),
    (runs.trials, "Running", lambda *_: trial),
    (runs, "sampled", lambda *_: samples),
  ):
    monkeypatch.setattr(where, name, value)
  words = ["--experiments", "impala", "--quick"]
  assert speed.main([*words, "--output", str(tmp_path / "found.jsonl")]) == 0
  out = capsys.readouterr().out
  cores = max(parts, (end - start) / 2)
  assert f"| outside processes | {cores:.3g} | cores |" in out
  assert "| return | 9 |" in out and "| run | 50,000 |" in out
  assert (" over " in out) == ("idle share" in out) == ratios
  reason = "1/1, impala: no ratios, because processes outside the benchmark"
  assert (f"{reason} kept {cores:.2f}" in out) != ratios


def test_commas_before_numbers_do_not_separate_experiments():
  asked = "impala", "ppo --learner-devices 0", "1", "3 --num-envs 6", "a2c"
  assert trials.experiments_of(asked) == (
    "impala",
    "ppo --learner-devices 0,1,3 --num-envs 6",
    "a2c",
  )


@pytest.mark.parametrize("words", ["0,impala", "ppo,a2c --epochs 3"])
def test_a_wrong_experiment_is_refused_in_one_line(words, capsys):
  with pytest.raises(SystemExit) as caught:
    speed.main(["--experiments", words])
  assert caught.value.code == 2
  assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.long
def test_all_figures_are_present_and_consistent(tmp_path, capsys):
  output = tmp_path / "found.jsonl"
  wrong = "impala --learner-devices 99"  # This experiment is skipped.
  words = ["--experiments", f"{wrong},{SEED}", "--output", str(output)]
  words = ["--quick", *words, "--seconds", "4"]
  assert speed.main(words) == 1
  first, *lines = [json.loads(x) for x in output.read_text().splitlines()]
  assert first["machine"]["devices"].endswith("CPU")
  assert all(np.isfinite(x["value"]) for x in lines)
  values = {x["figure"]: x["value"] for x in lines if x["of"] == SEED}
  may_be_negative = ("beside work", "idle share")
  for name, value in values.items():
    assert value > 0 or any(x in name for x in may_be_negative), name
  parts = sum(values[x] for x in ("environments", "acting", "learning"))
  cores = len(os.sched_getaffinity(0))
  assert values["bound"] == pytest.approx(1e6 * cores / parts)
  captured = capsys.readouterr()
  if values["outside processes"] > 0.1:  # A busy machine has no ratios.
    assert "run over bound" not in values and "no ratios" in captured.out
  else:
    ratio = values["run"] / values["bound"]
    assert values["run over bound"] == pytest.approx(ratio) and ratio < 1.2
  assert f"**{SEED}**" in captured.out and "99" in captured.err


@pytest.mark.parametrize(
  "words",
  [
    pytest.param(f"a2c {SMALL}", marks=pytest.mark.slow),
    *(
      pytest.param(f"{name} {SMALL}", marks=pytest.mark.long)
      for name in ("apex_dqn", "gorila_dqn")
    ),
  ],
)
def test_work_of_other_pipelines_is_measured(words):
  measured = work.measure(words, "CartPole-v1", 0.5)
  costs = measured.environments, measured.acting, measured.learning
  assert all(0 < x < 1e-2 for x in costs)
  assert measured.alone_per_second > 1000
