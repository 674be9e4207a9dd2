"""Runs that continue after their workers, actors or servers are killed."""

import contextlib
import os
import signal
import threading

import psutil
import pytest

from seedx import types
from seedx.envs import envpool_adapter
from seedx.launch import instances
from tests import running
from tests.pipelines import pipelines_test


class Running(running.Running):
  """A pipeline whose nodes are processes, as in programs."""

  def __init__(self, pipeline, name, tmp_path):
    self.before = set(psutil.Process().children())
    config = pipelines_test.config_of(pipeline, name, tmp_path, 10**9)
    super().__init__(config, actors=0)

  def __enter__(self):
    self.processes = instances.Processes(self.nodes)
    return super().__enter__()

  def run(self):
    super().run(self.processes.check)

  def child(self, role):
    children = self.children(role)
    assert children, f"no process of {role}"
    return children[0]

  def children(self, role):
    children = []
    for child in set(psutil.Process().children()) - self.before:
      with contextlib.suppress(psutil.NoSuchProcess):  # The child has ended.
        if child.cmdline()[-1:] == [role]:
          children.append(child)
    return children

  def wait_for_more_steps(self, env_steps):
    self.wait_for_steps(self.acted.env_steps + env_steps)

  def __exit__(self, *exception):
    self.stop.set()
    super().__exit__(*exception)
    self.processes.stop()
    left = set(psutil.Process().children()) - self.before
    assert not [child for child in left if "seedx.launch" in child.cmdline()]


@pytest.mark.slow  # `impala_test` kills an actor of IMPALA.
def test_a_killed_actor_is_replaced_while_the_others_continue(tmp_path, capfd):
  with Running("seed", "vtrace", tmp_path) as run:
    run.wait_for_more_steps(200)
    victim = run.child("actor")
    os.kill(victim.pid, signal.SIGKILL)
    # The other actors continue at once, and a new one replaces the killed one.
    run.wait_for_more_steps(200)
    run.wait_for(lambda: run.child("actor").pid != victim.pid)
    run.wait_for_more_steps(1_000)
  assert run.sink.lines[-1]["learner_steps"] > 10
  assert f"actor {victim.pid} died with status -9" in capfd.readouterr().err


@pytest.mark.slow
def test_killed_self_play_workers_come_back(tmp_path, capfd):
  with Running("apex", "alphazero", tmp_path) as run:
    run.wait_for_more_steps(200)
    victims = run.children("actor")
    assert len(victims) == 2
    for victim in victims:
      os.kill(victim.pid, signal.SIGKILL)
    # No worker is left, so these games come from the new ones.
    run.wait_for(lambda: len({*run.children("actor")} - {*victims}) == 2)
    run.wait_for_more_steps(1_000)
  last = run.sink.lines[-1]
  assert last["learner_steps"] > 10 and last["loss"] > 0
  assert last["episodes"] > 50
  error = capfd.readouterr().err
  for victim in victims:
    assert f"actor {victim.pid} died with status -9" in error


@pytest.mark.slow
def test_a_killed_parameter_server_gets_its_parameters_back(tmp_path):
  with Running("gorila", "dqn", tmp_path) as run:
    run.wait_for_more_steps(400)
    victim = run.child("server-1")
    learned = run.learned.steps
    os.kill(victim.pid, signal.SIGKILL)
    run.wait_for(lambda: run.learned.steps > learned + 20)
    assert run.child("server-1").pid != victim.pid


@pytest.mark.slow
def test_a_worker_of_a3c_that_fails_ends_the_run_with_its_error(
  tmp_path, monkeypatch
):
  run, _ = pipelines_test.make("a3c", "a2c", tmp_path, total_steps=10**9)
  recv, calls = envpool_adapter.EnvPoolEnvironment.recv, []

  def fail_after_60_calls(environment):
    calls.append(environment)
    if len(calls) > 60:
      raise FloatingPointError("the environment has had enough")
    return recv(environment)

  monkeypatch.setattr(
    envpool_adapter.EnvPoolEnvironment, "recv", fail_after_60_calls
  )
  before = threading.active_count()
  with pytest.raises(FloatingPointError, match="had enough"):
    run.run()
  assert run.learned.steps >= 2
  running.wait_until(lambda: threading.active_count() <= before)


def test_a_node_that_cannot_be_pickled_is_refused(tmp_path):
  config = pipelines_test.config_of("impala", "vtrace", tmp_path)
  agent = running.Changed(config.agent, lambda agent: agent)
  (node,) = running.replaced(config, agent=agent).nodes()
  with pytest.raises(types.ConfigError, match="can be pickled"):
    instances.Processes([node])
