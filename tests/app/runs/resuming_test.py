"""`--resume auto`, with which the same command begins and continues a run."""

import numpy as np
import pytest

from experiments import a2c as a2c_experiment
from experiments import ppo as ppo_experiment
from seedx import app, metrics, types
from seedx.app.runs import checkpointer, resuming, run_folders
from tests import programs, running
from tests.app import cases

compiled_once = programs.compiled_once
small = cases.small

SMALL = (
  "--total-steps 100 --num-envs 4 --unroll-length 5 --hidden-sizes 8 --quiet"
)


def lines_of(run_dir):
  return metrics.read_lines(run_dir / "metrics.jsonl")


def test_the_same_command_begins_and_continues_a_run(tmp_path, capfd):
  run_dir = tmp_path / "run"
  words = ["--run-dir", str(run_dir), "--resume", "auto", *SMALL.split()]
  assert programs.main(a2c_experiment, words) == 0
  first = lines_of(run_dir)
  assert programs.main(a2c_experiment, words) == 0
  assert "has made all of its steps" in capfd.readouterr().out
  assert programs.main(a2c_experiment, [*words, "--total-steps", "200"]) == 0
  assert programs.steps_of(run_dir)[-1] >= 200
  assert lines_of(run_dir)[: len(first)] == first
  # The run is continued with the rules of a resume.
  other = ["--run-dir", str(run_dir), "--resume", "auto"]
  error = programs.refused(ppo_experiment, other, capfd)
  assert "expected a run of ppo to --resume, found one of a2c" in error
  error = programs.refused(a2c_experiment, [*words, "--seed", "3"], capfd)
  assert "found another --seed" in error


def test_a_checkpoint_is_written_after_every_number_of_env_steps(tmp_path):
  process = running.Own(small()).process
  config = checkpointer.Config(keep_checkpoints=1, keep_every_steps=50)
  kept = checkpointer.Checkpointer(process, tmp_path, config, None)
  for env_steps in (30, 30, 30, 60, 30):
    process.acted.add(env_steps, np.full(1, np.nan), np.zeros(1))
    kept.check()
    kept.wait()
  assert programs.steps_of(tmp_path) == [60, 150]


def test_a_run_without_a_checkpoint_begins_again(tmp_path, capfd):
  app.train(small(), run_dir=str(tmp_path), quiet=True)
  before = lines_of(tmp_path)
  # The process was killed before the first checkpoint was complete.
  checkpoints = checkpointer.directory(tmp_path)
  (saved,) = checkpoints.names()
  checkpoints.rename(saved, f"{saved}.unfinished")
  with pytest.raises(types.ConfigError, match="already has a run"):
    app.train(small(), run_dir=str(tmp_path), quiet=True)
  refused = pytest.raises(
    types.ConfigError, match="another process is training"
  )
  with run_folders.claimed(tmp_path), refused:
    app.train(small(), run_dir=str(tmp_path), resume="auto", quiet=True)
  assert lines_of(tmp_path) == before
  words = ["--run-dir", str(tmp_path), "--resume", "auto", *SMALL.split()]
  error = programs.refused(a2c_experiment, words, capfd)
  assert "expected a run of a2c" in error and lines_of(tmp_path) == before
  run = app.train(small(), run_dir=str(tmp_path), resume="auto", quiet=True)
  assert "begins again" in capfd.readouterr().err
  assert run.run_dir == tmp_path and lines_of(tmp_path)[0] != before[0]
  assert len(programs.steps_of(tmp_path)) == 1
  # Another start may have saved a checkpoint meanwhile.
  resuming.forget_unsaved(tmp_path, None)
  assert len(programs.steps_of(tmp_path)) == 1
  more = app.train(small(200), run_dir=str(tmp_path), resume="auto", quiet=True)
  assert more.metrics["env_steps"] >= 200


def test_auto_needs_the_directory_of_the_run(tmp_path, capfd, monkeypatch):
  monkeypatch.chdir(tmp_path)
  error = programs.refused(a2c_experiment, ["--resume", "auto"], capfd)
  assert "add --run-dir DIR" in error
  with pytest.raises(types.ConfigError, match="add --run-dir DIR"):
    app.train(small(), resume="auto", quiet=True)
  # Files that are not those of a run are not touched.
  (tmp_path / "metrics.jsonl").write_text("mine")
  with pytest.raises(types.ConfigError, match=r"without metrics\.jsonl"):
    app.train(small(), run_dir=".", resume="auto", quiet=True)
  (tmp_path / "file").touch()
  with pytest.raises(types.ConfigError, match="cannot write in"):
    app.train(small(), run_dir="file", resume="auto", quiet=True)
