"""The learner's inbox: the order of shares, and how waits end."""

import concurrent.futures
import time

import jax
import numpy as np
import pytest

from seedx import metrics, types
from seedx.learning import inbox as inbox_lib
from tests import running


def _share(number):
  return types.Share(np.full((2, 3), number))


def _number(share):
  return int(share.data[0, 0])


@pytest.fixture
def pool():
  with concurrent.futures.ThreadPoolExecutor() as executor:
    yield executor


def test_an_inbox_drops_no_share_and_fills_the_cores_in_turn(pool):
  cores = jax.devices()[2:4]
  inbox = inbox_lib.Inbox(cores, 1)
  puts = [pool.submit(inbox.put, _share(number)) for number in range(3)]
  running.wait_until(lambda: sum(put.done() for put in puts) == 2)
  time.sleep(0.1)
  assert [put.done() for put in puts].count(False) == 1
  first = inbox.get()
  assert all(put.result(300) for put in puts)
  # Only one of the two cores has a share.
  waiting_get = pool.submit(inbox.get)
  time.sleep(0.1)
  assert not waiting_get.done()
  assert inbox.put(_share(3))
  shares = [*first, *waiting_get.result(300)]
  assert sorted(map(_number, shares)) == [0, 1, 2, 3]
  assert _number(shares[3]) == 3
  devices = [share.data.devices() for share in shares]
  assert devices == [{core} for core in cores] * 2


def test_each_queue_keeps_its_capacity_after_takes(pool):
  cores = jax.devices()[:3]
  inbox = inbox_lib.Inbox(cores, 2)
  for number in range(4):
    assert inbox.put(_share(number))
  first = inbox.get()
  assert [_number(share) for share in first] == [0, 1, 2]
  # A share for the first core is left, so there is room for five.
  for number in range(4, 9):
    assert inbox.put(_share(number))
  one_more = pool.submit(inbox.put, _share(9))
  time.sleep(0.1)
  assert not one_more.done()
  for start in (3, 6):
    shares = inbox.get()
    assert [_number(share) for share in shares] == list(range(start, start + 3))
    assert [x.data.devices() for x in shares] == [{core} for core in cores]
  assert one_more.result(300)


def test_close_ends_all_waits_and_leaves_complete_groups_of_shares(pool):
  cores = jax.devices()[:2]
  full, short = inbox_lib.Inbox(cores, 1), inbox_lib.Inbox(cores, 1)
  assert all(full.put(_share(number)) for number in range(2))
  assert short.put(_share(0))
  puts = [pool.submit(full.put, _share(2)) for _ in range(3)]
  waiting_get = pool.submit(short.get)
  time.sleep(0.1)
  assert not waiting_get.done() and not any(put.done() for put in puts)
  full.close()
  short.close()
  assert [put.result(300) for put in puts] == [False] * 3
  assert waiting_get.result(300) is None
  assert [_number(share) for share in full.get()] == [0, 1]
  assert full.get() is None and not full.put(_share(3))


def test_waits_for_experience_are_limited_and_measured(pool):
  inbox = inbox_lib.Inbox(jax.devices()[:1], 1)
  assert inbox.get(0.0) is None and inbox.get(0.05) is None
  waiting_get = pool.submit(inbox.get)
  running.wait_until(lambda: inbox.measure()[metrics.WAIT_EXPERIENCE] > 0.9)
  assert inbox.put(_share(0))
  assert waiting_get.result(300)
  inbox.measure()
  time.sleep(0.05)
  assert inbox.measure() == {metrics.WAIT_EXPERIENCE: 0.0}
