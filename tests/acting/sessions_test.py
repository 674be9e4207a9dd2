"""Sessions: leases of slots, and counts of experience."""

import dm_env
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from seedx import envs, metrics, types, wire
from seedx.acting import local_actor, protocol, sessions
from seedx.runtime import counters, seeding
from tests.acting.cases import steps_of

NUM_ENVS = 8
LADDER = np.linspace(0.8, 0.1, NUM_ENVS, dtype=np.float32)
NAN = np.nan
NO_WAITS = (0.0, 0.0)


def make():
  acted = counters.ActingCounts()
  seeds = seeding.Seeds(0)
  return sessions.Sessions(LADDER, acted, seeds, envs.Config()), acted


def test_the_welcome_has_the_first_seed_and_the_exploration():
  actors, acted = make()
  env = envs.Config("a", {"env_steps": 0, "size": 3})
  first = actors.open({"num_envs": 2})
  nothing = np.full(2, np.nan), np.zeros(2, np.int32)
  first.environments.add(40, slice(None), *nothing)
  assert acted.env_steps == 40
  second = actors.open({"num_envs": 5})
  np.testing.assert_array_equal(first.lease.slots, [0, 1])
  np.testing.assert_array_equal(second.lease.slots, [2, 3, 4, 5, 6])
  assert second.welcome == {
    "first_seed": 2,
    "env_steps": 40,
    "exploration": LADDER[2:7].tolist(),
  }
  assert isinstance(second.welcome["exploration"][0], float)  # For JSON.
  later = protocol.env_at(env, second.welcome)
  assert later.env_options == {"env_steps": 40, "size": 3}
  assert protocol.env_at(envs.Config("a"), second.welcome) == envs.Config("a")
  for wrong in (-1, 2**63, True, "40", None):
    with pytest.raises(wire.WireError, match="env_steps from 0"):
      protocol.env_at(env, {"env_steps": wrong})


@pytest.mark.parametrize(
  ("hello", "code", "reason"),
  [
    ({}, "INVALID_ARGUMENT", "num_envs of at least 1 .* None"),
    ({"num_envs": 9}, "FAILED_PRECONDITION", "at most 8 environments"),
    ({"num_envs": 6}, "RESOURCE_EXHAUSTED", "at most 5 environments"),
  ],
)
def test_a_refused_actor_leases_no_slots(hello, code, reason):
  actors, _ = make()
  actors.open({"num_envs": 3})
  with pytest.raises(wire.Refusal, match=reason) as caught:
    actors.open(hello)
  assert caught.value.code is wire.StatusCode[code]
  np.testing.assert_array_equal(
    actors.open({"num_envs": 5}).lease.slots, [3, 4, 5, 6, 7]
  )


CALLS = st.lists(
  st.one_of(
    st.tuples(st.just("open"), st.integers(1, NUM_ENVS)),
    st.tuples(st.just("close"), st.integers(0, 5)),
  ),
  min_size=4,
  max_size=30,
)


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis.given(CALLS)
def test_no_slot_has_two_leases_and_no_seed_occurs_twice(calls):
  actors, _ = make()
  connected, seeds = [], []
  for kind, number in calls:
    if kind == "close" and number < len(connected):
      actors.close(connected.pop(number))
    elif kind == "open":
      free = NUM_ENVS - sum(len(session.lease.slots) for session in connected)
      if number > free:
        with pytest.raises(wire.Refusal, match=f"at most {free} env"):
          actors.open({"num_envs": number})
        continue
      session = actors.open({"num_envs": number})
      assert len(session.lease.slots) == number
      connected.append(session)
      seeds += range(
        session.lease.first_seed, session.lease.first_seed + number
      )
    taken = [slot for session in connected for slot in session.lease.slots]
    assert len(taken) == len(set(taken))
    assert set(taken) <= set(range(NUM_ENVS))
  assert len(seeds) == len(set(seeds))


def test_only_returns_of_environments_that_explore_least_count():
  actors, acted = make()
  explorer = actors.open({"num_envs": 6})
  reporter = actors.open({"num_envs": 2})
  actors.count(explorer, steps_of("FMLF", *["FMMM"] * 5), NO_WAITS)
  assert acted.env_steps == 17
  assert acted.returns.count == 0
  assert acted.returns.mean() is None
  actors.count(reporter, steps_of("FLFLF", "FMMMM"), NO_WAITS)
  actors.count(reporter, steps_of("MMML", "MMML"), NO_WAITS)
  assert acted.env_steps == 17 + 6 + 8
  assert acted.returns.count == 4
  assert acted.returns.mean() == (1 + 1 + 4 + 8) / 4


def test_a_message_without_all_environments_is_refused_and_not_counted():
  actors, acted = make()
  session = actors.open({"num_envs": 2})
  message = "all 2 environments, found one of 1"
  with pytest.raises(wire.Refusal, match=message) as caught:
    actors.count(session, steps_of("FL"), (1, 1))
  assert caught.value.code is wire.StatusCode.INVALID_ARGUMENT
  assert (acted.env_steps, acted.returns.count) == (0, 0)
  assert session.waits == NO_WAITS


def test_waits_are_means_over_actors_and_are_kept_when_all_have_left():
  actors, _ = make()

  def report(session, *waits):
    actors.count(session, steps_of("", ""), waits)

  def measured():
    line = actors.measure()
    assert set(line) == {metrics.WAIT_ENVIRONMENTS, metrics.WAIT_LEARNER}
    return line[metrics.WAIT_ENVIRONMENTS], line[metrics.WAIT_LEARNER]

  assert measured() == (0.0, 0.0)
  first, second = (actors.open({"num_envs": 2}) for _ in range(2))
  report(first, 0.25, 1.0)
  report(second, 0.75, 0.5)
  assert measured() == (0.5, 0.75)
  actors.close(first)
  assert measured() == (0.75, 0.5)
  actors.close(second)
  assert measured() == (0.75, 0.5)
  report(actors.open({"num_envs": 2}), 0.125, 0.25)
  assert measured() == (0.125, 0.25)


# Unreported steps


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


def test_steps_are_reported_once():
  unreported = local_actor.Backlog(num_envs=3, length=4)
  unreported.add(rows([0, 0, 0], [NAN, NAN, NAN]))
  unreported.add(rows([1, 1, 2], [NAN, NAN, 5.0]))
  unreported.add(rows([1, 2, 0], [NAN, -1.5, NAN]))
  steps, count = unreported.take()
  assert count == 3
  np.testing.assert_array_equal(
    steps.step_type, [[0, 1, 1, 0], [0, 1, 2, 0], [0, 2, 0, 0]]
  )
  np.testing.assert_array_equal(steps.reward, [[1, 1, 1, 0]] * 3)
  np.testing.assert_array_equal(steps.discount, [[1, 1, 1, 0]] * 3)
  np.testing.assert_array_equal(
    steps.episode_return,
    [
      [NAN, NAN, NAN, NAN],
      [NAN, NAN, -1.5, NAN],
      [NAN, 5.0, NAN, NAN],
    ],
  )
  assert [leaf.dtype for leaf in steps[:4]] == [np.uint8, *[np.float32] * 3]
  assert steps.info == ()

  # After `take`, the next step is at index 0.
  unreported.add(rows([2, 0, 1], [7.0, NAN, NAN]))
  steps, count = unreported.take()
  assert count == 1
  np.testing.assert_array_equal(steps.step_type[:, 0], [2, 0, 1])
  assert steps.episode_return[0, 0] == 7.0
  assert np.isnan(steps.episode_return).sum() == 11

  steps, count = unreported.take()
  assert count == 0
  assert np.isnan(steps.episode_return).all()


def test_entries_of_info_are_reported_at_their_steps():
  unreported = local_actor.Backlog(num_envs=2, length=3, num_info=1)
  info = np.array([[NAN], [4.0]], np.float32)
  unreported.add(rows([0, 0], [NAN, NAN])._replace(info=info * NAN))
  unreported.add(rows([1, 2], [NAN, 1.0])._replace(info=info))
  steps, _ = unreported.take()
  np.testing.assert_array_equal(
    steps.info[:, :, 0], [[NAN, NAN, NAN], [NAN, 4.0, NAN]]
  )
