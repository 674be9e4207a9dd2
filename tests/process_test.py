"""What a process does with itself, whatever runs in it."""

import threading
import time

import numpy as np
import pytest

from seedx import types, wire
from seedx.runtime import counters, hosts, process
from tests import running


class Number:
  """A part of a process: a number."""

  def __init__(self, value):
    self.value = value

  def saved(self):
    return np.int64(self.value)

  def restore(self, saved):
    self.value = int(saved)


class Elsewhere(Number):
  """A part that cannot be saved before the process runs."""

  def saved(self):
    raise wire.WireError(wire.StatusCode.UNAVAILABLE, "not there")

  def form(self):
    return np.int64(0)


def make(**fields):
  acted = counters.Acted()
  fields = {"parts": {"acted": acted}, "measures": [acted.measure], **fields}
  return process.Process(acted=acted, policy=lambda saved: saved, **fields)


def test_it_ends_when_its_work_is_done_and_says_the_last_line_to_all():
  sinks, done = [running.Lines(), running.Lines()], threading.Event()

  def work():
    running.wait_until(lambda: len(sinks[0].lines) >= 3)
    done.set()

  own = make(
    done=done.is_set,
    measures=[lambda: {"a": 1, "b": 1}, lambda: {"b": 2}],
    threads={"worker": work},
  )
  context = process.Context()
  last = process.run(own, context, sinks, log_seconds=0.05)
  assert last == {"a": 1, "b": 2}
  assert sinks[0].lines == sinks[1].lines
  assert context.stop.is_set()


def test_a_stop_ends_it_early():
  context = process.Context()
  threading.Timer(0.2, context.stop.set).start()
  process.run(make(threads={"waits": context.stop.wait}), context)
  assert context.stop.is_set()


def test_among_other_hosts_it_ends_when_they_do():
  context = process.Context(hosts=hosts.Hosts(0, 2))
  context.stop.set()
  threading.Timer(0.3, context.hosts.over.set).start()
  start, used = time.monotonic(), time.process_time()
  process.run(make(), context)
  assert context.hosts.over.is_set() and not context.hosts.failed
  # It does not look all the time.
  assert time.process_time() - used < 0.6 * (time.monotonic() - start)


@pytest.mark.parametrize("where", ["thread", "check"])
def test_other_hosts_are_told_of_a_failure(where):
  context = process.Context(hosts=hosts.Hosts(0, 2))
  threading.Timer(0.3, context.hosts.over.set).start()

  def fail():
    raise ValueError("broken")

  threads = {"fails": fail} if where == "thread" else {}
  check = fail if where == "check" else lambda: None
  with pytest.raises(ValueError, match="broken"):
    process.run(make(threads=threads), context, (), 0.02, check)
  assert context.hosts.failed and context.stop.is_set()


def test_what_a_thread_fails_with_is_raised_after_the_last_line():
  def fail():
    raise ValueError("broken")

  sink, closed = running.Lines(), []
  with pytest.raises(ValueError, match="broken"):
    process.run(
      make(threads={"fails": fail}, close=lambda: closed.append(True)),
      process.Context(),
      [sink],
    )
  assert len(sink.lines) == 1 and closed == [True]


def test_check_is_called_before_each_line_and_may_end_it():
  calls, sink = [], running.Lines()

  def check():
    calls.append(len(sink.lines))
    if len(calls) == 3:
      raise types.ConfigError("called wrong")

  with pytest.raises(types.ConfigError, match="called wrong"):
    process.run(make(), process.Context(), [sink], 0.02, check)
  assert calls == [0, 1, 2]


def test_steps_are_what_the_main_thread_does():
  seen = []

  def steps():
    for i in range(5):
      seen.append((i, threading.current_thread()))
      yield

  # `done` is not asked: the steps say when they are.
  process.run(make(steps=steps, done=lambda: True), process.Context())
  assert seen == [(i, threading.current_thread()) for i in range(5)]


def test_a_stop_closes_the_steps():
  context, closed = process.Context(), []

  def steps():
    try:
      while True:
        context.stop.set()
        yield
    finally:
      closed.append(True)

  process.run(make(steps=steps), context)
  assert closed == [True]


def test_a_server_that_cannot_listen_leaves_no_line(tmp_path):
  sink = running.Lines()
  server = wire.Server(f"unix:{tmp_path}/nowhere/socket", 1)
  with pytest.raises(types.ConfigError):
    process.run(make(server=server), process.Context(), [sink])
  assert not sink.lines


def test_parts_are_saved_and_restored_by_name():
  own = make(parts={"a": Number(1), "b": Number(2)})
  saved = own.saved()
  assert saved == {"a": 1, "b": 2}
  other = make(parts={"a": Number(7), "b": Number(8)})
  asked = []
  other.restore(lambda like: asked.append(like) or saved)
  assert asked == [{"a": 7, "b": 8}]
  assert other.saved() == saved


def test_a_part_that_lies_elsewhere_is_restored_by_its_form():
  own = make(parts={"far": Elsewhere(3)})
  with pytest.raises(wire.WireError, match="not there"):
    own.saved()
  own.restore(lambda like: {"far": like["far"] + 5})
  assert own.parts["far"].value == 5


@pytest.mark.parametrize("field", ["total_steps", "log_seconds"])
def test_a_config_refuses_what_cannot_be_run(field):
  with pytest.raises(types.ConfigError, match=f"expected {field}"):
    process.Config(**{field: -1})


def test_an_address_that_was_given_is_kept(tmp_path):
  config = process.ServerConfig()
  assert config.with_sockets("/x").address == "unix:/x/learner"
  given = process.ServerConfig(address="host:1")
  assert given.with_sockets("/x") == given
