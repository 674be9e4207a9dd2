"""The thin actor: what it leaves behind."""

import threading
import time

import numpy as np

from seedx import envs, wire
from seedx.acting import protocol, thin_actor

ENV = envs.Config(env="CartPole-v1")


class Slow:
  """Environments whose steps take long; closing them meanwhile is wrong."""

  def __init__(self, env, num_envs, **options):
    self._env = envs.EnvPoolEnvironment(env, num_envs, **options)
    self.reset, self.send = self._env.reset, self._env.send
    self.steps = self.overlaps = self.closes = 0
    self._stepping = False

  def recv(self):
    self._stepping = True
    time.sleep(0.3)
    rows = self._env.recv()
    self._stepping = False
    self.steps += 1
    return rows

  def close(self):
    self.closes += 1
    self.overlaps += self._stepping
    self._env.close()


class Still:
  """A session that always does the same."""

  def __init__(self, hello):
    self.welcome = {"first_seed": 0}

  def __call__(self, inputs):
    return np.zeros(len(inputs.index), np.int32)

  def close(self):
    pass


def test_its_environments_are_closed_and_its_threads_gone_when_it_ends(
  tmp_path, monkeypatch
):
  """EnvPool's threads, or one in a step, abort a process that exits."""
  made = []

  def make(env, num_envs, **options):
    made.append(Slow(env, num_envs, **options))
    return made[-1]

  monkeypatch.setattr(envs, "make", make)
  server = wire.Server(f"unix:{tmp_path}/learner", 1)
  layouts = protocol.act_layouts(envs.spec(ENV), 4)
  server.bind_stream(protocol.ACT, Still, *layouts)
  config = thin_actor.Config(num_actors=1, envs_per_actor=4)
  work = thin_actor.Work(f"unix:{tmp_path}/learner", ENV, config)
  before = threading.active_count()
  with server:
    actor = threading.Thread(
      target=thin_actor.run, args=(work, threading.Event())
    )
    actor.start()
    deadline = time.monotonic() + 10
    while not (made and made[0].steps):
      assert time.monotonic() < deadline
      time.sleep(0.01)
    time.sleep(0.1)  # The next step is in progress.
  actor.join(10)
  (environment,) = made
  assert (environment.closes, environment.overlaps) == (1, 0)
  while len([x for x in threading.enumerate() if x.name != "wire"]) > before:
    assert time.monotonic() < deadline + 10
    time.sleep(0.01)
