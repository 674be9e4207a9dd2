"""Counts of experience and of gradients."""

import types as types_lib

import dm_env
import numpy as np
import pytest

from seedx import types
from seedx.runtime import clocks, counters, progress

FIRST, MID, LAST = (int(x) for x in dm_env.StepType)


def rows(step_type, episode_return):
  size = len(step_type)
  zeros = np.zeros(size, np.float32)
  timestep = dm_env.TimeStep(
    np.array(step_type, np.uint8), zeros, zeros, np.zeros((size, 2))
  )
  index = np.arange(size, dtype=np.int32)
  return types.Rows(index, timestep, np.array(episode_return, np.float32))


@pytest.fixture
def clock(monkeypatch):
  """Returns a list whose item is the time in seconds, which tests change."""
  now = [100.0]
  fake = types_lib.SimpleNamespace(monotonic=lambda: now[0])
  monkeypatch.setattr(counters, "time", fake)
  monkeypatch.setattr(clocks, "time", fake)
  return now


def test_resets_are_no_steps_and_only_reported_returns_count():
  acted, nan = counters.ActingCounts(frames_per_step=4), np.nan
  first_actor = counters.LocalEnvironments(
    acted, np.array([False, False, True])
  )
  second_actor = counters.LocalEnvironments(
    acted, np.array([False, True, False])
  )
  first_actor.add(rows([FIRST, MID, LAST], [nan, nan, 5.0]))
  for _ in range(3):
    second_actor.add(rows([MID, MID, MID], [nan, nan, nan]))
  second_actor.add(rows([MID, LAST, LAST], [nan, 7.0, 100.0]))
  line = acted.measure()
  assert (line["env_steps"], line["env_frames"]) == (2 + 12, 56)
  assert (line["episodes"], line["episode_return"]) == (2, 6.0)
  assert line["episode_length"] == (1 + 4) / 2


def test_lengths_are_of_whole_games():
  acted, nan = counters.ActingCounts(), np.nan
  played = counters.LocalEnvironments(acted, np.array([True]))
  for step_type, score in (
    (FIRST, nan),
    (MID, nan),
    (LAST, 1.0),
    (FIRST, nan),
    (LAST, nan),  # A life is lost, and the game continues.
    (FIRST, nan),
    (MID, nan),
    (LAST, 2.0),
  ):
    played.add(rows([step_type], [score]))
  assert acted.lengths.count == 2
  assert acted.lengths.mean() == (2 + 3) / 2


def test_entries_of_info_are_means_over_the_episodes_that_have_a_value():
  acted, nan = counters.ActingCounts(log_info=("won", "gold")), np.nan
  environments = acted.join(np.array([True, True, False, True]))
  # Two steps of three environments; the third one is not reported.
  returns = np.array([[1.0, 2.0], [nan, 3.0], [9.0, 9.0]])
  info = np.array(
    [[[1, nan], [0, 5]], [[nan, nan], [1, 7]], [[8, 8], [8, 8]]], np.float32
  )
  environments.add(6, np.arange(3), returns, returns, info)
  # The fourth one has not ended an episode.
  assert acted.measure()["info_won"] is None
  environments.add(1, np.array([3]), np.ones(1), np.ones(1), info[1, :1])
  line = acted.measure()
  assert line["info_won"] == pytest.approx(2 / 3)
  assert line["info_gold"] == 6.0
  assert list(acted.info["won"]._latest) == [1, 0, 1]  # Oldest first.
  resumed = counters.ActingCounts(log_info=("won", "gold"))
  resumed.restore(acted.saved())
  assert resumed.info["gold"].mean() == 6.0


def play(played, lengths, ends, steps, reward=-1.0):
  """Steps environments in lock step, and yields after each step.

  Args:
    played: counter of the environments.
    lengths: `[N]`, env steps of the current episodes; changed in place.
    ends: function that maps `lengths` to `[N]` bool, whether an episode ends.
    steps: number of steps.
    reward: reward of each step.
  """
  for _ in range(steps):
    lengths += 1
    last = ends(lengths)
    score = np.where(last, reward * lengths, np.nan)
    played.add(rows(np.where(last, LAST, MID), score))
    lengths[last] = 0
    yield


def test_no_mean_return_is_reported_while_short_episodes_bias_it():
  rng, lengths = np.random.default_rng(0), np.zeros(512, np.int64)
  acted = counters.ActingCounts()
  played = counters.LocalEnvironments(acted, np.ones(512, np.bool_))
  biased, means, scores = None, [], []
  for _ in play(played, lengths, lambda x: rng.random(512) < 0.01, steps=2000):
    if biased is None and acted.returns.is_full:
      biased = acted.returns.mean()
    means.append(acted.measure()["episode_return"])
    scores.append(acted.score())
  assert biased > -15  # The mean of all episodes is -100.
  unbiased = [x for x in means if x is not None]
  assert means == scores
  assert len(unbiased) > 800 and means[-len(unbiased) :] == unbiased
  assert np.mean(unbiased) == pytest.approx(-100, abs=5) and max(unbiased) < -60


def test_a_resumed_run_waits_until_all_environments_end_an_episode():
  first = counters.ActingCounts()
  first.add(10**6, np.full(100, -100.0), np.full(100, 100))
  acted, lengths = counters.ActingCounts(), np.zeros(2, np.int64)
  acted.restore(first.saved())
  assert acted.score() == -100.0  # The saved mean, without new episodes.
  played = counters.LocalEnvironments(acted, np.ones(2, np.bool_))
  line = acted.measure()
  assert (line["episodes"], line["episode_return"]) == (100, None)
  for _ in play(played, lengths, lambda x: x == [2, 4], steps=140):
    pass
  assert acted.score() == pytest.approx(-8 / 3, rel=0.02)
  # A round is compared only with rounds since the resume.
  for _ in play(played, lengths, lambda x: x < 0, steps=1000):
    pass
  assert acted.score() is None
  assert acted.measure()["steps_without_episode"] == 2000


@pytest.mark.parametrize("stuck", [1, 50])
def test_there_is_no_score_while_episodes_do_not_end(stuck):
  rng, lengths = np.random.default_rng(0), np.zeros(50, np.int64)
  acted = counters.ActingCounts()
  played = counters.LocalEnvironments(acted, np.ones(50, np.bool_))
  alive = np.ones(50, np.bool_)

  def ends(steps):
    return alive & (steps >= rng.integers(10, 20, 50))

  for _ in play(played, lengths, ends, steps=500):
    pass
  assert acted.score() is not None
  alive[:stuck] = False
  for _ in play(played, lengths, ends, steps=500):
    pass
  line = acted.measure()
  assert acted.score() is None and line["episode_return"] is not None
  since = line["steps_without_episode"]
  assert since == (0 if stuck == 1 else 50 * 500)
  alive[:] = True
  for _ in play(played, lengths, ends, steps=100):
    pass
  assert acted.score() is not None
  assert acted.measure()["steps_without_episode"] == 0


def test_environments_that_leave_are_not_waited_for():
  acted, two = counters.ActingCounts(), np.ones(2, np.bool_)
  first, second = acted.join(two), acted.join(np.array([True, False]))
  nothing, score = np.full(2, np.nan), np.array([1.0, np.nan])
  first.add(2, slice(None), score, np.ones(2))
  second.add(2, slice(None), score, np.ones(2))
  assert acted.measure()["episode_return"] is None
  first.leave()
  # When environments leave at a run's end, a biased mean must stay hidden.
  assert acted.measure()["episode_return"] is None
  second.add(2, slice(None), nothing, np.ones(2))
  assert acted.measure()["episode_return"] is None
  second.add(2, np.array([1, 0]), score[::-1], np.ones(2))
  assert acted.measure()["episode_return"] == 1.0
  # A restarted actor changes the mean little, so the mean is still reported.
  acted.join(two)
  assert acted.measure()["episode_return"] == 1.0


def test_episodes_of_one_message_are_counted_in_the_order_of_their_ends():
  acted, nan = counters.ActingCounts(), np.nan
  environments = acted.join(np.array([True, True]))
  returns = np.array([[1.0] * 60, [2.0] * 60])
  environments.add(120, slice(None), returns, np.ones((2, 60)))
  assert acted.returns.count == 120
  assert acted.returns.mean() == 1.5
  environments.add(1, np.array([1]), np.array([[nan]]), np.ones((1, 1)))
  assert acted.returns.count == 120


def test_steps_per_second_is_the_rate_since_the_previous_line(clock):
  acted = counters.ActingCounts()
  acted.add(1000, np.zeros(0), np.zeros(0))
  clock[0] += 1
  acted.measure()
  clock[0] += 0.5
  acted.add(100, np.zeros(0), np.zeros(0))
  assert acted.measure()["steps_per_second"] == 200
  clock[0] += 1
  assert acted.measure()["steps_per_second"] == 0


def test_counts_continue_from_a_checkpoint(clock):
  first = counters.ActingCounts()
  first.add(100, np.array([1.0, 3.0]), np.array([10, 20]))
  first.add_discarded(4)
  clock[0] += 5
  saved = first.saved()
  clock[0] += 100
  resumed = counters.ActingCounts()
  resumed.restore(saved)
  clock[0] += 1
  line = resumed.measure()
  # Steps before the restart do not count in the rate.
  assert line["steps_per_second"] == 0
  # The time between the two starts does not count.
  assert line["wall_seconds"] == 5 + 1
  assert (line["env_steps"], line["unrolls_discarded"]) == (100, 4)
  assert (line["episodes"], line["episode_return"]) == (2, 2.0)
  assert line["episode_length"] == 15.0


def test_staleness_is_a_mean_over_the_latest_gradients():
  learned = progress.Progress(window=2)
  assert learned.measure() == {
    "learner_steps": 0,
    "learned_steps": 0,
    "updates_skipped": 0,
    "policy_lag": None,
  }
  learned.add(10.0, 100.0, {"loss": 9.0})
  learned.add(20.0, 1.0, {"loss": 2.0}, gradients=3)
  learned.add(5.5, 5.0, {"loss": 1.0, "policy_lag": 4.0})
  assert learned.measure() == {
    "learner_steps": 5,
    "learned_steps": 35,
    "updates_skipped": 0,
    "policy_lag": 4.0,
    "loss": 1.0,
    "gradient_staleness": pytest.approx((3 * 1.0 + 5.0) / 4),
  }
  other = progress.Progress()
  other.restore(learned.saved())
  assert (other.steps, other.learned_steps) == (5, 35.5)


def test_only_many_skipped_updates_in_a_row_end_a_run(capfd):
  learned = progress.Progress()
  learned.skip(99)
  learned.check()
  learned.add(1.0, 0.0, {})
  learned.skip(60)
  learned.skip(39)
  learned.check()
  learned.skip(1)
  with pytest.raises(progress.StuckError, match=r"100 in a row.*new run"):
    learned.check()
  assert capfd.readouterr().err.count("an update was skipped") == 1
  assert learned.measure()["updates_skipped"] == 199
  assert learned.steps == 1
  other = progress.Progress()
  other.restore(learned.saved())
  other.check()  # A resume ends a series of skipped updates.
  assert other.measure()["updates_skipped"] == 199


def test_the_quarter_of_environments_that_explores_least_is_reported():
  ladder = np.array([0.4, 0.1, 0.2, 0.3, 0.01, 0.05, 0.5, 0.6])
  reported = counters.explores_least(ladder)
  assert list(np.flatnonzero(reported)) == [4, 5]
  assert counters.explores_least(np.zeros(5)).all()


def test_an_environment_that_joins_again_has_ended_no_episode():
  """A mean return must wait for the first episode of each new environment."""
  acted = counters.ActingCounts()
  environments = acted.environments(np.array([True, True]))
  both = np.array([0, 1])

  def end(index):
    ones = np.ones((len(index), 1))
    environments.add(len(index), index, ones, ones.astype(np.int64))

  environments.join(both)
  end(both[:1])
  environments.leave(both)
  environments.join(both)
  end(both[:1])
  assert not acted.all_have_ended
  end(both[1:])
  assert acted.all_have_ended
