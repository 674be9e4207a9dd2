"""Runs whose disk is full: what cannot be written does not end them."""

import os
import pathlib
import resource
import subprocess
import sys
import threading

import pytest

from seedx import checkpoint, metrics
from tests import programs, running

_FULL = pathlib.Path("/dev/full")
# A file system that takes files of this size only is as good as a full one.
_MOST_BYTES = 20_000


class Hangs(running.Lines):
  """A sink on a disk that does not answer until it is freed."""

  def __init__(self):
    super().__init__()
    self.free = threading.Event()

  def write(self, line):
    self.free.wait(600)
    super().write(line)


def test_a_sink_that_fails_is_said_once_and_gets_no_more(capfd):
  sink = metrics.Background("metrics.jsonl", metrics.JsonLines(_FULL))
  for step in range(5):
    sink.write({"env_steps": step})
  sink.close()
  sink.close()
  assert capfd.readouterr().err == (
    "cannot write metrics.jsonl any more ([Errno 28] No space left on device)\n"
  )


def test_a_sink_that_hangs_holds_nobody_up(capfd):
  lines = Hangs()
  sink = metrics.Background("metrics.jsonl", lines, patience_seconds=0.2)
  for step in range(1000):
    sink.write({"env_steps": step})
  sink.close()
  lines.free.set()
  assert "metrics.jsonl lacks its last lines" in capfd.readouterr().err


def test_a_sink_that_hung_for_a_while_gets_the_lines_after_it(capfd):
  lines = Hangs()
  sink = metrics.Background("metrics.jsonl", lines, patience_seconds=600)
  for step in range(1000):
    sink.write({"env_steps": step})
  lines.free.set()
  sink.close()
  steps = [line["env_steps"] for line in lines.lines]
  assert steps == sorted(steps)
  taken, said = len(steps), capfd.readouterr().err
  assert taken >= 100
  assert f"metrics.jsonl lacks {1000 - taken} lines" in said


def test_half_a_file_is_removed(tmp_path):
  small = _with_small_files(
    "import pathlib, sys; from seedx import metrics, types\n"
    "path = pathlib.Path(sys.argv[1], 'a.json')\n"
    "try: metrics.write_file(path, 'x' * 50_000)\n"
    "except types.ConfigError as error: print(error)",
    str(tmp_path),
  )
  assert "File too large" in small.stdout and not list(tmp_path.iterdir())


def test_half_a_checkpoint_is_removed_and_the_next_one_is_saved(tmp_path):
  script = """
import sys
import numpy as np
from seedx import checkpoint

kept = checkpoint.Checkpoints(sys.argv[1], keep=2)
rng = np.random.default_rng(0)
for step, size in enumerate((10, 50_000, 50_000, 10)):
  try:
    kept.save(step, {"run": rng.random(size), "acting": np.zeros(3)}, 0.0)
  except OSError as error:
    print(error)
"""
  ended = _with_small_files(script, str(tmp_path))
  for step, said in enumerate(ended.stdout.splitlines(), 1):
    assert f"cannot write checkpoint {step} in {str(tmp_path)!r}" in said
  assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "3"]
  assert checkpoint.Checkpoints(tmp_path).steps() == [0, 3]


@pytest.mark.slow
def test_a_full_disk_ends_no_run(tmp_path):
  """All sinks fail, some checkpoints and the learning curve do."""
  words = ["-m", "experiments.a2c", "--total-steps", "40000"]
  words += ["--log-seconds", "0", "--checkpoint-every-seconds", "1"]
  words += ["--evaluate-every-steps", "20000", "--evaluate-episodes", "2"]
  words += ["--hidden-sizes", "256,256", "--run-dir", str(tmp_path / "run")]
  ended = _with_small_files(*words)
  assert ended.returncode == 0, ended.stderr
  said = ended.stderr
  assert said.count("cannot write metrics.jsonl any more") == 1
  assert said.count("cannot write TensorBoard's events any more") == 1
  assert said.count("cannot write checkpoint") >= 2
  assert "there is no learning_curve.png: cannot write" in said
  assert "CartPole-v1: mean return" in ended.stdout
  lines = metrics.read_lines(tmp_path / "run" / "metrics.jsonl")
  assert len(lines) > 5
  assert not list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.slow
def test_words_that_cannot_be_written_are_no_failure(tmp_path):
  words = ["-m", "experiments.a2c", "--total-steps", "2000"]
  words += ["--run-dir", str(tmp_path / "run")]
  with _FULL.open("w") as full:
    program = subprocess.run(
      [sys.executable, *words], cwd=programs.ROOT, stdout=full, stderr=full
    )
  assert program.returncode == 0
  assert checkpoint.Checkpoints(tmp_path / "run" / "checkpoints").steps()


def _with_small_files(*words):
  """Runs Python where no file can be larger."""
  words = words if words[0] == "-m" else ("-c", *words)
  program = subprocess.Popen(
    [sys.executable, *words],
    cwd=programs.ROOT,
    env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  limits = (_MOST_BYTES, _MOST_BYTES)
  resource.prlimit(program.pid, resource.RLIMIT_FSIZE, limits)
  out, err = program.communicate(timeout=600)
  return subprocess.CompletedProcess(words, program.returncode, out, err)
