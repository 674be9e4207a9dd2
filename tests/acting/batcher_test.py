"""Batches of requests: their sizes, and how waits end."""

import dataclasses
import threading
import time

import pytest

from seedx import metrics
from seedx.acting import batcher
from tests import running


@dataclasses.dataclass(eq=False)
class Request:
  """A request that records whether it has ended."""

  rows: int
  arrived_seconds: float = dataclasses.field(default_factory=time.monotonic)
  ended: int = 0

  def end(self):
    self.ended += 1


def make(**options):
  options = {
    "target_rows": 4,
    "max_rows": 8,
    "max_wait_seconds": 1e6,
    **options,
  }
  return batcher.Batcher(waits=metrics.Waits(), **options)


def filled(*rows, **options):
  """Returns a batcher with requests of these numbers of rows."""
  requests = make(**options)
  assert all([requests.put(Request(each)) for each in rows])
  return requests


def rows_of(batch):
  return [request.rows for request in batch]


class Taking(threading.Thread):
  """A thread that takes batches, and counts how often it wakes up."""

  def __init__(self, requests):
    super().__init__(daemon=True)
    self.requests, self.batches, self.waits = requests, [], []
    wait = requests._changed.wait

    def spy(seconds):
      self.waits.append(seconds)
      return wait(seconds)

    requests._changed.wait = spy
    self.start()

  def run(self):
    for batch in self.requests:
      self.batches.append(rows_of(batch))


@pytest.fixture
def taking():
  """Yields a function that takes batches on a thread; ends the threads."""
  threads = []

  def start(requests):
    threads.append(Taking(requests))
    return threads[-1]

  yield start
  for thread in threads:
    thread.requests.close()
    thread.join(300)
    assert not thread.is_alive()


def test_a_batch_is_complete_with_the_target_number_of_rows():
  requests = filled(1, 2, 1, 3)
  assert rows_of(next(requests)) == [1, 2, 1, 3]  # All that fit.
  requests = filled(3, 4, 2)
  assert rows_of(next(requests)) == [3, 4]


def test_no_batch_is_larger_than_the_maximum():
  requests = filled(5, 5, 5)
  assert [rows_of(next(requests)) for _ in range(3)] == [[5]] * 3
  with pytest.raises(ValueError, match="at most 8 rows, found 9"):
    requests.put(Request(9))
  assert requests.put(Request(8))
  assert rows_of(next(requests)) == [8]


def test_a_thread_wakes_up_twice_for_a_batch_of_many_requests(taking):
  """The first and the last request wake the thread up."""
  requests = make(target_rows=8)
  thread = taking(requests)
  running.wait_until(lambda: thread.waits == [None])
  requests.put(Request(1))
  running.wait_until(lambda: len(thread.waits) == 2)
  for _ in range(6):
    requests.put(Request(1))
  time.sleep(0.05)
  assert len(thread.waits) == 2 and not thread.batches
  requests.put(Request(1))
  running.wait_until(lambda: thread.batches == [[1] * 8])


def test_a_smaller_batch_is_complete_after_the_wait(taking):
  requests = make(max_wait_seconds=0.05)
  thread = taking(requests)
  start = time.monotonic()
  requests.put(Request(3))
  running.wait_until(lambda: thread.batches == [[3]])
  assert time.monotonic() - start > 0.04


def test_the_oldest_request_ends_the_wait():
  requests = filled(1, 1)
  requests._requests[0].arrived_seconds -= 2e6
  requests._changed.wait = None  # Nothing waits.
  assert rows_of(next(requests)) == [1, 1]


def test_close_ends_the_iteration_and_every_request():
  requests = filled(4, 8)
  (first,) = next(requests)
  left = requests._requests[0]
  requests.close()
  assert (first.ended, left.ended) == (1, 1)
  assert list(requests) == []
  assert not requests.put(Request(1))


def test_a_failure_ends_every_request():
  requests = filled(4, 8)
  taken, left = requests._requests
  with pytest.raises(RuntimeError, match="no device"), requests:
    assert next(requests) == [taken]
    raise RuntimeError("no device")
  assert (taken.ended, left.ended) == (1, 1)
  assert not requests.put(Request(1))


def test_metrics_have_quantiles_over_requests_and_mean_rows_of_batches():
  replies, now = batcher.Replies(), time.monotonic()
  replies.add([Request(3, now - 1.0)] * 99)
  replies.add([Request(103, now - 3.0)])
  line = replies.measure()
  assert line["inference_rows"] == 200
  assert line["reply_seconds_p50"] == pytest.approx(1.0, abs=0.1)
  assert line["reply_seconds_p99"] == pytest.approx(1.02, abs=0.1)
  assert replies.measure()["inference_rows"] is None
