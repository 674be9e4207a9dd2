"""The comparison of pipelines: its runs, its table and its figure."""

import json

import numpy as np
import pytest
from matplotlib import image

from experiments import compare

A2C = "a2c --num-envs 4 --unroll-length 5 --hidden-sizes 8"


def lines_of(steps, returns, **more):
  return [
    {"env_steps": x, "wall_seconds": x / 10, "episode_return": y, **more}
    for x, y in zip(steps, returns, strict=True)
  ]


def test_quartiles_are_those_of_the_runs_that_have_come_so_far():
  runs = [
    lines_of([0, 10, 20], [0.0, 10.0, 20.0]),
    lines_of([0, 10, 20], [None, 4.0, 4.0]),
    lines_of([0, 10], [0.0, 30.0]),
  ]
  x, low, middle, high = compare.quartiles(runs, "env_steps", points=5)
  np.testing.assert_allclose(x, [0, 5, 10, 15, 20])
  # The second has no return before step 10, the third stays as it ended.
  np.testing.assert_allclose(middle, [0, 10, 10, 15, 20])
  np.testing.assert_allclose(low[2], np.quantile([10, 4, 30], 0.25))
  np.testing.assert_allclose(high[2], np.quantile([10, 4, 30], 0.75))


def test_quartiles_of_no_returns_are_unknown():
  runs = [lines_of([0, 10], [None, None])]
  assert all(np.isnan(x).all() for x in compare.quartiles(runs, "env_steps"))


def test_the_table_has_medians_over_seeds():
  waits = {
    "inference_wait_requests": 0.9,
    "inference_wait_queue": 0.0,
    "learner_wait_unrolls": 0.5,
  }
  runs = [
    compare.Run(
      "impala",
      lines_of(
        [0, 1000, 2000],
        [None, 10.0, last],
        steps_per_second=rate,
        policy_lag=lag,
        wire_bytes=4000,
        **waits,
      ),
      cpu_seconds=cpu,
    )
    for last, rate, lag, cpu in (
      (20, 5e3, 1, 9),
      (30, 7e3, 3, 8),
      (90, 1, 2, 7),
    )
  ]
  rows = compare._table(["impala"], runs).splitlines()
  cells = [cell.strip() for cell in rows[2].strip("|").split("|")]
  assert cells == [
    *("`impala`", "30.0", "2,000", "200", "5,000", "2.0", "2.0", "-", "8"),
    "environments",
  ]


def test_programs_are_run_and_compared(tmp_path, capfd):
  words = ["--experiments", f"{A2C} --seed 7", "--seeds", "2"]
  words = ["--total-steps", "800", *words, "--run-dir", str(tmp_path)]
  assert compare.main(words) == 0
  table = (tmp_path / "comparison.md").read_text()
  assert table in capfd.readouterr().out
  rows = table.splitlines()
  assert len(rows) == 3 and f"{A2C} --seed 7" in rows[2]
  picture = image.imread(tmp_path / "comparison.png")
  assert picture.shape[:2] == (560, 1200) and picture.std() > 0.05
  configs = [json.loads(x.read_text()) for x in tmp_path.rglob("config.json")]
  seeds = [config["seed"] for config in configs if "seed" in config]
  assert sorted(seeds) == [0, 1]  # The comparison's, whatever else is asked.


def test_a_budget_of_seconds_ends_a_run(tmp_path):
  words = ["--experiments", A2C, "--seeds", "1", "--total-seconds", "1"]
  words = [*words, "--total-steps", "1000000000", "--run-dir", str(tmp_path)]
  assert compare.main(words) == 0
  (path,) = tmp_path.rglob("metrics.jsonl")
  last = json.loads(path.read_text().splitlines()[-1])
  assert 1 <= last["wall_seconds"] < 30


@pytest.mark.parametrize(
  ("words", "reason"),
  [
    (["--experiments", "alphazero"], "experiments' names, found 'alphazero'"),
    (["--seeds", "0"], "seeds from 1"),
    (["--experiments", f"{A2C} --epochs 3"], "unrecognized arguments"),
  ],
)
def test_what_cannot_be_compared_exits_with_2(words, reason, tmp_path, capfd):
  with pytest.raises(SystemExit) as caught:
    compare.main([*words, "--run-dir", str(tmp_path)])
  assert caught.value.code == 2
  assert reason in capfd.readouterr().err
