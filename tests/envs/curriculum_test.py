"""An environment that changes with the env steps of the run."""

import types as types_lib

import numpy as np
import pytest

from seedx import envs
from tests.repository import documentation


def test_only_an_option_that_is_given_receives_the_env_steps():
  config = envs.Config("my_env:make", {"size": 3})
  assert envs.at(config, 500) is config
  config = envs.Config("my_env:make", {"size": 3, "env_steps": 0})
  later = envs.at(config, 500)
  assert later == envs.Config("my_env:make", {"size": 3, "env_steps": 500})
  assert config.env_options["env_steps"] == 0


def test_the_example_of_the_page_follows_the_env_steps_of_all_environments():
  module = types_lib.SimpleNamespace()
  exec(documentation.file_named("my_curriculum.py"), vars(module))
  env = module.make(num_envs=100, env_steps=10_000)
  used = []
  for _ in range(20):
    env.reset(seed=0)
    used.append((env.env_steps, env.unwrapped.gravity))
    ended = False
    while not ended:
      _, _, terminated, truncated, _ = env.step(0)
      ended = terminated or truncated
  steps, gravities = np.transpose(used)
  assert steps[0] == 10_000 and np.all(np.diff(steps) % 100 == 0)
  np.testing.assert_allclose(
    gravities, np.interp(steps, [0, 40_000], [2.0, 9.8])
  )
  assert gravities[0] == pytest.approx(3.95)


def test_the_factory_receives_the_env_steps(tmp_path, monkeypatch):
  """The pole's velocity after some steps depends on the gravity."""
  text = documentation.file_named("my_curriculum.py")
  (tmp_path / "my_curriculum.py").write_text(text)
  monkeypatch.chdir(tmp_path)
  config = envs.Config("my_curriculum:make", {"num_envs": 1, "env_steps": 0})
  velocities = []
  for env_steps in (0, 40_000):
    environment = envs.make(envs.at(config, env_steps), 1, seed=7)
    try:
      environment.reset()
      rows = environment.recv()
      for _ in range(3):
        environment.send(rows.index, np.ones(1, np.int32))
        rows = environment.recv()
      velocities.append(rows.timestep.observation[0, 3])
    finally:
      environment.close()
  assert velocities[0] != velocities[1]
