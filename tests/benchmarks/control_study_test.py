"""The study beside CleanRL, with a program that only writes evaluations."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from benchmarks import control_study, watched

# Writes two evaluations; with the seed 1, it fails after the first.
PROGRAM = """
import json, sys
seed = int(sys.argv[1])
with open("evaluations.jsonl", "w") as file:
  for env_steps in (5, 10):
    print(json.dumps({"env_steps": env_steps, "mean": 1 + seed}), file=file)
    if seed == 1:
      sys.exit("no memory")
"""

pytestmark = pytest.mark.skipif(
  not (shutil.which("setpriv") and shutil.which("taskset")),
  reason="the programs of util-linux are missing",
)


@pytest.fixture(name="study")
def study_fixture(tmp_path, monkeypatch):
  def command(row, options, folder):
    return [sys.executable, "-c", PROGRAM, str(row.seed)]

  monkeypatch.setattr(control_study, "_command", command)
  here = ["--python", sys.executable, "--source", "."]
  sizes = ["--total-steps", "10", "--results", str(tmp_path)]

  def study(*words):
    return control_study.main([*here, *sizes, *words])

  return study


def test_a_finished_run_has_a_file_and_is_not_made_again(study, tmp_path):
  words = "--only", "td3_Hopper-v4_[02]"
  assert study(*words) == 0
  paths = sorted(tmp_path.glob("*.json"))
  assert [path.stem for path in paths] == [
    f"td3_Hopper-v4_{seed}_{program}"
    for seed in (0, 2)
    for program in ("cleanrl", "seedx")
  ]
  result = json.loads(paths[-1].read_text())
  assert result["program"] == "seedx" and result["seed"] == 2
  assert result["evaluations"] == [[5, 3], [10, 3]]
  times = [path.stat().st_mtime_ns for path in paths]
  assert study(*words) == 0
  assert [path.stat().st_mtime_ns for path in paths] == times


def test_a_failed_run_leaves_no_file(study, tmp_path, capsys):
  assert study("--only", "td3_Hopper-v4_1_seedx") == 1
  assert "no memory" in capsys.readouterr().out
  assert not [*tmp_path.iterdir()]


def test_the_figure_has_a_dark_twin(study, tmp_path):
  assert study("--only", "Hopper-v4_0") == 0
  picture = tmp_path / "study.png"
  assert study("--figure", "--picture", str(picture)) == 0
  assert picture.exists() and picture.with_stem("study_dark").exists()


def test_the_table_has_means_after_half_of_a_run_and_all_of_it():
  of_all = {"algorithm": "sac", "environment": "Hopper-v4", "commit": "abc"}
  curves = [
    (
      "seedx",
      0,
      [[4, 0.0], [50_038, 1000.0], [75_000, 7.0], [100_000, 2000.0]],
    ),
    (
      "seedx",
      1,
      [[0, 0.0], [50_001, 1200.0], [75_000, 7.0], [100_000, 2400.0]],
    ),
    ("cleanrl", 0, [[50_000, 500.0], [100_000, 600.0]]),
  ]
  rows = [
    {**of_all, "program": program, "seed": seed, "evaluations": curve}
    for program, seed, curve in curves
  ]
  *_, cleanrl, seedx = control_study.table(rows).splitlines()
  assert cleanrl == "| CleanRL `sac` | Hopper-v4 | 0 | 500 | 600 | abc |"
  assert seedx == (
    "| seedx `sac` | Hopper-v4 | 0, 1 | 1,100 ± 141 | 2,200 ± 283 | abc |"
  )


def test_a_process_of_idle_time_lowers_its_session_only():
  process = subprocess.Popen(
    ["cat"], preexec_fn=watched.use_idle_time, stdin=-1
  )
  group = pathlib.Path(f"/proc/{process.pid}/autogroup")
  try:
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
    if group.exists() and group.read_text():
      assert group.read_text().endswith("nice 19\n")
  finally:
    process.communicate()
