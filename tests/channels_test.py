"""Channels: which threads wait, the order of items, and the end of waits."""

import concurrent.futures
import statistics
import threading
import time

import pytest

from seedx import channels
from tests import running


def _wait_a_while():
  """Lets threads reach the point at which they wait."""
  time.sleep(0.1)


@pytest.fixture
def pool():
  with concurrent.futures.ThreadPoolExecutor() as executor:
    yield executor


@pytest.fixture
def make(pool):
  """Makes channels; closes all, so that threads end after a failure."""
  made = []

  def make(capacity=None):
    made.append(channels.Channel(capacity))
    return made[-1]

  yield make
  for channel in made:
    channel.close()


def test_items_are_taken_in_order_and_in_the_requested_number(make):
  channel = make()
  assert all(channel.put(item) for item in range(5))
  assert channel.get() == [0]
  assert channel.get(3) == [1, 2, 3]
  assert channel.get(2, 0.0) == channel.get(2, 0.05) == []
  assert channel.put(5)
  assert channel.get(2, 0.0) == [4, 5]
  assert len(channel) == 0


def test_a_full_channel_accepts_an_item_once_another_is_taken(pool, make):
  channel = make(2)
  assert channel.put(0, 0.0) and channel.put(1, 0.0)
  assert not channel.put(2, 0.0) and not channel.put(2, 0.05)
  puts = [pool.submit(channel.put, item) for item in (2, 2, 2)]
  _wait_a_while()
  assert not any(put.done() for put in puts) and len(channel) == 2
  # There is room for two of the three items.
  assert channel.get(2) == [0, 1]
  running.wait_until(lambda: sum(put.done() for put in puts) >= 2)
  _wait_a_while()
  assert sum(put.done() for put in puts) == 2
  assert channel.get() == [2]
  assert all(put.result(300) for put in puts)
  assert channel.get(2) == [2, 2]


def test_a_thread_continues_while_others_wait_for_more_items(pool, make):
  channel = make()
  many = pool.submit(channel.get, 3)
  _wait_a_while()
  one = pool.submit(channel.get)
  _wait_a_while()
  channel.put("a")
  assert one.result(300) == ["a"] and not many.done()
  for item in "bcd":
    channel.put(item)
  assert many.result(300) == ["b", "c", "d"]


def test_closing_ends_all_waits_and_keeps_the_items(pool, make):
  full, short = make(1), make()
  full.put(0)
  short.put(1)
  puts = [pool.submit(full.put, item) for item in range(2)]
  gets = [pool.submit(short.get, 2), pool.submit(short.get, 3, 600.0)]
  _wait_a_while()
  assert not any(wait.done() for wait in (*puts, *gets))
  for channel in (full, short, full):
    channel.close()
  assert [put.result(300) for put in puts] == [False] * 2
  assert [get.result(300) for get in gets] == [[]] * 2
  assert full.closed and not full.put(2) and not full.put(2, 600.0)
  assert full.get() == [0] and full.get() == full.get(1, 600.0) == []
  assert short.get() == [1]


def test_nothing_is_lost_or_doubled_between_many_threads(pool, make):
  channel, max_length = make(3), 0
  puts = [
    pool.submit(lambda k: [channel.put((k, i)) for i in range(200)], k)
    for k in range(3)
  ]

  def take():
    nonlocal max_length
    taken = []
    while items := channel.get():
      max_length = max(max_length, len(channel))
      taken += items
    return taken

  takers = [pool.submit(take) for _ in range(2)]
  assert all(all(put.result(300)) for put in puts)
  channel.close()
  first, second = [taker.result(300) for taker in takers]
  assert sorted(first + second) == [
    (k, i) for k in range(3) for i in range(200)
  ]
  for taken in (first, second):  # Items of one thread keep their order.
    for k in range(3):
      items = [x for x in taken if x[0] == k]
      assert items == sorted(items)
  assert max_length <= 3


@pytest.mark.alone
@pytest.mark.parametrize("begin", ["put", "get"])
def test_closing_ends_a_wait_at_once(begin):
  assert statistics.median(_seconds_to_end(begin) for _ in range(9)) < 0.05


def _seconds_to_end(begin):
  """Returns the seconds from the call of `close` to the end of a wait."""
  channel, ended = channels.Channel(1), []
  if begin == "put":
    channel.put(0)
  call = channel.get if begin == "get" else lambda: channel.put(1)

  def wait():
    call()
    ended.append(time.monotonic())

  thread = threading.Thread(target=wait)
  thread.start()
  _wait_a_while()
  assert not ended
  start = time.monotonic()
  channel.close()
  thread.join(300)
  return ended[0] - start
