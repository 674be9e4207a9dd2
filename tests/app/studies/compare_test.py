"""Tests of the comparison: its runs, its table and its figure."""

import os
import signal

import pytest
from matplotlib import image

from seedx import metrics
from seedx.app import plot
from seedx.app.runs import records
from seedx.app.studies import compare, pool, trials
from tests.app import cases

A2C = "a2c --num-envs 4 --unroll-length 5 --hidden-sizes 8"
MEASURED = {
  "steps_per_second": 1.0,
  "policy_lag": 1.0,
  "wire_bytes": 4000,
  "compile_seconds": 5,
  "acting_wait_environments": 0.9,
  "acting_wait_learner": 0.0,
  "learning_wait_experience": 0.5,
}


@pytest.mark.slow
def test_runs_of_a_second_are_compared_in_a_table_and_a_figure(tmp_path, capfd):
  words = ["--experiments", f"{A2C} --seed 7", "--seeds", "1"]
  words += ["--total-steps", "1000000000", "--total-seconds", "1"]
  assert compare.main([*words, "--run-dir", str(tmp_path)]) == 0
  table = (tmp_path / "comparison.md").read_text()
  assert table in capfd.readouterr().out
  rows = table.splitlines()
  assert len(rows) == 3 and f"{A2C} --seed 7" in rows[2]
  picture = image.imread(tmp_path / "comparison.png")
  assert picture.shape[1] == 1200 and picture.std() > 0.05
  (path,) = tmp_path.rglob("metrics.jsonl")
  # The comparison sets the seeds, and overrides the experiment's --seed.
  assert records.read(path.parent).options["seed"] == 0
  last = metrics.read_lines(path)[-1]
  assert last["wall_seconds"] >= 1 and last["env_steps"] < 10**9


def test_the_figure_has_all_runs_and_the_table_medians_over_seeds(
  tmp_path, monkeypatch
):
  last_returns = {
    "a2c": [20.0, 30.0, 90.0],
    "ppo --learner-devices 0,1": [30.0, 40.0, 50.0],
  }

  def read(trial, study, **_):
    seed = trial.seed
    measured = MEASURED | {"policy_lag": seed, "steps_per_second": 10**seed}
    measured["info_won"] = seed / 8
    returns = [None, 10.0, last_returns[trial.label][seed]]
    lines = cases.lines_of([0, 1000, 2000], returns, **measured)
    return trials.Result(trial, lines, cpu_seconds=9 - seed)

  def results(self, planned, ends):
    return ((trial, "") for trial in planned)

  monkeypatch.setattr(pool.Pool, "results", results)
  monkeypatch.setattr(trials.Result, "read", staticmethod(read))
  drawn = []
  monkeypatch.setattr(plot, "draw", lambda *args: drawn.append(args))
  words = ["--experiments", ",".join(last_returns), "--seeds", "3"]
  assert compare.main([*words, "--run-dir", str(tmp_path)]) == 0
  _, _, row, _ = (tmp_path / "comparison.md").read_text().splitlines()
  expected = "`a2c` 30.0 0.125 2,000 200 5 10 2.0 1.0 - 8 environments"
  assert row.replace("|", "").split() == expected.split()
  ((panels, path),) = drawn
  assert path == tmp_path / "comparison.png"
  assert {
    label: [lines[-1]["episode_return"] for lines in group]
    for label, group in panels["CartPole-v1"].items()
  } == last_returns


def test_a_run_that_fails_or_is_interrupted_leaves_the_table_of_the_others(
  tmp_path, monkeypatch, capfd
):
  calls = []

  def train(self, trial, ends):
    calls.append(trial)
    if trial.label == "ppo":
      return "seedx train ppo ended with status 1: no memory"
    if len(calls) == 6:
      os.kill(os.getpid(), signal.SIGINT)
      assert self.stop.wait(60)
    return ""

  def read(trial, study, **_):
    return trials.Result(
      trial, cases.lines_of([0, 10], [None, 5.0], **MEASURED)
    )

  monkeypatch.setattr(pool.Pool, "_train", train)
  monkeypatch.setattr(trials.Result, "read", staticmethod(read))
  words = ["--experiments", "a2c,ppo", "--run-dir"]
  assert compare.main([*words, str(tmp_path / "a"), "--seeds", "2"]) == 1
  output = capfd.readouterr()
  assert "| `a2c` | 5.0 |" in output.out and "ppo" not in output.out
  assert "4/4 ppo, seed 1, about 0 min left" in output.err
  assert "ended with status 1: no memory" in output.err
  calls[:] = calls[:3]
  assert compare.main([*words, str(tmp_path / "b"), "--seeds", "3"]) == 130
  assert "| `a2c` | 5.0 |" in capfd.readouterr().out


@pytest.mark.parametrize(
  ("words", "reason"),
  [
    (["--experiments", "muzero"], "found 'muzero'"),
    (["--experiments", ""], "found none"),
    (["--experiments", f"{A2C} --epochs 3"], "unrecognized arguments"),
  ],
)
def test_a_wrong_option_exits_with_2_and_makes_no_directory(
  words, reason, tmp_path, capfd
):
  with pytest.raises(SystemExit) as caught:
    compare.main([*words, "--run-dir", str(tmp_path / "new" / "one")])
  assert caught.value.code == 2
  assert reason in capfd.readouterr().err
  assert not list(tmp_path.iterdir())
