"""The adapter that records episodes, with EnvPool's environments."""

import collections
import contextlib

import numpy as np
import pytest

from seedx import envs, recordings
from seedx.envs import demonstrators


def played(config, left, policy, batch_size=None, **options):
  """Plays until all episodes are recorded.

  Returns:
    The recorder, its episodes, and all rows and actions of each environment:
    (step_type, reward, discount, observation, episode_return), action.
  """
  episodes, rows_of = [], collections.defaultdict(list)
  environment = recordings.Recorder(
    envs.make(config, len(left), batch_size=batch_size, seed=5),
    episodes.append,
    5,
    left,
    **options,
  )
  with contextlib.closing(environment):
    environment.reset()
    while environment.left.any():
      rows = environment.recv()
      action = policy(rows)
      for b, k in enumerate(rows.index):
        row = [x[b] for x in (*rows.timestep, rows.episode_return)]
        rows_of[int(k)].append((row, action[b]))
      environment.send(rows.index, action)
  return environment, episodes, rows_of


def balanced(rows):
  """Balances the pole in every second environment; the others fail."""
  action, _ = demonstrators.cartpole(rows.timestep, None)
  return np.where(rows.index % 2, 1, action).astype(np.int32)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_episodes_are_as_they_were_played(batch_size):
  config = envs.Config("CartPole-v1", {"max_episode_steps": 30})
  left = [2, 3, 1, 2]
  environment, episodes, rows_of = played(config, left, balanced, batch_size)
  assert not environment.left.any()
  for k, count in enumerate(left):
    own = [x for x in episodes if x.seed == 5 + k]
    assert len(own) == count
    rows = iter(rows_of[k])
    for episode in own:
      length = len(episode.reward)
      steps, actions = zip(*[next(rows) for _ in range(length)], strict=True)
      kinds, reward, discount, observation, returns = zip(*steps, strict=True)
      np.testing.assert_array_equal(episode.step_type, kinds)
      np.testing.assert_array_equal(episode.reward, reward)
      np.testing.assert_array_equal(episode.discount, discount)
      np.testing.assert_array_equal(episode.observation, observation)
      np.testing.assert_array_equal(episode.action[:-1], actions[:-1])
      assert episode.action[-1] == 0
      assert episode.episode_return == returns[-1] == length - 1
      # The time limit truncates the balanced episodes.
      assert episode.discount[-1] == (length == 31) == (k % 2 == 0)


def test_long_episodes_are_truncated_and_end_their_environment():
  environment, episodes, _ = played(
    envs.Config("CartPole-v1"), [3, 1], balanced, max_episode_steps=20
  )
  assert not environment.left.any()
  lengths = {x.seed: len(x.reward) for x in episodes}
  assert lengths[5] == 21 and len(episodes) == 2
  long = next(x for x in episodes if x.seed == 5)
  assert long.discount.tolist() == [1.0] * 21 and np.isnan(long.episode_return)


def test_actions_are_those_that_the_environment_took():
  def beyond(rows):
    return np.full((len(rows.index), 1), 7.0, np.float32)

  _, (episode,), _ = played(envs.Config("Pendulum-v1"), [1], beyond)
  assert episode.action.tolist() == [[2.0]] * 200 + [[0.0]]
