"""Tests of trials: their processes, directories and errors."""

import os
import subprocess
import sys
import threading
from unittest import mock

import pytest

from seedx import types
from seedx.app.studies import pool, trials
from tests import programs, running

compiled_once = programs.compiled_once


@pytest.mark.parametrize(
  ("status", "error", "printed"),
  [
    (0, "", ""),
    (143, "", ""),
    (-15, "", ""),
    (1, "seedx train a2c ended with 1: error: no memory", ""),
    (74, "", "ended with 74"),  # The last checkpoint is not saved.
  ],
)
def test_only_an_unexpected_status_at_the_end_is_an_error(
  tmp_path, monkeypatch, capfd, status, error, printed
):
  leave = f"exit {status}" if status >= 0 else f"kill {status} $$"
  program = tmp_path / "program"
  program.write_text(f"#!/bin/sh\necho error: no memory; read x; {leave}\n")
  program.chmod(0o755)
  monkeypatch.setattr(sys, "executable", str(program))
  trial = trials.Trial("some/a", ["a2c"])
  run = trials.Running(trial, tmp_path)
  run.end()
  actual = run.error()
  assert error in actual and bool(actual) == bool(error)
  err = capfd.readouterr().err
  assert printed in err and bool(err) == bool(printed)
  with pytest.raises(types.ConfigError, match="cannot write in"):
    trials.Running(trial, tmp_path)  # The directory has a run's output.


_STARTS = """
import os, sys
from seedx.app.studies import trials
run = trials.Running(trials.Trial("a", sys.argv[2:]), sys.argv[1])
print(run.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_no_trial_outlives_the_program_that_started_it(tmp_path):
  words = "a2c --hidden-sizes 8 --log-seconds 0 --total-steps 100000000"
  parent = subprocess.Popen(
    [sys.executable, "-c", _STARTS, str(tmp_path), *words.split()],
    cwd=programs.ROOT,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  pid = int(parent.stdout.readline())
  running.wait_until((tmp_path / "a" / "metrics.jsonl").exists)
  parent.kill()
  parent.wait()
  running.wait_until(lambda: not _is_running(pid))
  assert os.listdir(tmp_path / "a" / "checkpoints")


def _is_running(pid):
  try:
    with open(f"/proc/{pid}/stat") as file:
      return file.read().rpartition(")")[2].split()[0] != "Z"
  except FileNotFoundError:
    return False


@pytest.mark.parametrize(
  ("text", "cause"),
  [
    ("Traceback\n  File\nValueError: no\n\n", "ValueError: no"),
    (
      "\x1b[36mRayError\x1b[39m: its node died\n\x1b[0m\n",
      "RayError: its node died",
    ),
    ("\x1b[0m\n---\n", "its process died"),
  ],
)
def test_the_cause_is_the_last_line_with_a_word(text, cause):
  assert trials.cause(text) == cause


def test_metrics_of_another_program_are_an_error(tmp_path):
  (tmp_path / "a").mkdir()
  (tmp_path / "a" / "metrics.jsonl").write_text('{"step": 1}\n')
  result = trials.Result.read(trials.Trial("a", ["ppo"]), tmp_path)
  assert result.last == {} and result.error.startswith("metrics.jsonl without")


def test_a_resumed_study_trains_what_has_failed_or_has_not_ended(tmp_path):
  record = pool.Record(tmp_path, pool.ENDED)
  record.add({"name": "0", "error": ""})
  record.add({"name": "1", "error": "a full disk"})
  started = []

  def start(trial, run_dir):
    started.append((trial.name, trial.resumes))
    job = mock.MagicMock()
    job.error.return_value = ""
    return job

  planned = [trials.Trial(str(k), ["a2c"], k) for k in range(3)]
  stop = threading.Event()
  places = pool.Pool(tmp_path, stop, start=start, resumes=True)
  assert [error for _, error in places.results(planned)] == ["", "", ""]
  assert started == [("1", True), ("2", True)]
