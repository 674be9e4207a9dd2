"""A disk that is full or does not respond, which must not end a run."""

import errno
import os
import pathlib
import resource
import struct
import subprocess
import sys
import threading

import pytest
from tensorboardX.proto import event_pb2

from seedx import checkpoint, metrics
from tests import programs, running

_FULL = pathlib.Path("/dev/full")
# A limit on the size of files acts like a full disk.
_MAX_BYTES = 20_000


class Hangs(running.Lines):
  """A sink on a disk that does not respond until `free` is set."""

  def __init__(self):
    super().__init__()
    self.free = threading.Event()

  def write(self, line):
    self.free.wait(600)
    super().write(line)


class Full:
  """A sink on a full disk."""

  def write(self, line):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  def close(self):
    pass


def test_a_failing_sink_is_reported_once_and_tried_again(capfd):
  sink = metrics.Background("metrics.jsonl", Full())
  for step in range(5):
    sink.write({"env_steps": step})
  sink.close()
  sink.close()
  assert capfd.readouterr().err == (
    "cannot write metrics.jsonl ([Errno 28] No space left on device); trying"
    " again\nmetrics.jsonl lacks 5 lines: they could not be written\n"
  )


def test_a_sink_gets_the_lines_after_a_failure_of_the_disk(tmp_path):
  """Metrics and events stay readable, and lack only lines of the failures."""
  script = """
import os, resource, sys
from seedx import metrics
from seedx.metrics import events

def room(size):
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

events._FLUSH_SECONDS = 0.0
lines = metrics.JsonLines(os.path.join(sys.argv[1], "metrics.jsonl"))
sinks = {"lines": lines, "events": events.TensorBoard(sys.argv[1])}
sinks = [metrics.Background(k, x) for k, x in sinks.items()]

def write(steps):
  for step in steps:
    for sink in sinks:
      sink.write({"env_steps": step, "wall_seconds": float(step), "a": 1.0})
  for sink in sinks:
    while len(sink._lines):
      pass

write(range(10))
room(1000)
write(range(10, 50))
room(10**9)
write(range(50, 60))
for sink in sinks:
  sink.close()
"""
  done = subprocess.run(
    [sys.executable, "-c", script, str(tmp_path)],
    cwd=programs.ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  steps = {
    x["env_steps"] for x in metrics.read_lines(tmp_path / "metrics.jsonl")
  }
  assert {*range(10), *range(50, 60)} <= steps and len(steps) < 60
  # After a failure, events continue in a new file, with room for a few lines.
  for name, maximum in (("lines", 1), ("events", 10)):
    failures = done.stderr.count(f"cannot write {name} (")
    assert 1 <= failures <= maximum
    assert done.stderr.count(f"{name} is written again; ") == failures
  events = [
    event.step
    for path in sorted(tmp_path.glob("events*"))
    for event in _events(path)
  ]
  assert {*range(10), *range(51, 60)} <= {*events}


def test_a_hanging_sink_does_not_delay_a_run(capfd):
  lines = Hangs()
  sink = metrics.Background("metrics.jsonl", lines, patience_seconds=0.2)
  for step in range(1000):
    sink.write({"env_steps": step})
  sink.close()
  lines.free.set()
  assert "metrics.jsonl lacks its last lines" in capfd.readouterr().err


def test_a_sink_that_hung_for_a_while_gets_later_lines(capfd):
  lines = Hangs()
  sink = metrics.Background("metrics.jsonl", lines, patience_seconds=600)
  for step in range(1000):
    sink.write({"env_steps": step})
  lines.free.set()
  sink.close()
  steps = [line["env_steps"] for line in lines.lines]
  assert steps == sorted(steps)
  taken, error = len(steps), capfd.readouterr().err
  assert taken >= 100
  assert f"metrics.jsonl lacks {1000 - taken} lines" in error


def test_a_half_written_file_is_removed(tmp_path):
  ended = _with_small_files(
    "import pathlib, sys; from seedx import files, types\n"
    "path = pathlib.Path(sys.argv[1], 'a.json')\n"
    "try: files.write_file(path, 'x' * 50_000)\n"
    "except types.ConfigError as error: print(error)",
    str(tmp_path),
  )
  assert "File too large" in ended.stdout and not list(tmp_path.iterdir())


def test_a_half_written_checkpoint_is_removed_and_the_next_one_saved(tmp_path):
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
  for step, line in enumerate(ended.stdout.splitlines(), 1):
    assert f"cannot write checkpoint {step} in {str(tmp_path)!r}" in line
  assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "3"]
  assert checkpoint.Checkpoints(tmp_path).steps() == [0, 3]


@pytest.mark.slow
def test_a_full_disk_does_not_end_a_run(tmp_path):
  """Metrics, checkpoints and the learning curve cannot be written."""
  words = ["-m", "experiments.a2c", "--total-steps", "40000"]
  words += ["--log-seconds", "0", "--checkpoint-every-seconds", "1"]
  words += ["--evaluate-every-steps", "20000", "--evaluate-episodes", "2"]
  words += ["--hidden-sizes", "256,256", "--run-dir", str(tmp_path / "run")]
  ended = _with_small_files(*words)
  assert ended.returncode == 0, ended.stderr
  error = ended.stderr
  assert error.count("cannot write metrics.jsonl (") == 1
  assert error.count("cannot write TensorBoard's events (") >= 1
  assert error.count("cannot write checkpoint") >= 2
  assert "cannot draw learning_curve.png: cannot write" in error
  assert "CartPole-v1: mean return" in ended.stdout
  lines = metrics.read_lines(tmp_path / "run" / "metrics.jsonl")
  assert len(lines) > 5
  assert not list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.slow
def test_output_that_cannot_be_written_does_not_end_a_run(tmp_path):
  words = ["-m", "experiments.a2c", "--total-steps", "2000"]
  words += ["--run-dir", str(tmp_path / "run")]
  with _FULL.open("w") as full:
    program = subprocess.run(
      [sys.executable, *words], cwd=programs.ROOT, stdout=full, stderr=full
    )
  assert program.returncode == 0
  assert checkpoint.Checkpoints(tmp_path / "run" / "checkpoints").steps()


def _events(path):
  """Yields the events of a file up to the first unreadable one."""
  content, offset = path.read_bytes(), 0
  while len(content) >= offset + 12:
    (size,) = struct.unpack_from("<Q", content, offset)
    text = content[offset + 12 : offset + 12 + size]
    offset += 16 + size
    if len(content) >= offset:
      yield event_pb2.Event.FromString(text)


def _with_small_files(*words):
  """Runs Python with a limit on the size of files."""
  words = words if words[0] == "-m" else ("-c", *words)
  program = subprocess.Popen(
    [sys.executable, *words],
    cwd=programs.ROOT,
    env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  limits = (_MAX_BYTES, _MAX_BYTES)
  resource.prlimit(program.pid, resource.RLIMIT_FSIZE, limits)
  out, err = program.communicate(timeout=600)
  return subprocess.CompletedProcess(words, program.returncode, out, err)
