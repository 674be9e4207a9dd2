"""The main loop of a process: its lines, its failures and its end."""

import threading
import time
import types as types_lib

import numpy as np
import pytest

from seedx import channels, checkpoint, metrics, types
from seedx.app.runs import checkpointer
from seedx.runtime import clocks, counters, hosts, process, process_parts
from seedx.runtime import running as running_lib
from tests import running


def make(**fields):
  acted = counters.ActingCounts()
  fields = {
    "parts": {"acted": acted},
    "measures": [acted],
    "policy": lambda saved: saved,
    **fields,
  }
  return process.Process(acted=acted, **fields)


def test_a_run_ends_when_its_work_is_done_and_all_sinks_get_its_lines():
  sinks, done = [running.Lines(), running.Lines()], threading.Event()

  def work():
    running.wait_until(lambda: len(sinks[0].lines) >= 3)
    done.set()

  made = make(
    done=done.is_set,
    measures=[
      types_lib.SimpleNamespace(measure=lambda: {"a": 1, "b": 1}),
      types_lib.SimpleNamespace(measure=lambda: {"b": 2}),
    ],
    threads={"worker": work},
  )
  context = process.Context()
  last = running_lib.run(made, context, sinks, log_seconds=0.05)
  assert last == {"env_steps": 0, "a": 1, "b": 2, "stalled_seconds": 0.0}
  assert metrics.clock(last) == "env_steps"
  assert sinks[0].lines == sinks[1].lines
  assert context.stop.is_set()


def test_a_host_that_stops_continues_until_all_hosts_stop():
  context = process.Context(hosts=hosts.Hosts(0, 2))
  context.stop.set()
  threading.Timer(0.3, context.hosts.over.set).start()
  start, used = time.monotonic(), time.process_time()
  running_lib.run(make(), context)
  assert context.hosts.over.is_set() and not context.hosts.failed
  # The main thread pauses between two polls.
  assert time.process_time() - used < 0.6 * (time.monotonic() - start)


def test_a_stop_ends_the_waits_of_threads_before_other_hosts_agree():
  context = process.Context(hosts=hosts.Hosts(0, 2))
  channel = channels.Channel()

  def work():
    context.stop.set()
    assert channel.get() == []
    # A learner would set `over` after the update that the other hosts await.
    context.hosts.over.set()

  running_lib.run(
    make(threads={"works": work}, stopping=channel.close), context
  )
  assert context.hosts.over.is_set() and not context.hosts.failed


@pytest.mark.parametrize("where", ["thread", "check"])
def test_a_failure_stops_the_other_hosts(where):
  context = process.Context(hosts=hosts.Hosts(0, 2))
  threading.Timer(0.3, context.hosts.over.set).start()

  def fail():
    raise ValueError("broken")

  threads = {"fails": fail} if where == "thread" else {}
  check = fail if where == "check" else lambda: None
  with pytest.raises(ValueError, match="broken"):
    running_lib.run(make(threads=threads), context, (), 0.02, check)
  assert context.hosts.failed and context.stop.is_set()


def test_a_threads_exception_ends_other_waits_and_follows_the_last_line():
  def fail():
    raise ValueError("broken")

  sink, closed, channel = running.Lines(), [], channels.Channel()
  made = make(
    threads={"fails": fail, "waits": channel.get},
    stopping=channel.close,
    close=lambda: closed.append(True),
  )
  with pytest.raises(ValueError, match="broken"):
    running_lib.run(made, process.Context(), [sink])
  assert len(sink.lines) == 1 and closed == [True]


def test_check_is_called_before_each_line_and_may_end_the_run():
  calls, sink = [], running.Lines()

  def check():
    calls.append(len(sink.lines))
    if len(calls) == 3:
      raise types.ConfigError("called wrong")

  with pytest.raises(types.ConfigError, match="called wrong"):
    running_lib.run(make(), process.Context(), [sink], 0.02, check)
  assert calls == [0, 1, 2]


@pytest.mark.parametrize("maximum", [5, 100])
def test_the_main_thread_runs_the_steps_until_their_end_or_a_stop(maximum):
  seen, closed, context = [], [], process.Context()

  def steps():
    try:
      for i in range(maximum):
        seen.append((i, threading.current_thread()))
        if i == 7:
          context.stop.set()
        yield
    finally:
      closed.append(True)

  # `done` is ignored, because the iterator of steps ends by itself.
  running_lib.run(make(steps=steps, done=lambda: True), context)
  expected = range(min(maximum, 8))
  assert seen == [(i, threading.current_thread()) for i in expected]
  assert closed == [True]


def test_a_run_may_have_a_clock_of_updates(tmp_path):
  """The end, the checkpoints and the lines of the run follow the updates."""
  updates = 0

  def steps():
    nonlocal updates
    while not made.clock.is_over:
      updates += 1
      yield

  acted = counters.ActingCounts()
  agent = types_lib.SimpleNamespace(
    saved=lambda: process_parts.PartState({"params": 1.0}, np.int64(updates))
  )
  made = make(
    parts={"acted": acted, "agent": agent},
    measures=[acted],
    steps=steps,
    policy=lambda saved: saved["agent"],
    own_clock=clocks.Clock(
      "learner_steps", lambda: updates, 30, lambda x: int(x["learner"])
    ),
  )
  context = process.Context()
  config = checkpointer.Config(keep_every_steps=10)
  saver = checkpointer.Checkpointer(made, tmp_path, config, None)

  def check():
    saver.check()
    saver.wait()

  last = running_lib.run(made, context, [], 0.0, check)
  saver.finish(False)
  assert metrics.clock(last) == "learner_steps" and last["learner_steps"] == 30
  saved = checkpoint.Checkpoints(checkpointer.directory(tmp_path)).steps()
  assert saved == [10, 20, 30] and acted.env_steps == 0
