"""Runs that hang: what is reported, and how they end."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types as types_lib
from unittest import mock

import pytest

from seedx import checkpoint, metrics, signals
from seedx.runtime import counters, hangs, process
from seedx.runtime import running as running_lib
from tests import programs, running


class Saver:
  """A saver that saves nothing."""

  def __init__(self, is_writing=False, is_saved=False):
    self.is_writing, self.is_saved = is_writing, is_saved

  def rescue(self):
    return "the newest state is saved"


def a_run(work, updates=lambda: 1, **fields):
  """Makes a process of one thread, whose lines have `learner_steps`."""
  acted = counters.ActingCounts()

  def line():
    return {"learner_steps": updates(), "wall_seconds": 1.0}

  return process.Process(
    acted=acted,
    parts={"acted": acted},
    policy=lambda saved: saved,
    measures=[types_lib.SimpleNamespace(measure=line)],
    threads={"worker": work},
    **fields,
  )


@pytest.fixture
def soon(monkeypatch):
  """Shortens all waits of the watch."""
  for name, seconds in {
    "_NOTE_SECONDS": 0.1,
    "_LATE_SECONDS": 0.3,
    "_END_SECONDS": 0.3,
    "_LEAVE_SECONDS": 5.0,
  }.items():
    monkeypatch.setattr(hangs, name, seconds)
  monkeypatch.setattr(signals, "_WATCH_SECONDS", 0.05)


def test_a_hanging_thread_is_reported_and_lines_are_still_written(soon, capfd):
  count, stop = itertools.count(), threading.Event()
  sink = running.Lines()

  def steps():
    for _ in range(5):
      yield time.sleep(0.02)
    # This thread writes no line while it waits.
    running.wait_until(lambda: len(sink.lines) > 5 and stalls())

  def stalls():
    seconds = [x["stalled_seconds"] for x in sink.lines[-3:]]
    return 0 < seconds[0] < seconds[1] < seconds[2]

  with signals.stopping(stop) as ending:
    watch = hangs.Watch(ending, hang_seconds=0.5)
    run = a_run(stop.wait, updates=lambda: min(3, next(count)), steps=steps)
    context = process.Context(stop)
    running_lib.run(run, context, [sink], 0.01, watch=watch)
    watch.close()
  # The run makes progress in the first lines, and hangs in the last ones.
  assert sink.lines[2]["stalled_seconds"] == 0
  err = capfd.readouterr().err
  report = re.search(r"no env step and no update for (\d) s; see \S+\n", err)
  assert report and err.count("no env step") <= 3
  assert "  worker: for " in err and "  main: for " in err


def test_no_hang_is_reported_before_the_first_update(soon, capfd):
  stop, sink = threading.Event(), running.Lines()

  def work():
    time.sleep(1.0)
    stop.set()

  with signals.stopping(stop) as ending:
    watch = hangs.Watch(ending, hang_seconds=0.2)
    running_lib.run(
      a_run(work), process.Context(stop), [sink], 0.05, watch=watch
    )
  assert {x["stalled_seconds"] for x in sink.lines} == {0.0}
  assert not capfd.readouterr().err


def test_a_slow_end_of_a_run_is_not_reported_as_a_hang(soon, capfd):
  # The last evaluation and the save of a large replay take long.
  count, stop, sink = itertools.count(), threading.Event(), running.Lines()
  with signals.stopping(stop) as ending:
    watch = hangs.Watch(ending, hang_seconds=0.2)
    run = a_run(
      stop.wait, lambda: next(count), done=lambda: len(sink.lines) > 3
    )
    running_lib.run(run, process.Context(stop), [sink], 0.01, watch=watch)
    lines = len(sink.lines)
    time.sleep(1.0)
    watch.close()
  assert not capfd.readouterr().err and len(sink.lines) == lines


def test_signals_stop_a_run_even_if_its_watch_fails(soon, capfd):
  stop = threading.Event()
  with signals.stopping(stop) as ending:
    ending.watch = mock.Mock(side_effect=LookupError("lost"))
    running.wait_until(lambda: ending.watch is None)
    signal.raise_signal(signal.SIGTERM)
    assert stop.wait(300)
  assert capfd.readouterr().err.count("LookupError('lost')") == 1


def test_a_place_names_a_function_and_a_line():
  inside = threading.Event()

  def wait():
    inside.set()
    threading.Event().wait(0.5)

  group = running_lib.ThreadGroup()
  group.start("worker", wait)
  inside.wait()
  time.sleep(0.1)
  (identifier,) = group.identifiers()
  place = hangs._place(sys._current_frames()[identifier])
  assert "ThreadGroup.start.<locals>.run, seedx/runtime/running.py:" in place
  group.join(60)
  frame = hangs._place(sys._getframe())
  assert "test_a_place_names_a_function" in frame


def test_the_place_of_a_thread_in_a_channel_is_the_function_that_uses_it():
  sink = metrics.Background("lines", running.Lines())
  time.sleep(0.1)
  place = hangs._place(sys._current_frames()[sink._thread.ident])
  sink.close()
  assert "Background._run, seedx/metrics/sinks.py:" in place


_LEAVES = """
import os, signal, threading, time
from seedx import signals
from seedx.runtime import hangs, process
from seedx.runtime import running as running_lib
from tests.runtime import hangs_test
hangs._END_SECONDS, signals._WATCH_SECONDS = 0.3, 0.05
stop = threading.Event()
with signals.stopping(stop) as ending:
  watch = hangs.Watch(ending, leaves=True)
  watch.saver = hangs_test.Saver({saver_fields})
  watch.leaving.append(lambda: print("left", flush=True))
  threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
  updates = []
  def work():
    for _ in range(4):
      time.sleep({seconds})
      if stop.is_set():
        break
      updates.append(1)
  run = hangs_test.a_run(work, lambda: len(updates))
  running_lib.run(run, process.Context(stop), (), 0.05, watch=watch)
  watch.close()
"""


@pytest.mark.parametrize(
  ("saver_fields", "seconds", "leaves"),
  [
    ("", 5.0, True),
    pytest.param("is_saved=True", 5.0, True, marks=pytest.mark.slow),
    # Neither a slow disk nor a step as slow as earlier ones is a hang.
    pytest.param("is_writing=True", 5.0, False, marks=pytest.mark.slow),
    pytest.param("", 1.2, False, marks=pytest.mark.slow),
  ],
)
def test_a_signal_ends_a_run_that_hangs_but_not_a_slow_one(
  saver_fields, seconds, leaves
):
  ended = subprocess.run(
    [
      sys.executable,
      "-c",
      _LEAVES.format(saver_fields=saver_fields, seconds=seconds),
    ],
    cwd=programs.ROOT,
    capture_output=True,
    text=True,
    check=False,
    timeout=300,
  )
  assert ended.returncode == (143 if leaves else 0), ended.stderr
  reports = "state is saved", "has not ended", "worker: for"
  assert all((x in ended.stderr) == leaves for x in reports), ended.stderr
  assert ("left" in ended.stdout) == leaves


def test_slow_sinks_are_waited_for_after_the_last_save(soon, monkeypatch):
  monkeypatch.setattr(hangs, "_CLOSE_SECONDS", 300.0)
  stop = threading.Event()
  with signals.stopping(stop) as ending:
    watch = hangs.Watch(ending, leaves=True)
    leave = mock.patch.object(watch, "_leave").start()
    watch.saver = Saver()
    sink = mock.Mock(close=lambda: time.sleep(1.0))
    with watch.closing([sink]):
      run = a_run(stop.set)
      running_lib.run(run, process.Context(stop), [sink], 0.05, watch=watch)
      signal.raise_signal(signal.SIGTERM)
      watch.saver.is_saved = True
    assert not leave.called
    running.wait_until(lambda: leave.called)
    watch.close()
  mock.patch.stopall()


HANGING_ENV = ("--env", "tests.own_envs:Hanging", "--env-options")
HANGING_UPDATES = ("-m", "tests.hanging_updates", "20")


@pytest.mark.slow
@pytest.mark.parametrize(
  ("program", "words", "place", "ctrl_cs"),
  [
    (
      ("-m", "experiments.seed_vtrace"),
      (*HANGING_ENV, json.dumps({"steps": 300}), "--envs-per-actor", "4"),
      "(Waits until a batch is complete",
      1,
    ),
    ((*HANGING_UPDATES, "a2c"), ("--num-envs", "4"), "Learner.learn", 1),
    ((*HANGING_UPDATES, "a2c"), ("--num-envs", "4"), "Learner.learn", 2),
  ],
)
def test_ctrl_c_ends_a_run_that_hangs(program, words, place, ctrl_cs, tmp_path):
  run_dir = tmp_path / "run"
  path = run_dir / "metrics.jsonl"
  options = "--total-steps 1000000000 --hang-seconds 4 --log-seconds 0.1"
  options += " --checkpoint-every-seconds 0 --run-dir"
  run = subprocess.Popen(
    [sys.executable, *program, *words, *options.split(), str(run_dir)],
    cwd=programs.ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
  )
  try:
    running.wait_until(
      lambda: path.exists() and _last(path).get("stalled_seconds", 0) > 6,
      lambda: run.poll() is None or pytest.fail(run.communicate()[1]),
    )
    start = time.monotonic()
    run.send_signal(signal.SIGINT)
    if ctrl_cs == 2:
      time.sleep(0.3)
      run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=300)
    seconds = time.monotonic() - start
  finally:
    run.poll() is None and os.killpg(run.pid, signal.SIGKILL)
  assert run.returncode == 130, err
  assert "no env step and no update for" in err and place in err, err
  assert "Traceback" not in err, err
  steps = checkpoint.Checkpoints(run_dir / "checkpoints").steps()
  if ctrl_cs == 2:
    assert seconds < 3 and not steps
    return
  assert seconds < 12
  assert steps == [_last(path)["env_steps"]]
  # `seed_vtrace` may end in order: its actors do not wait for hanging steps.
  ways = f"continues from checkpoint {steps[0]}", "continues the run"
  assert any(f"--resume {run_dir} {way}" in out + err for way in ways)


def _last(path):
  lines = metrics.read_lines(path)
  return lines[-1] if lines else {}
