"""Runs that continue after their workers, actors or servers are killed."""

import os
import signal
import threading

import numpy as np
import pytest

from seedx import types
from seedx.envs import envpool_adapter
from seedx.launch import instances
from tests import running
from tests.pipelines import cells


@pytest.mark.slow  # `impala_test` kills an actor of IMPALA.
def test_a_killed_actor_is_replaced_while_the_others_continue(tmp_path, capfd):
  with cells.Running(cells.config_of("seed", "vtrace", tmp_path)) as run:
    run.wait_for_more_steps(200)
    victim = run.child("actor")
    os.kill(victim.pid, signal.SIGKILL)
    # The other actors continue at once, and a new one replaces the killed one.
    run.wait_for_more_steps(200)
    run.wait_for(lambda: run.child("actor").pid != victim.pid)
    run.wait_for_more_steps(1_000)
  assert run.sink.lines[-1]["learner_steps"] > 10
  assert f"actor {victim.pid} died with status -9" in capfd.readouterr().err


@pytest.mark.long
def test_killed_self_play_workers_come_back(tmp_path, capfd):
  with cells.Running(cells.config_of("apex", "alphazero", tmp_path)) as run:
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
def test_a_killed_inference_process_is_replaced_for_its_actors(tmp_path, capfd):
  with cells.Running(cells.config_of("pool", "vtrace", tmp_path)) as run:
    service = run.process.measures[2]
    run.wait_for(lambda: len(service._open) == 2)
    run.wait_for(lambda: np.all(service._open[1]._has_joined))
    actors = {x.pid for x in run.children("actor")}
    victim = run.child("inference-1")
    discarded = run.acted.measure()["unrolls_discarded"]
    os.kill(victim.pid, signal.SIGKILL)
    # The other process and its actor continue at once.
    run.wait_for_more_steps(200)
    run.wait_for(lambda: len(service._open) == 2)
    run.wait_for(lambda: np.all(service._open[1]._has_joined))
    run.wait_for_more_steps(1_000)
    assert run.child("inference-1").pid != victim.pid
    # An actor outlives the process that acts for it.
    assert {x.pid for x in run.children("actor")} == actors
    lost = run.acted.measure()["unrolls_discarded"] - discarded
  assert lost == 4  # One unroll of each environment of its actor.
  assert f"inference-1 {victim.pid} died" in capfd.readouterr().err


@pytest.mark.slow
def test_a_killed_parameter_server_gets_its_parameters_back(tmp_path):
  with cells.Running(cells.config_of("gorila", "dqn", tmp_path)) as run:
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
  run = cells.make("a3c", "a2c", tmp_path, total_steps=10**9)
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
  config = cells.config_of("impala", "vtrace", tmp_path)
  agent = running.Changed(config.agent, lambda agent: agent)
  (node,) = running.replaced(config, agent=agent).nodes()
  with pytest.raises(types.ConfigError, match="can be pickled"):
    instances.Processes([node])
