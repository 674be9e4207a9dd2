"""The Ape-X pipeline end to end, with actors on threads."""

import dm_env
import jax
import numpy as np
import pytest

from seedx import envs, replay, types
from seedx.acting import protocol
from seedx.agents import dqn, value_based
from seedx.learning import learner
from seedx.pipelines import apex
from tests import programs, running

compiled_once = programs.compiled_once
FIRST = int(dm_env.StepType.FIRST)
# An unroll has T windows of each environment; T and ENVS differ on purpose.
ENVS, T, N_STEP, BATCH = 4, 6, 2, 8
REPLAY = replay.PrioritizedConfig(
  replay_capacity=300,
  replay_min_steps=200,
  replay_batch_size=16,
  replay_ratio=1.5,
)


def config_of(folder, fields=None, **changes):
  agent = {
    "hidden_sizes": (8,),
    "learning_rate": 3e-3,
    "learning_rate_end": 1.0,
    "reward_scale": 1.0,
    "n_step": N_STEP,
    "epsilon_ladder": True,
    "epsilon_steps": 0,
    **(fields or {}),
  }
  config = apex.Config(
    agent=dqn.Config(**agent),
    total_steps=2_000,
    seed=3,
    actors=protocol.Actors(num_actors=2, envs_per_actor=ENVS),
    learner=learner.InboxConfig(unroll_length=T, batch_size=BATCH),
    replay=REPLAY,
    log_seconds=0.1,
  )
  return running.replaced(config, **changes).with_sockets(str(folder))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
  """Returns a run of two actors that has ended, and its messages."""
  config = config_of(tmp_path_factory.mktemp("run"), total_steps=10**9)
  run = running.Running(config)
  spy = running.Spy(run)
  with run:
    run.wait_for(lambda: spy.have_sent(2, messages=20))
    run.wait_for_steps(1_000)
    run.stop.set()
  return run, spy


@pytest.mark.slow
def test_actions_and_priorities_are_those_of_the_version_that_actors_report(
  ran,
):
  """The test computes actions again, with the parameters of each version."""
  run, spy = ran
  agent = run.config.agent.make(envs.spec(run.config.env))
  core_state = agent.initial_core_state(ENVS)
  step, priorities = jax.jit(agent.step), jax.jit(agent.priorities)
  for session in spy.sessions:
    key = running.key_of(session)
    for k, message in list(enumerate(spy.of(session)))[::6]:
      unroll, outputs = running.time_major(message.unroll), []
      for t in range(T + N_STEP):
        (version,) = set(unroll.version[t])
        output, _ = step(
          spy.published[version],
          jax.random.fold_in(key, k * T + t),
          jax.tree.map(lambda x, t=t: x[t], unroll.inputs),
          core_state,
        )
        outputs.append(output.extras.outputs)
        np.testing.assert_array_equal(output.action, unroll.action[t])
      # Priorities are computed from the Q-values of each step's version, and
      # from the parameters at the end of the unroll.
      expected = priorities(
        spy.published[version],
        unroll._replace(extras=value_based.Extras(np.stack(outputs))),
      )
      assert message.priorities.shape == (ENVS, T)
      np.testing.assert_allclose(
        message.priorities, expected, rtol=1e-4, atol=1e-5
      )
      assert message.priorities.std() > 0
    assert version > 0


def test_the_replay_ratio_sets_the_number_of_updates(ran):
  run, _ = ran
  last = run.sink.lines[-1]
  learned = REPLAY.replay_batch_size * last["learner_steps"]
  (state,) = run.learner.source.states
  steps = BATCH * T  # Steps that a batch of unrolls adds.
  batches = int(state.ring.inserted) // BATCH
  # Learning begins with enough experience, and keeps its ratio from then on.
  ratio, size = REPLAY.replay_ratio, REPLAY.replay_batch_size
  due = ratio * (batches - REPLAY.replay_min_steps // steps) * steps
  # The stop may have come between two batches that were due, and one batch is
  # sampled ahead.
  assert due - ratio * steps - 2 * size < learned <= due
  # The replay also has resets. An actor's first unroll is longer.
  added = batches * steps
  assert abs(last["env_steps"] - added) < 0.1 * added + 7 * steps
  assert last["learned_steps"] > 0.8 * learned > 500
  assert np.isfinite(last["loss"]) and last["loss"] > 0
  assert last["policy_lag"] > 0


def test_the_epsilon_ladder_spans_the_environments_of_all_actors(ran):
  run, spy = ran
  ladder = value_based.exploration(run.config.agent, 2 * ENVS)
  assert len(set(ladder)) == 2 * ENVS
  for session in spy.sessions:
    for message in spy.of(session):
      np.testing.assert_array_equal(
        message.unroll.inputs.exploration,
        np.broadcast_to(ladder[session.lease.slots, None], (ENVS, T + N_STEP)),
      )
  slots = np.concatenate([session.lease.slots for session in spy.sessions])
  assert sorted(slots) == list(range(2 * ENVS))


def test_env_steps_of_overlapping_unrolls_are_counted_once(ran):
  run, spy = ran
  total = 0
  for session in spy.sessions:
    for k, message in enumerate(spy.of(session)):
      step_type = message.unroll.inputs.timestep.step_type
      new = step_type if k == 0 else step_type[:, N_STEP:]
      steps = np.sum(new != FIRST, axis=1)
      np.testing.assert_array_equal(message.env_steps, steps)
      total += steps.sum()
  last = run.sink.lines[-1]
  assert 0 <= last["env_steps"] - total <= 2 * ENVS * T


def test_new_priorities_need_one_micro_batch(tmp_path):
  with pytest.raises(types.ConfigError, match="1 micro-batch: new priorities"):
    config_of(tmp_path, micro_batches=2)
