"""Minari's data sets; Minari is an extra, which only slow tests install."""

import gymnasium
import numpy as np
import pytest

from experiments import offline
from seedx import envs, recordings, types
from seedx.app import record
from seedx.envs import spaces
from seedx.recordings import minari_files
from tests import programs

own_signals = programs.own_signals
compiled_once = programs.compiled_once
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
  monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


class Wrapped(gymnasium.ObservationWrapper):
  """Observations that are nested, with a choice that does not begin at 0."""

  def __init__(self, env):
    super().__init__(env)
    self.observation_space = gymnasium.spaces.Dict(
      {
        "vector": gymnasium.spaces.Box(-9, 9, (4,), np.float64),
        "choice": gymnasium.spaces.Discrete(3, start=5),
        "frame": gymnasium.spaces.Box(0, 255, (8, 9, 3), np.uint8),
      }
    )

  def observation(self, observation):
    frame = np.zeros((8, 9, 3), np.uint8)
    frame[1, 2, 0] = 7
    vector = np.clip(observation.astype(np.float64), -9, 9)
    return {"vector": vector, "choice": np.int64(6), "frame": frame}


def collected(name, env, episodes=3):
  """Makes a data set by Minari's own collector; returns the rewards."""
  import minari

  env = minari.DataCollector(env)
  rewards = []
  for seed in range(episodes):
    env.reset(seed=seed)
    env.action_space.seed(seed)
    rewards.append([])
    done = False
    while not done:
      _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
      rewards[-1].append(reward)
      done = terminated or truncated
  env.create_dataset(dataset_id=name, algorithm_name="random")
  env.close()
  return rewards


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_a_data_set_of_minari_trains(name, tmp_path, capfd):
  rewards = collected("test/made-v0", gymnasium.make(name))
  opened = recordings.opened("minari:test/made-v0")
  read = list(opened.episodes())
  assert [len(x.reward) - 1 for x in read] == [*map(len, rewards)]
  for episode, expected in zip(read, rewards, strict=True):
    np.testing.assert_allclose(episode.reward[1:], expected, rtol=1e-6)
    assert episode.discount[-1] == float(name == "Pendulum-v1")
  own = envs.Config("gymnasium:make", {"id": name})
  described = opened.description
  assert described.env == {"env": own.env, "env_options": own.env_options}
  assert not spaces.differences(envs.spec(own), described.spec)
  words = ["--dataset", "minari:test/made-v0", "--total-steps", "20"]
  words += ["--quiet", "--run-dir", str(tmp_path / "run")]
  assert "--trust" in programs.refused(offline, words, capfd)
  # EnvPool's environment has the same spaces, and runs no other code.
  assert programs.main(offline, [*words, "--env", name]) == 0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_nested_observations_are_those_of_the_environment():
  collected("test/nested-v0", Wrapped(gymnasium.make("CartPole-v1")))
  opened = recordings.opened("minari:test/nested-v0")
  episode = next(opened.episodes())
  length = len(episode.reward)
  assert episode.observation["choice"].tolist() == [1] * length
  frame = episode.observation["frame"]
  assert frame.shape == (length, 3, 8, 9) and (frame[:, 0, 1, 2] > 0).all()
  assert episode.observation["vector"].dtype == np.float32


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "seedx:Catch"])
def test_a_recording_is_read_by_minari_and_again_by_us(env, tmp_path):
  import minari

  data, name = str(tmp_path / "data"), "test/exported-v0"
  words = ["--env", env, "--episodes", "3", "--output", data]
  assert record.main([*words, "--minari", name]) == 0
  first = recordings.Recording(data)
  theirs = minari.load_dataset(name)
  episodes = list(first.episodes())
  steps = sum(len(x.reward) - 1 for x in episodes)
  assert (theirs.total_episodes, theirs.total_steps) == (3, steps)
  for episode in theirs.iterate_episodes():
    for observation in episode.observations:
      assert theirs.observation_space.contains(observation)
    assert all(map(theirs.action_space.contains, episode.actions))
    assert episode.terminations[-1] != episode.truncations[-1]
    assert not (episode.terminations | episode.truncations)[:-1].any()
  again = list(recordings.opened(f"minari:{name}").episodes())
  for old, new in zip(episodes, again, strict=True):
    np.testing.assert_array_equal(old.action, new.action)
    np.testing.assert_array_equal(old.reward, new.reward)
    np.testing.assert_array_equal(old.discount, new.discount)
    np.testing.assert_array_equal(old.observation, new.observation)
  with pytest.raises(types.ConfigError, match="cannot write the Minari data"):
    minari_files.write(first, name)


def test_a_data_set_that_cannot_be_used_is_refused(tmp_path):
  with pytest.raises(types.ConfigError, match="on this machine, found none"):
    recordings.opened("minari:test/nothing-v0")
  folder = tmp_path / "minari" / "test" / "broken-v0" / "data"
  folder.mkdir(parents=True)
  with pytest.raises(types.ConfigError, match="cannot read minari:test/broken"):
    recordings.opened("minari:test/broken-v0")
