"""Episodes that a peer reports: impossible steps and returns are refused."""

import dm_env
import numpy as np
import pytest

from seedx import envs, wire
from seedx.acting import episodes
from tests.acting.cases import steps_of

NAN = np.nan
BOTH = np.arange(2)


def changed(steps, name, value, at=(0, 1)):
  leaf = getattr(steps, name).copy()
  leaf[at] = value
  return steps._replace(**{name: leaf})


@pytest.mark.parametrize(
  ("name", "value"),
  [("step_type", 3), ("reward", NAN), ("discount", NAN), ("discount", 1.1)],
)
def test_a_number_out_of_its_range_is_refused(name, value):
  followed = episodes.Episodes(2)
  steps = steps_of("FMML", "FMMM")
  with pytest.raises(wire.Refusal, match=r"expected .* found") as caught:
    followed.add(changed(steps, name, value), BOTH)
  assert caught.value.code is wire.StatusCode.INVALID_ARGUMENT
  # The refused steps changed nothing.
  _, returns, _ = followed.add(steps, BOTH)
  assert returns[0, 3] == 3 and np.isnan(returns).sum() == 7


def test_an_infinity_as_info_is_refused_and_nan_is_not():
  followed, steps = episodes.Episodes(2), steps_of("FML", "FMM")
  info = np.full((2, 3, 1), NAN, np.float32)
  info[0, 2] = np.inf
  with pytest.raises(wire.Refusal, match="finite numbers or NaN as info"):
    followed.add(steps._replace(info=info), BOTH)
  info[0, 2] = 1
  assert followed.add(steps._replace(info=info), BOTH).env_steps == 4


@pytest.mark.parametrize(
  ("earlier", "later"),
  [(None, "M"), (None, "FF"), (None, "FLM"), ("FM", "F"), ("FL", "L")],
)
def test_steps_out_of_order_are_refused(earlier, later):
  followed = episodes.Episodes(2)
  if earlier:
    followed.add(steps_of(earlier), BOTH[1:])
  with pytest.raises(wire.Refusal, match="first step and after each 2") as info:
    followed.add(steps_of(later), BOTH[1:])
  assert info.value.code is wire.StatusCode.INVALID_ARGUMENT
  # The refused steps do not affect environment 0.
  assert followed.add(steps_of("FML"), BOTH[:1])[0] == 2


def test_returns_are_sums_of_rewards_whatever_a_peer_claims():
  followed = episodes.Episodes(2)
  env_steps, returns, lengths = followed.add(
    steps_of("FMM", "FLF", reward=2.0, claimed=3e38), BOTH
  )
  assert env_steps == 3
  np.testing.assert_array_equal(returns, [[NAN, NAN, NAN], [NAN, 2.0, NAN]])
  np.testing.assert_array_equal(lengths, [[0, 1, 2], [0, 1, 0]])
  _, returns, lengths = followed.add(steps_of("LF", "ML", reward=-1.0), BOTH)
  np.testing.assert_array_equal(returns, [[3.0, NAN], [NAN, -2.0]])
  np.testing.assert_array_equal(lengths, [[3, 0], [1, 2]])
  # Steps may also be added one at a time.
  for step_types, expected in (("MF", [1, 0]), ("LM", [2, 1]), ("FL", [0, 2])):
    lengths = followed.add(steps_of(*step_types), BOTH).lengths
    assert lengths[:, 0].tolist() == expected


def test_returns_leave_out_the_reward_of_a_reset():
  followed = episodes.Episodes(1)
  steps = changed(steps_of("FML"), "reward", 7.0, (0, 0))
  assert followed.add(steps, BOTH[:1])[1][0, 2] == 2.0


def test_a_sum_of_rewards_that_exceeds_float32_is_refused():
  followed = episodes.Episodes(1)
  with pytest.raises(wire.Refusal, match="episode_return from"):
    followed.add(steps_of("FML", reward=3e38), BOTH[:1])


def test_a_peers_returns_count_where_they_are_not_sums_of_rewards():
  followed = episodes.Episodes(1, returns_are_sums=False)
  # The first episode ends when a life is lost, the second with the game.
  followed.add(steps_of("FML"), BOTH[:1])
  _, returns, _ = followed.add(steps_of("FML", claimed=-4e6), BOTH[:1])
  np.testing.assert_array_equal(returns, [[NAN, NAN, -4e6]])


def test_a_return_that_the_rewards_do_not_allow_is_refused():
  followed = episodes.Episodes(1, returns_are_sums=False)
  followed.add(steps_of("FML"), BOTH[:1])
  with pytest.raises(wire.Refusal, match="from -4000000"):
    followed.add(steps_of("FML", claimed=-5e6), BOTH[:1])
  misplaced = changed(steps_of("FML"), "episode_return", 1.0)
  with pytest.raises(wire.Refusal, match="where an episode ends"):
    followed.add(misplaced, BOTH[:1])


@pytest.mark.parametrize(
  ("options", "expected"),
  [
    ({}, True),
    ({"reward_clip": True}, False),
    ({"episodic_life": True, "reward_clip": False}, False),
  ],
)
def test_returns_are_sums_unless_atari_clips_rewards_or_a_life_is_an_episode(
  options, expected
):
  assert envs.returns_are_sums(envs.Config("Pong-v5", options)) is expected
  custom_env = envs.Config("my_env:make", options)
  assert envs.returns_are_sums(custom_env)


SMALL = {"img_height": 20, "img_width": 20, "max_episode_steps": 60}
LIVES = {"episodic_life": True, "reward_clip": True}


@pytest.mark.parametrize(
  ("env_id", "options"),
  [
    ("CartPole-v1", {}),
    ("Pendulum-v1", {"max_episode_steps": 60}),
    pytest.param("Breakout-v5", SMALL | LIVES, marks=pytest.mark.slow),
  ],
)
def test_an_honest_peer_is_never_refused(env_id, options):
  """Sums of rewards equal EnvPool's returns bit for bit.

  Breakout's clipped rewards do not add up to the return, which has a bound.
  """
  config = envs.Config(env_id, options)
  environment = envs.make(config, 8, batch_size=4, seed=3)
  environment.reset()
  followed = episodes.Episodes(8, envs.returns_are_sums(config))
  action, rng = environment.spec.action, np.random.default_rng(0)
  length, ended = np.zeros(8, int), []
  for _ in range(300):
    rows = environment.recv()
    leaves = (*rows.timestep[:3], rows.episode_return)
    steps = episodes.Steps(*(leaf[:, None] for leaf in leaves))
    _, returns, lengths = followed.add(steps, rows.index)
    np.testing.assert_array_equal(returns[:, 0], rows.episode_return)
    length[rows.index] += rows.timestep.step_type != dm_env.StepType.FIRST
    np.testing.assert_array_equal(lengths[:, 0], length[rows.index])
    is_end = ~np.isnan(rows.episode_return)
    length[rows.index[is_end]] = 0
    ended += rows.episode_return[is_end].tolist()
    high = getattr(action, "num_values", 2)
    actions = rng.integers(0, high, (4, *action.shape)).astype(action.dtype)
    environment.send(rows.index, actions)
  # A game in which all returns are 0 would be within any bound.
  assert len(ended) > 5 and any(ended)
  environment.close()
