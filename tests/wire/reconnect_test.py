"""Tests of `wire.until_done`: how long it waits, and when it gives up."""

import threading
import time
import types

import pytest

from seedx import wire
from seedx.wire import reconnect, serving

GONE = wire.StatusCode.UNAVAILABLE
FULL = wire.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture(autouse=True)
def clock(monkeypatch):
  """A list with the time in seconds, which each try advances."""
  now = [100.0]
  fake_time = types.SimpleNamespace(monotonic=lambda: now[0])
  monkeypatch.setattr(reconnect, "time", fake_time)
  return now


class Tries:
  """Sessions of one second each, which end in the given ways in turn.

  Attributes:
    count: number of sessions.
  """

  def __init__(self, clock, *ends):
    """Takes None (OK), a status, or ("accepted", status); repeats the last."""
    self.count, self._clock, self._ends = 0, clock, ends

  def __call__(self, client):
    end = self._ends[min(self.count, len(self._ends) - 1)]
    self.count += 1
    self._clock[0] += 1
    if isinstance(end, tuple):
      client.was_accepted = True
      end = end[1]
    if end is not None:
      raise wire.WireError(end, "no")


def run(tries):
  """Runs sessions without pauses, and gives up after 10 s."""
  wire.until_done(
    address="unix:/nowhere",
    session=tries,
    stop=threading.Event(),
    role="actor",
    retry_seconds=0.0,
    give_up_seconds=10.0,
  )


def test_a_client_of_a_missing_server_gives_up(clock):
  tries = Tries(clock, GONE)
  with pytest.raises(wire.GaveUpError, match="server within 10 s, found no"):
    run(tries)
  assert tries.count == 10


def test_a_waiting_client_prints_one_line_after_a_while(
  clock, monkeypatch, capfd
):
  for quiet_seconds, printed in (
    (30.0, ""),  # The client gives up before it prints.
    (5.0, "actor: waiting for unix:/nowhere: no\n"),
  ):
    monkeypatch.setattr(reconnect, "_QUIET_SECONDS", quiet_seconds)
    with pytest.raises(wire.GaveUpError):
      run(Tries(clock, GONE))
    assert capfd.readouterr().err == printed


@pytest.mark.parametrize("answer", [FULL, ("accepted", GONE)])
def test_the_wait_is_counted_from_the_servers_last_answer(clock, answer):
  run(Tries(clock, *20 * [answer], *9 * [GONE], *20 * [answer], None))
  tries = Tries(clock, *20 * [answer], GONE)
  with pytest.raises(wire.GaveUpError):
    run(tries)
  assert tries.count == 20 + 10


def test_a_server_that_stops_during_a_session_ends_the_wait(clock):
  tries = Tries(clock, FULL, wire.StatusCode.CANCELLED)
  run(tries)
  assert tries.count == 2


@pytest.mark.alone
def test_a_late_server_is_found_at_once(tmp_path, monkeypatch):
  """Clients try at fixed intervals, without gRPC's growing backoff."""
  monkeypatch.undo()
  late_seconds, seconds = 3.0, []
  for index in range(2):
    address, connected = f"unix:{tmp_path}/{index}", []

    def session(client, connected=connected):
      stream = client.stream("it", (), wire.NOTHING, wire.NOTHING)
      connected.append(time.monotonic())
      list(stream)

    waits = threading.Thread(
      target=wire.until_done,
      args=(address, session, threading.Event(), "actor"),
    )
    waits.start()
    time.sleep(late_seconds)
    server = serving.Server(address, 1)
    server.bind("it", lambda nest: nest, wire.NOTHING, wire.NOTHING)
    start = time.monotonic()
    with server:
      waits.join(300)
    seconds.append(connected[0] - start)
  assert min(seconds) < late_seconds / 2
