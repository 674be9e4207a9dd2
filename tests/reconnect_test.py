"""`wire.until_done`: how long it waits, and for whom."""

import threading
import time

import pytest

from seedx import wire
from seedx.wire import reconnect

GONE = wire.StatusCode.UNAVAILABLE
FULL = wire.StatusCode.RESOURCE_EXHAUSTED


class Tries:
  """Sessions that end as they are told, one after the other.

  Attributes:
    count: how many there were.
  """

  def __init__(self, *ends):
    """Each end is a code, with "accepted" before it or not; the last stays."""
    self.count, self._ends = 0, ends

  def __call__(self, client):
    end = self._ends[min(self.count, len(self._ends) - 1)]
    self.count += 1
    if isinstance(end, tuple):
      client.was_accepted = True
      end = end[1]
    if end is not None:
      raise wire.WireError(end, "no")


def run(tries, give_up_seconds=0.3):
  """Runs it with quick tries; how long it took."""
  start, stop = time.monotonic(), threading.Event()
  wire.until_done(
    *("unix:/nowhere", tries, stop, "actor"),
    retry_seconds=0.02,
    give_up_seconds=give_up_seconds,
  )
  return time.monotonic() - start


def test_it_gives_up_where_there_is_no_server():
  start = time.monotonic()
  with pytest.raises(wire.GaveUpError, match=r"server within 0\.3 s, found no"):
    run(Tries(GONE))
  assert 0.3 <= time.monotonic() - start < 2


def test_waiting_is_said_once_and_late(monkeypatch, capfd):
  assert reconnect._QUIET_SECONDS >= 30
  with pytest.raises(wire.GaveUpError):
    run(Tries(GONE))
  assert not capfd.readouterr().err
  monkeypatch.setattr(reconnect, "_QUIET_SECONDS", 0.1)
  with pytest.raises(wire.GaveUpError):
    run(Tries(GONE))
  assert capfd.readouterr().err == "actor: waiting for unix:/nowhere: no\n"


@pytest.mark.parametrize("there", [FULL, ("accepted", GONE)])
def test_patience_begins_when_the_server_was_last_there(there):
  tries = Tries(*20 * [there], *3 * [GONE], *20 * [there], None)
  assert run(tries) > 0.4
  tries = Tries(*20 * [there], GONE)
  with pytest.raises(wire.GaveUpError):
    run(tries)
  assert tries.count > 22


def test_a_server_that_stops_before_a_session_is_done(tmp_path):
  tries = Tries(FULL, wire.StatusCode.CANCELLED)
  run(tries)
  assert tries.count == 2


def test_a_server_that_comes_late_is_found_at_once(tmp_path):
  """Its clients ask in their own rhythm, not in that of gRPC's backoff."""
  address, found = f"unix:{tmp_path}/late", []

  def session(client):
    nothing = wire.NOTHING
    stream = client.stream("it", (), nothing, nothing)
    found.append(time.monotonic())
    list(stream)

  waits = threading.Thread(
    target=wire.until_done, args=(address, session, threading.Event(), "actor")
  )
  waits.start()
  time.sleep(3.0)
  server = wire.Server(address, 1)
  server.bind("it", lambda nest: nest, wire.NOTHING, wire.NOTHING)
  start = time.monotonic()
  with server:
    waits.join(10)
  assert not waits.is_alive() and found[0] - start < 2
