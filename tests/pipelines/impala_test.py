"""The IMPALA pipeline end to end, with actors on threads and in processes."""

import os
import signal

import chex
import dm_env
import jax
import numpy as np
import pytest

from seedx import envs, types
from seedx.acting import protocol
from seedx.agents import acting_step, vtrace
from seedx.learning import learner
from seedx.pipelines import impala
from seedx.runtime import process
from tests import programs, running
from tests.pipelines import cells

compiled_once = programs.compiled_once
FIRST = int(dm_env.StepType.FIRST)
ENVS, T, BATCH = 4, 5, 8


def config_of(folder, fields=None, **changes):
  agent = {
    "hidden_sizes": (8,),
    "learning_rate": 3e-3,
    "learning_rate_end": 1.0,
    "reward_scale": 1.0,
    **(fields or {}),
  }
  config = impala.Config(
    agent=vtrace.Config(**agent),
    total_steps=1_500,
    seed=3,
    actors=protocol.Actors(num_actors=2, envs_per_actor=ENVS),
    learner=learner.InboxConfig(unroll_length=T, batch_size=BATCH),
    log_seconds=0.1,
  )
  return running.replaced(config, **changes).with_sockets(str(folder))


@pytest.fixture(
  scope="module",
  params=[
    ((0,), {}),
    pytest.param(
      ((2, 3, 4, 5), {"recurrent": True, "lstm_size": 4}),
      marks=pytest.mark.slow,
    ),
  ],
  ids=["one core", "LSTM on 4 cores"],
)
def ran(request, tmp_path_factory):
  """Returns a run of two actors that has ended, and its messages."""
  cores, fields = request.param
  folder = tmp_path_factory.mktemp("run")
  # The slots of a third actor stay free.
  config = config_of(
    folder, fields, learner_devices=cores, total_steps=10**9, num_actors=3
  )
  run = running.Running(config, actors=2)
  spy = running.Spy(run)
  with run:
    run.wait_for(lambda: run.learner.version >= 21)
    run.wait_for(lambda: spy.have_sent(2, messages=15))
    run.wait_for_steps(1_000)
    run.stop.set()
  return run, spy


def test_every_unroll_is_learned_from_once_and_in_order(ran):
  run, spy = ran
  sent = running.joined([running.time_major(x.unroll) for x in spy.messages])
  parts = [part for batch in spy.learned for part in batch]
  learned = running.joined(parts)
  count = learned.action.shape[1]
  assert count == BATCH * len(spy.learned)
  steps = jax.tree.map(lambda x: x[:, :count], tuple(sent[:-1]))
  core_state = jax.tree.map(lambda x: x[:count], sent.core_state)
  chex.assert_trees_all_equal(tuple(learned), (*steps, core_state))
  # The other unrolls were in transit when the run ended: in an unfinished
  # share, or in shares before, in and after the inbox.
  left = sent.action.shape[1] - count
  assert left < 4 * BATCH
  last = run.sink.lines[-1]
  assert last["learner_steps"] == len(spy.learned) > 20
  new = learned.inputs.timestep.step_type[1:] != FIRST
  assert last["learned_steps"] == new.sum()
  assert last["learned_steps"] <= last["env_steps"]
  # A message of each actor may be counted, but not yet cut into shares.
  assert last["env_steps"] - last["learned_steps"] <= (left + 2 * ENVS) * T


def test_env_steps_are_counted_without_resets(ran):
  run, spy = ran
  env_steps = 0
  for message in spy.messages:
    # The first time step is the last of the previous unroll, or a reset.
    step_type = message.unroll.inputs.timestep.step_type[:, 1:]
    steps = np.sum(step_type != FIRST, axis=1)
    np.testing.assert_array_equal(message.env_steps, steps)
    env_steps += steps.sum()
  last = run.sink.lines[-1]
  # The last message of each actor may be counted, but missing in `spy`.
  assert 0 <= last["env_steps"] - env_steps <= 2 * ENVS * T
  assert 8 <= last["episode_return"] <= 100  # A random policy gets 20.


def test_lines_have_the_bytes_sent_and_the_shares_of_waits(ran):
  run, spy = ran
  last = run.sink.lines[-1]
  size = sum(
    leaf.nbytes
    for message in spy.messages
    for leaf in jax.tree.leaves(message.unroll)
  )
  assert size < last["wire_bytes"] < 3 * size
  for line in run.sink.lines:
    waits = {name for name in line if "wait" in name}
    assert waits == {
      "acting_wait_environments",
      "acting_wait_learner",
      "learning_wait_experience",
    }
    assert all(0 <= line[name] <= 1 for name in waits)
  assert max(line["acting_wait_learner"] for line in run.sink.lines) > 0


def test_each_actor_has_its_own_slots_and_seeds(ran):
  run, spy = ran
  first, second = spy.sessions
  slots = np.concatenate([first.lease.slots, second.lease.slots])
  assert sorted(slots) == list(range(2 * ENVS))
  assert abs(first.lease.first_seed - second.lease.first_seed) >= ENVS
  for session in spy.sessions:
    environment = envs.make(run.config.env, ENVS, seed=session.lease.first_seed)
    environment.reset()
    inputs = spy.of(session)[0].unroll.inputs
    np.testing.assert_array_equal(
      inputs.timestep.observation[:, 0],
      environment.recv().timestep.observation,
    )
    environment.close()
  assert run.unrolls.sessions.leases.free == [3 * ENVS]


# Parameters


def test_actions_are_those_of_the_version_that_actors_report(ran):
  """The test computes actions again, with the parameters of each version."""
  run, spy = ran
  agent = run.config.agent.make(envs.spec(run.config.env))
  step, versions = jax.jit(agent.step), set()
  for session in spy.sessions:
    key, last = running.key_of(session), 0
    for k, message in enumerate(spy.of(session)[:12]):
      unroll = running.time_major(message.unroll)
      core_state = unroll.core_state
      # The action of the last time step is not used.
      for t in range(T):
        inputs = jax.tree.map(lambda x, t=t: x[t], unroll.inputs)
        (version,) = set(unroll.version[t])
        assert version >= last
        versions.add(last := version)
        output, core_state = step(
          spy.published[version],
          jax.random.fold_in(key, k * T + t),
          inputs,
          restarted(agent, inputs, core_state),
        )
        np.testing.assert_array_equal(output.action, unroll.action[t])
        jax.tree.map(
          lambda a, b, t=t: np.testing.assert_allclose(a, b[t], rtol=1e-5),
          output.extras,
          unroll.extras,
        )
  assert len(versions) > 4


def test_actors_compute_in_float32_when_the_learner_does_not(tmp_path):
  config = config_of(tmp_path, {"compute_dtype": "bfloat16"})
  (node,) = config.nodes()
  spec = envs.spec(config.env)
  of_actor = node.config.agent.make(spec)
  of_learner = config.agent.make(spec)

  def program(agent):
    arguments = jax.eval_shape(
      lambda: (
        agent.acting(agent.init(jax.random.key(0))),
        jax.random.key(0),
        acting_step.zero_inputs(spec, 1),
        agent.initial_core_state(1),
      )
    )
    return str(jax.make_jaxpr(agent.step)(*arguments))

  assert "bf16" in program(of_learner)
  assert "bf16" not in program(of_actor)


def test_unrolls_are_few_updates_old(ran):
  run, spy = ran
  for k, message in enumerate(spy.messages):
    # Each share makes an update, except for shares in transit: two in the
    # learner, one in its queue, and some before and after the queue.
    behind = k * ENVS // BATCH - message.unroll.version[:, 1:T]
    assert np.all((behind >= 0) & (behind <= 6))
  lags = [line["policy_lag"] for line in run.sink.lines]
  lags = [lag for lag in lags if lag is not None]
  assert 0 <= min(lags) <= max(lags) <= 6


def restarted(agent, inputs, core_state):
  """Returns the core state, set to zeros where an episode begins."""
  first = inputs.timestep.step_type == FIRST
  return jax.tree.map(
    lambda a, b: np.where(first.reshape(-1, *(1,) * (a.ndim - 1)), a, b),
    jax.tree.map(np.zeros_like, core_state),
    core_state,
  )


# Processes


@pytest.mark.long
def test_a_new_actor_takes_a_killed_actors_slots_with_other_seeds(
  tmp_path, capfd
):
  run = cells.Running(cells.config_of("impala", "vtrace", tmp_path))
  spy = running.Spy(run)
  with run:
    run.wait_for(lambda: spy.have_sent(2, messages=2))
    victim = run.child("actor")
    os.kill(victim.pid, signal.SIGKILL)
    # The other actor continues; a new one takes the slots of the killed one.
    run.wait_for_more_steps(200)
    run.wait_for(lambda: len(spy.sessions) == 3)
    run.wait_for(lambda: len(spy.of(spy.sessions[2])) > 3)
    assert run.child("actor").pid != victim.pid
    run.wait_for_more_steps(1_000)
  assert run.sink.lines[-1]["learner_steps"] > 10
  assert f"actor {victim.pid} died with status -9" in capfd.readouterr().err
  slots = [tuple(session.lease.slots) for session in spy.sessions]
  assert slots[0] != slots[1]
  assert slots[2] in slots[:2]
  seeds = sorted(session.lease.first_seed for session in spy.sessions)
  assert np.all(np.diff(seeds) >= len(slots[0]))
  # The new actor begins with a reset, and with the newest parameters.
  message = spy.of(spy.sessions[2])[0]
  assert np.all(message.unroll.inputs.timestep.step_type[:, 0] == FIRST)
  assert message.unroll.version[0, 0] > 0


# Refusals


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"batch_size": 6, "learner_devices": (0, 1, 2, 3)}, "4 learner devices"),
    ({"num_actors": 0}, "num_actors from 1"),
    ({"env": envs.Config("NoSuch-v1")}, "NoSuch-v1"),
  ],
)
def test_invalid_options_are_refused(tmp_path, changes, message):
  with pytest.raises(types.ConfigError, match=message):
    config_of(tmp_path, **changes).learn(process.Context())
