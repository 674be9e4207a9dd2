"""Who is where among all environments, and what is counted of them."""

import dataclasses
import itertools

import dm_env
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from seedx import metrics, types, wire
from seedx.runtime import leases, progress, roster
from tests import fakes

NUM_ENVS = 8
LADDER = np.linspace(0.8, 0.1, NUM_ENVS, dtype=np.float32)
NAN = np.nan


def make(seed=0, exploration=LADDER):
  agent = dataclasses.replace(
    fakes.counting_agent(), exploration=lambda count: exploration[:count]
  )
  counts = progress.Progress()
  return roster.Roster(agent, NUM_ENVS, counts, seed), counts


def returns_of(rows, **values):
  """`[rows, 3]` of NaN, but for `r0={1: 5.0}`: of row 0 at time 1."""
  episode_return = np.full((rows, 3), NAN, np.float32)
  for name, at in values.items():
    for time, value in at.items():
      episode_return[int(name[1:]), time] = value
  return episode_return


def test_an_actor_is_told_its_seeds_and_how_much_it_explores():
  actors, counts = make()
  assert counts.wall_seconds == 0
  first = actors.enter({"num_envs": 2})
  second = actors.enter({"num_envs": 5})
  assert counts.wall_seconds > 0
  np.testing.assert_array_equal(first.slots, [0, 1])
  np.testing.assert_array_equal(second.slots, [2, 3, 4, 5, 6])
  assert second.welcome == {
    "first_seed": 2,
    "exploration": LADDER[2:7].tolist(),
  }
  assert isinstance(second.welcome["exploration"][0], float)  # For JSON.


@pytest.mark.parametrize(
  ("hello", "code", "reason"),
  [
    ({}, "INVALID_ARGUMENT", "num_envs of at least 1 .* None"),
    ({"num_envs": 0}, "INVALID_ARGUMENT", "at least 1 .* 0"),
    ({"num_envs": "2"}, "INVALID_ARGUMENT", "at least 1 .* '2'"),
    ({"num_envs": 9}, "FAILED_PRECONDITION", "at most 8 environments"),
    ({"num_envs": 6}, "RESOURCE_EXHAUSTED", "at most 5 environments"),
  ],
)
def test_who_finds_no_place_is_told_why_and_takes_none(hello, code, reason):
  actors, _ = make()
  actors.enter({"num_envs": 3})
  with pytest.raises(wire.Refused, match=reason) as caught:
    actors.enter(hello)
  assert caught.value.code is wire.StatusCode[code]
  np.testing.assert_array_equal(
    actors.enter({"num_envs": 5}).slots, [3, 4, 5, 6, 7]
  )


def test_a_place_that_is_given_back_is_taken_with_other_seeds():
  actors, _ = make()
  gone, _ = actors.enter({"num_envs": 3}), actors.enter({"num_envs": 5})
  actors.leave(gone)
  entry = actors.enter({"num_envs": 3})
  np.testing.assert_array_equal(entry.slots, gone.slots)
  np.testing.assert_array_equal(entry.exploration, gone.exploration)
  assert entry.first_seed == 8


CALLS = st.lists(
  st.one_of(
    st.tuples(st.just("enter"), st.integers(1, NUM_ENVS)),
    st.tuples(st.just("leave"), st.integers(0, 5)),
  ),
  min_size=4,
  max_size=30,
)


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis.given(CALLS)
def test_no_place_has_two_owners_and_no_seed_comes_twice(calls):
  actors, _ = make()
  here, seeds = [], []
  for kind, number in calls:
    if kind == "leave" and number < len(here):
      actors.leave(here.pop(number))
    elif kind == "enter":
      free = NUM_ENVS - sum(len(entry.slots) for entry in here)
      if number > free:
        with pytest.raises(wire.Refused, match=f"at most {free} env"):
          actors.enter({"num_envs": number})
        continue
      entry = actors.enter({"num_envs": number})
      assert len(entry.slots) == number
      here.append(entry)
      seeds += range(entry.first_seed, entry.first_seed + number)
    taken = [slot for entry in here for slot in entry.slots]
    assert len(taken) == len(set(taken))
    assert set(taken) <= set(range(NUM_ENVS))
  assert len(seeds) == len(set(seeds))


def test_runs_of_other_seeds_share_no_environment():
  first = {make(seed)[0].enter({"num_envs": 8}).first_seed for seed in range(5)}
  gaps = [b - a for a, b in itertools.pairwise(sorted(first))]
  assert gaps == [2**20] * 4


def test_seeds_stay_in_the_range_of_environments():
  seeds = leases.Seeds(2**11 - 1)
  end = 2**31
  assert seeds.take(2**20 - 3) == end - 2**20
  # Three are left; four in a row begin anew.
  assert seeds.take(4) == 0
  assert seeds.take(1) == 4


def test_returns_count_only_of_those_who_report():
  actors, counts = make()
  explorer = actors.enter({"num_envs": 6})
  reporter = actors.enter({"num_envs": 2})
  steps = np.full(6, 3, np.int32)
  actors.count(explorer, steps, returns_of(6, r0={0: 7.0}, r5={2: 9.0}))
  assert counts.env_steps == 18
  assert counts.returns.count == 0
  assert counts.returns.mean() is None
  actors.count(
    reporter,
    np.array([2, 3], np.int32),
    returns_of(2, r0={0: 1.0, 2: 2.0}, r1={1: 6.0}),
  )
  assert counts.env_steps == 23
  assert counts.returns.count == 3
  assert counts.returns.mean() == 3.0


def test_all_report_where_all_explore_alike():
  actors, counts = make(exploration=np.zeros(NUM_ENVS, np.float32))
  entry = actors.enter({"num_envs": 8})
  actors.count(
    entry, np.ones(8, np.int32), returns_of(8, r0={0: 1.0}, r7={1: 2.0})
  )
  assert counts.returns.count == 2


def test_shares_of_waits_are_means_over_actors_and_stay_when_all_have_left():
  actors, _ = make()

  def shares():
    found = actors.shares()
    assert set(found) == {metrics.WAIT_REQUESTS, metrics.WAIT_QUEUE}
    return found[metrics.WAIT_REQUESTS], found[metrics.WAIT_QUEUE]

  assert shares() == (0.0, 0.0)
  first, second = (actors.enter({"num_envs": 2}) for _ in range(2))
  first.waits, second.waits = (0.25, 1.0), (0.75, 0.5)
  assert shares() == (0.5, 0.75)
  actors.leave(first)
  assert shares() == (0.75, 0.5)
  actors.leave(second)
  assert shares() == (0.75, 0.5)
  actors.enter({"num_envs": 2}).waits = (0.125, 0.25)
  assert shares() == (0.125, 0.25)


# What has been done


def rows(step_type, episode_return):
  count = len(step_type)
  return types.Rows(
    index=np.arange(count, dtype=np.int32),
    timestep=dm_env.TimeStep(
      step_type=np.array(step_type, np.uint8),
      reward=np.ones(count, np.float32),
      discount=np.ones(count, np.float32),
      observation=np.zeros((count, 2), np.float32),
    ),
    episode_return=np.array(episode_return, np.float32),
  )


def test_what_is_done_is_counted_once_and_resets_are_no_steps():
  done = roster.Done(num_envs=3, length=4)
  done.add(rows([0, 0, 0], [NAN, NAN, NAN]))
  done.add(rows([1, 1, 2], [NAN, NAN, 5.0]))
  done.add(rows([1, 2, 0], [NAN, -1.5, NAN]))
  env_steps, episode_return = done.take()
  np.testing.assert_array_equal(env_steps, [2, 2, 1])
  assert env_steps.dtype == np.int32
  np.testing.assert_array_equal(
    episode_return,
    [
      [NAN, NAN, NAN, NAN],
      [NAN, NAN, -1.5, NAN],
      [NAN, 5.0, NAN, NAN],
    ],
  )
  assert episode_return.dtype == np.float32

  # The next begin at the front again.
  done.add(rows([2, 0, 1], [7.0, NAN, NAN]))
  env_steps, episode_return = done.take()
  np.testing.assert_array_equal(env_steps, [1, 0, 1])
  assert episode_return.shape == (3, 4)
  assert episode_return[0, 0] == 7.0
  assert np.isnan(episode_return).sum() == 11

  env_steps, episode_return = done.take()
  np.testing.assert_array_equal(env_steps, [0, 0, 0])
  assert np.isnan(episode_return).all()
