"""A disk that is full or does not respond, which must not end a run."""

import contextlib
import errno
import itertools
import json
import os
import re
import resource
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from seedx import app, checkpoint, files, metrics, types
from seedx.acting import evaluator
from seedx.app import training, videos
from seedx.app.runs import checkpointer, evaluations
from seedx.envs import rendering
from seedx.metrics import events
from tests import programs, running
from tests.app import cases

compiled_once = programs.compiled_once
# A limit on the size of files acts like a full disk.
_MAX_BYTES = 20_000


@contextlib.contextmanager
def small_files(folder):
  """Lets files grow by 10 bytes more than the largest one of a folder."""
  sizes = [x.stat().st_size for x in folder.iterdir() if x.is_file()]
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  size = max(sizes, default=0) + 10
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def unwritable(number):
  """Lets no new file or directory be made, nor an old one be opened."""
  opened = os.open

  def open_or_fail(path, flags, *rest, **options):
    if flags & os.O_CREAT:
      _fail(number)
    return opened(path, flags, *rest, **options)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(os, "open", open_or_fail)
    patch.setattr(os, "mkdir", lambda *_, **__: _fail(number))
    yield


# Ways in which a disk fails. The first stops in the middle of a write.
FAILURES = {
  "small files": small_files,
  "full": lambda folder: unwritable(errno.ENOSPC),
}


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
    _fail(errno.ENOSPC)

  def close(self):
    pass


def test_a_failing_sink_is_reported_once_and_tried_again(capfd):
  sink = metrics.Background("metrics.jsonl", Full())
  for step in range(5):
    sink.write({"env_steps": step})
  sink.close()
  sink.close()
  assert sink.unwritten == ["5 line(s) of metrics.jsonl"]
  assert capfd.readouterr().err == (
    "cannot write metrics.jsonl ([Errno 28] No space left on device); trying"
    " again\nmetrics.jsonl lacks 5 lines: they could not be written\n"
  )


@pytest.mark.parametrize(
  ("make", "kind", "failing"),
  [
    *itertools.product([metrics.JsonLines], FAILURES, [0, 9]),
    *itertools.product([events.TensorBoard], FAILURES, [0]),
    (events.TensorBoard, "small files", 9),
  ],
)
def test_a_line_that_cannot_be_written_is_counted_and_spoils_no_other(
  make, kind, failing, tmp_path, monkeypatch, capfd
):
  """The disk is full for the first or the last line."""
  monkeypatch.setattr(events, "_RETRY_SECONDS", 0.0)
  is_json = make is metrics.JsonLines
  sink = make(tmp_path / "metrics.jsonl" if is_json else tmp_path)
  write = sink.write

  def write_or_fail(line):
    fails = line["env_steps"] == failing
    with FAILURES[kind](tmp_path) if fails else contextlib.nullcontext():
      write(line)

  sink.write = write_or_fail
  background = metrics.Background("x", sink)
  for step in range(10):
    background.write({"env_steps": step, "a": float(step)})
  background.close()
  if is_json:
    text = (tmp_path / "metrics.jsonl").read_text()
    steps = [json.loads(line)["env_steps"] for line in text.splitlines()]
  else:
    steps = [
      event.step
      for path in sorted(tmp_path.iterdir())
      for event in _events(path)
      if event.summary.value
    ]
  assert steps == [step for step in range(10) if step != failing]
  assert background.unwritten == ["1 line(s) of x"]
  error = capfd.readouterr().err
  assert error.count("cannot write x (") == 1
  assert error.count("x is written again; 1 lines") == (failing < 9)


def test_a_hanging_sink_does_not_delay_a_run(capfd):
  lines = Hangs()
  sink = metrics.Background("metrics.jsonl", lines, patience_seconds=0.2)
  for step in range(1000):
    sink.write({"env_steps": step})
  sink.close()
  assert sink.unwritten == ["the rest of metrics.jsonl"]
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
  assert sink.unwritten == [f"{1000 - taken} line(s) of metrics.jsonl"]


def test_a_half_written_file_is_removed(tmp_path):
  files.write_file(tmp_path / "a.json", "old")
  refused = pytest.raises(types.ConfigError, match="File too large")
  with refused, small_files(tmp_path):
    files.write_file(tmp_path / "a.json", "x" * 50_000)
  assert [x.read_text() for x in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize(
  ("failing", "saved"),
  [
    ([20], [10, 30]),
    ([30], [10, 20]),
    ([10, 20, 30], []),
  ],
)
def test_a_run_is_saved_if_its_last_checkpoint_is(
  kind, failing, saved, tmp_path, monkeypatch
):
  run = cases.Counting()
  kept = cases.Keeper(run, tmp_path, monkeypatch, 1)
  for env_steps in (10, 20, 30):
    run.acted.add(10, np.array([]), np.array([]))
    fails = env_steps in failing
    with FAILURES[kind](tmp_path) if fails else contextlib.nullcontext():
      kept.check_after(2) if env_steps < 30 else kept.finish(False)
  assert kept.is_saved == (30 in saved)
  assert kept.unwritten == ([] if kept.is_saved else ["checkpoint 30"])
  folder = checkpointer.directory(tmp_path)
  names = sorted(folder.names()) if folder.has(".") else []
  assert names == [str(step) for step in saved]
  resumed = cases.Counting()
  other = cases.Keeper(resumed, tmp_path, monkeypatch)
  if not saved:
    with pytest.raises(types.ConfigError, match="found none yet"):
      other.restore()
  else:
    other.restore()
    assert resumed.acted.env_steps == saved[-1]


def test_a_checkpoint_is_saved_although_older_ones_cannot_be_removed(
  tmp_path, monkeypatch
):
  run = cases.Counting()
  kept = cases.Keeper(run, tmp_path, monkeypatch, 1)
  replace = os.replace

  def replace_or_fail(name, new, **options):
    if new.endswith(".removed"):
      _fail(errno.EDQUOT)
    replace(name, new, **options)

  monkeypatch.setattr(os, "replace", replace_or_fail)
  for _ in range(3):
    run.acted.add(10, np.array([]), np.array([]))
    kept.check_after(2)
  run.acted.add(10, np.array([]), np.array([]))
  kept.finish(False)
  assert kept.is_saved and not kept.unwritten
  assert programs.steps_of(tmp_path) == [10, 20, 30, 40]


def test_a_score_that_cannot_be_written_is_reported(
  tmp_path, monkeypatch, capfd
):
  run, evaluation = cases.Counting(), cases.Evaluation()
  kept = cases.Keeper(run, tmp_path, monkeypatch, 0, evaluation)
  kept.check_after(0)
  evaluation.means[0] = 5.0
  with unwritable(errno.ENOSPC):
    kept.check_after(0)
  kept.finish(False)
  assert kept.is_saved
  assert kept.unwritten == ["the score of checkpoint 0"]
  assert "cannot write the score of checkpoint 0 (No space" in (
    capfd.readouterr().err
  )


@pytest.mark.parametrize("kind", FAILURES)
def test_evaluations_and_videos_that_cannot_be_written_are_counted(
  kind, tmp_path, monkeypatch
):
  played = evaluator.Results(
    np.array([1.0]), np.array([0]), 9, 0, np.empty((1, 0))
  )
  monkeypatch.setattr(evaluator.Evaluator, "play", lambda *_: played)
  video = metrics.Video(0, (1, 1), b"x" * 99)
  monkeypatch.setattr(videos, "record_small", lambda *_: video)
  monkeypatch.setattr(rendering, "check_render", lambda _: None)
  evaluation = evaluations.of(
    cases.small(),
    evaluations.Config(evaluate_every_steps=100, record_video=True),
    tmp_path,
  )
  for env_steps in (100, 200, 300):
    fails = env_steps < 300
    with FAILURES[kind](tmp_path) if fails else contextlib.nullcontext():
      evaluation.finish(env_steps, None, stop=False)
  assert evaluation.lost == {
    "line(s) of evaluations.jsonl": 2,
    "video(s) of an evaluation": 2,
  }
  (line,) = programs.lines_of(tmp_path / "evaluations.jsonl")
  assert line["env_steps"] == 300
  assert [x.name for x in (tmp_path / "videos").iterdir()] == ["300.gif"]


@pytest.mark.parametrize("name", ["a.gif", "a.mp4"])
def test_a_video_that_cannot_be_written_replaces_none(
  name, tmp_path, monkeypatch
):
  noise = np.random.default_rng(0).integers(0, 255, (9, 64, 64, 3), np.uint8)
  monkeypatch.setattr(videos, "_frames", lambda *_: iter(noise))
  (tmp_path / name).write_text("old")
  path = str(tmp_path / name)
  refused = pytest.raises(types.ConfigError, match="cannot write")
  with refused, small_files(tmp_path):
    videos.record(cases.CARTPOLE, None, None, 0, path)
  assert [x.read_text() for x in tmp_path.iterdir()] == ["old"]


# The end of a run: its last line, its exit status, and its exception.

_LOST = ["checkpoint 400", "2 line(s) of metrics.jsonl"]


@pytest.mark.parametrize(
  ("unwritten", "is_saved", "signal", "status", "raised"),
  [
    (_LOST[1:], True, 0, 0, None),
    (_LOST, False, 0, 74, OSError),
    (_LOST[1:], True, 130, 130, KeyboardInterrupt),
    (_LOST, False, 143, 143, SystemExit),
  ],
)
def test_a_run_ends_with_what_could_not_be_written(
  unwritten, is_saved, signal, status, raised, tmp_path, monkeypatch, capfd
):
  line = {"env_steps": 400, "episode_return": None, "episodes": 0}
  ended = training.Run(
    tmp_path,
    {**line, "learner_steps": 1},
    status=signal,
    is_saved=is_saved,
    unwritten=unwritten,
  )
  monkeypatch.setattr(training, "run", lambda *_, **__: ended)
  assert cases.train("", tmp_path) == status
  *_, last = capfd.readouterr().out.splitlines()
  missing = f"not written: {', '.join(unwritten)}; the rest is"
  assert last == f"{missing} in {tmp_path}"
  end = contextlib.nullcontext() if raised is None else pytest.raises(raised)
  with end as caught:
    assert app.train(cases.small()) is ended
  if signal and not is_saved:
    assert "checkpoint 400" in str(caught.value.__cause__)
    with pytest.raises(OSError, match="checkpoint 400"):
      app.train(cases.small(), return_interrupted=True)


@pytest.mark.slow
def test_a_full_disk_does_not_end_a_run(tmp_path):
  """Metrics, checkpoints and the learning curve cannot be written."""
  words = ["-m", "experiments.a2c", "--total-steps", "40000"]
  words += ["--log-seconds", "0", "--checkpoint-every-seconds", "1"]
  words += ["--evaluate-every-steps", "20000", "--evaluate-episodes", "2"]
  words += ["--hidden-sizes", "256,256", "--run-dir", str(tmp_path / "run")]
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
  out, error = program.communicate(timeout=600)
  assert program.returncode == 74, error
  assert error.count("cannot write metrics.jsonl (") == 1
  assert error.count("cannot write TensorBoard's events (") >= 1
  assert error.count("cannot write checkpoint") >= 2
  assert "cannot draw learning_curve.png: cannot write" in error
  assert "CartPole-v1: mean return" in out
  *_, last = out.splitlines()
  assert re.fullmatch(
    r"not written: checkpoint 4\d{4}, \d+ line\(s\) of metrics.jsonl, \d+"
    r" line\(s\) of TensorBoard's events, learning_curve.png; the rest is in"
    f" {tmp_path}/run",
    last,
  )
  lines = metrics.read_lines(tmp_path / "run" / "metrics.jsonl")
  assert len(lines) > 5
  assert not list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.slow
def test_output_that_cannot_be_written_does_not_end_a_run(tmp_path):
  words = ["-m", "experiments.a2c", "--total-steps", "2000"]
  words += ["--run-dir", str(tmp_path / "run")]
  with open("/dev/full", "w") as full:
    program = subprocess.run(
      [sys.executable, *words], cwd=programs.ROOT, stdout=full, stderr=full
    )
  assert program.returncode == 0
  assert checkpoint.Checkpoints(tmp_path / "run" / "checkpoints").steps()


def _fail(number):
  raise OSError(number, os.strerror(number))


def _events(path):
  """Yields the events of a file up to the first unreadable one."""
  content, offset = path.read_bytes(), 0
  while len(content) >= offset + 12:
    (size,) = struct.unpack_from("<Q", content, offset)
    text = content[offset + 12 : offset + 12 + size]
    offset += 16 + size
    if len(content) >= offset:
      yield event_pb2.Event.FromString(text)
