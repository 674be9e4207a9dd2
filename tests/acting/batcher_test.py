"""Batches of requests: their sizes, and how waits end."""

import concurrent.futures
import threading

import numpy as np
import pytest

from seedx import metrics
from seedx.acting import batcher
from tests import running


class _Doubler:
  """A function that replies with twice the inputs, and records batches."""

  def __init__(self):
    self.batches = []
    self.entered = threading.Event()
    self.gate = threading.Event()
    self.gate.set()

  def __call__(self, batch):
    self.entered.set()
    self.gate.wait()
    self.batches.append((len(batch.inputs), batch.rows))
    batch.reply(batch.inputs * 2)


def _make(**options):
  options = {"target_rows": 4, "max_wait_seconds": 1e6, **options}
  options = {"replies": batcher.Replies(), **options}
  return batcher.Batcher(sizes=[2, 4, 8], waits=metrics.Waits(), **options)


def _serve(requests, function):
  with requests:
    for batch in requests:
      function(batch)


@pytest.fixture
def started():
  """Makes batchers that threads serve, and closes them."""
  made = []

  def start(function, **options):
    requests = _make(**options)
    thread = threading.Thread(
      target=_serve, args=(requests, function), daemon=True
    )
    thread.start()
    made.append((requests, thread))
    return requests

  yield start
  for requests, thread in made:
    requests.close()
    thread.join(300)
    assert not thread.is_alive()


def _ask(pool, requests, values):
  """Sends a request on a thread; returns its future once it is queued."""
  values, num_waiting = np.asarray(values), len(requests._requests)
  answer = pool.submit(requests, values, len(values))
  running.wait_until(
    lambda: len(requests._requests) > num_waiting or answer.done()
  )
  return answer


def test_requests_of_several_callers_form_a_batch_and_each_gets_its_rows(
  started,
):
  function = _Doubler()
  requests = started(function)
  with concurrent.futures.ThreadPoolExecutor() as pool:
    first = _ask(pool, requests, [1, 2])
    assert not first.done()  # Two rows are fewer than the target.
    second = pool.submit(requests, np.array([3, 4]), 2)
    assert first.result(300).tolist() == [2, 4]
    assert second.result(300).tolist() == [6, 8]
  assert function.batches == [(4, 4)]


def test_metrics_have_quantiles_over_requests_and_mean_rows_of_batches():
  replies = batcher.Replies()
  replies.add(300, [0.1] * 99)
  replies.add(100, [0.3])
  line = replies.measure()
  assert line["inference_rows"] == 200
  assert line["reply_seconds_p50"] == pytest.approx(0.1)
  assert line["reply_seconds_p99"] == pytest.approx(0.102)
  assert replies.measure()["inference_rows"] is None


def test_a_partial_batch_is_padded_and_yielded_after_the_maximum_wait(started):
  function, replies = _Doubler(), batcher.Replies()
  requests = started(function, max_wait_seconds=0.05, replies=replies)
  assert requests(np.asarray([5, 6, 7]), 3).tolist() == [10, 12, 14]
  assert function.batches == [(4, 3)]
  lines = []
  running.wait_until(
    lambda: lines.append(replies.measure()) or lines[-1]["inference_rows"]
  )
  assert lines[-1]["inference_rows"] == 3
  assert lines[-1]["reply_seconds_p50"] > 0.04


def test_no_batch_is_larger_than_the_largest_size(started):
  function = _Doubler()
  function.gate.clear()
  requests = started(function, max_wait_seconds=0.3)
  with concurrent.futures.ThreadPoolExecutor() as pool:
    answers = [pool.submit(requests, np.zeros(4, int), 4)]
    assert function.entered.wait(300)
    answers += [_ask(pool, requests, [i] * 3) for i in (1, 2, 3)]
    function.gate.set()
    values = [answer.result(300).tolist() for answer in answers]
  assert values == [[0] * 4, [2] * 3, [4] * 3, [6] * 3]
  assert all(rows <= size <= 8 for size, rows in function.batches)
  assert sum(rows for _, rows in function.batches) == 13


def test_a_request_larger_than_any_batch_fails_and_others_are_served(started):
  requests = started(_Doubler(), max_wait_seconds=0.01)
  with pytest.raises(ValueError, match="at most 8 rows, found 9"):
    requests(np.zeros(9), 9)
  assert requests(np.ones(8), 8).tolist() == [2] * 8


def test_close_ends_every_wait(started):
  requests = started(_Doubler())
  with concurrent.futures.ThreadPoolExecutor() as pool:
    answer = _ask(pool, requests, [1])
    requests.close()
    with pytest.raises(batcher.Closed):
      answer.result(300)
  with pytest.raises(batcher.Closed):
    requests(np.asarray([1]), 1)


def test_a_failure_ends_every_wait():
  requests = _make(target_rows=1)

  def fail(batch):
    raise RuntimeError("no device")

  with concurrent.futures.ThreadPoolExecutor() as pool:
    answer = _ask(pool, requests, [1])
    with pytest.raises(RuntimeError, match="no device"):
      _serve(requests, fail)
    with pytest.raises(batcher.Closed):
      answer.result(300)
  with pytest.raises(batcher.Closed):
    requests(np.asarray([1]), 1)


def test_a_reply_after_close_is_ignored():
  requests = _make(target_rows=1)
  with concurrent.futures.ThreadPoolExecutor() as pool:
    answer = _ask(pool, requests, [1])
    batch = next(requests)
    requests.close()
    batch.reply(batch.inputs)
    with pytest.raises(batcher.Closed):
      answer.result(300)
  assert list(requests) == []


def test_a_caller_does_not_wait_for_the_servers_work_after_a_reply(started):
  done = threading.Event()

  def function(batch):
    batch.reply(batch.inputs)
    done.wait()

  requests = started(function, target_rows=1)
  assert requests(np.asarray([3]), 1).tolist() == [3]
  done.set()
