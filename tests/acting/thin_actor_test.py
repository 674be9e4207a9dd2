"""The thin actor: it leaves no environments or threads behind."""

import dataclasses
import threading

import numpy as np

from seedx import envs
from seedx.acting import protocol, thin_actor
from seedx.envs import envpool_adapter
from seedx.wire import serving
from tests import running

ENV = envs.Config(env="CartPole-v1")


class Blocking:
  """Environments whose second `recv` blocks; `overlaps` counts early closes.

  If there is a `failure`, that `recv` then raises it.
  """

  def __init__(self, env, num_envs, **options):
    self._env = envpool_adapter.EnvPoolEnvironment(env, num_envs, **options)
    self.reset = self._env.reset
    self.steps = self.sends = self.overlaps = self.closes = 0
    self.stepping, self.resume = threading.Event(), threading.Event()
    self.failure = None

  def send(self, index, action):
    self._env.send(index, action)
    self.sends += 1

  def recv(self):
    if self.steps:
      self.stepping.set()
      self.resume.wait()
      if self.failure is not None:
        raise self.failure
    rows = self._env.recv()
    self.stepping.clear()
    self.steps += 1
    return rows

  def close(self):
    self.closes += 1
    self.overlaps += self.stepping.is_set()
    self._env.close()


class ConstantActions:
  """A session that always returns the same actions."""

  def __init__(self, hello):
    self.welcome = {"first_seed": 0}

  def __call__(self, inputs):
    return np.zeros(len(inputs.index), np.int32)

  def close(self):
    pass


def test_an_actor_that_ends_closes_its_environments_and_threads(
  tmp_path, monkeypatch
):
  """A process that exits while EnvPool steps environments would abort."""
  made = []

  def make(env, num_envs, **options):
    made.append(Blocking(env, num_envs, **options))
    return made[-1]

  monkeypatch.setattr(envs, "make", make)
  server = serving.Server(f"unix:{tmp_path}/learner", 1)
  layouts = protocol.act_layouts(envs.spec(ENV), 4)
  server.bind_stream(protocol.ACT, ConstantActions, *layouts)
  config = thin_actor.Config(num_actors=1, envs_per_actor=4)
  work = thin_actor.Work(f"unix:{tmp_path}/learner", ENV, config)
  num_threads = threading.active_count()
  with server:
    actor = threading.Thread(
      target=thin_actor.run, args=(work, threading.Event())
    )
    actor.start()
    running.wait_until(lambda: made and made[0].stepping.is_set())
  actor.join(0.3)  # A faulty actor would close them during a step.
  made[0].resume.set()
  actor.join(300)
  (environment,) = made
  assert (environment.closes, environment.overlaps) == (1, 0)
  running.wait_until(
    lambda: (
      len([x for x in threading.enumerate() if x.name != "wire"]) <= num_threads
    )
  )


def test_environments_with_actions_step_while_others_do(tmp_path, monkeypatch):
  """If their actions waited for the others' step, a core would be idle."""
  made, failures = [], []

  class Late(ConstantActions):
    """Answers once the others step."""

    def __call__(self, inputs):
      assert made[0].stepping.wait(20)
      return super().__call__(inputs)

  def make(env, num_envs, **options):
    made.append(Blocking(env, num_envs, **options))
    return made[-1]

  def act():
    try:
      thin_actor.run(work, threading.Event())
    except OSError as failure:
      failures.append(failure)

  monkeypatch.setattr(envs, "make", make)
  server = serving.Server(f"unix:{tmp_path}/learner", 1)
  layouts = protocol.act_layouts(envs.spec(ENV), 2)
  server.bind_stream(protocol.ACT, Late, *layouts)
  config = thin_actor.Config(1, envs_per_actor=4, actor_batch_size=2)
  work = thin_actor.Work(f"unix:{tmp_path}/learner", ENV, config)
  with server:
    actor = threading.Thread(target=act, daemon=True)
    actor.start()
    running.wait_until(lambda: made and made[0].sends == 1, seconds=20)
    (environment,) = made
    assert environment.stepping.is_set()
    environment.failure = OSError()
    environment.resume.set()
    actor.join(20)
  assert failures == [environment.failure]
  assert environment.closes == 1


def test_rows_have_a_column_of_info_only_if_entries_are_logged():
  spec = envs.spec(envs.Config("CartPole-v1"))
  layout, _ = protocol.act_layouts(spec, 4)
  plain = layout.to_json()["columns"]
  assert "info" not in [column["name"] for column in plain]
  spec = dataclasses.replace(spec, log_info=("a", "b"))
  layout, _ = protocol.act_layouts(spec, 4)
  *others, last = layout.to_json()["columns"]
  assert others == plain
  assert (last["name"], last["shape"]) == ("info", [2])


def test_an_actor_that_is_slow_when_its_stream_fails_connects_again(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(thin_actor, "_STEP_SECONDS", 0.01)
  made, stop, again = threading.Event(), threading.Event(), threading.Event()

  def make(*args, **options):
    made.wait(60)
    raise OSError

  monkeypatch.setattr(thin_actor.envs, "make", make)
  opened = []

  class Session:
    def __init__(self, hello):
      self.welcome = {"first_seed": 0, "env_steps": 0}
      opened.append(hello)
      if len(opened) > 1:
        stop.set()
        again.set()

    def __call__(self, rows):
      raise AssertionError

    def close(self):
      pass

  actors = thin_actor.Config(num_actors=1, envs_per_actor=1)
  server = serving.Server(f"unix:{tmp_path}/s", 2, silent_seconds=0.2)
  server.bind_stream(
    protocol.ACT, Session, *protocol.act_layouts(envs.spec(ENV), 1)
  )
  with server:
    work = thin_actor.Work(server.address, ENV, actors, retry_seconds=0.01)
    thread = threading.Thread(
      target=thin_actor.run, args=(work, stop), daemon=True
    )
    thread.start()
    thread.join(20)
    made.set()
    assert again.is_set()
