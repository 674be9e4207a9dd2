"""The IMPALA pipeline end to end, its actors as threads and as processes."""

import contextlib
import os
import signal
import threading
import time

import dm_env
import jax
import numpy as np
import pytest

from seedx import envs, types, wire
from seedx.acting import local_actor, protocol, sessions
from seedx.agents import dqn, vtrace
from seedx.learning import learner
from seedx.pipelines import impala
from seedx.runtime import process
from tests import killed_test, running

FIRST, LAST = int(dm_env.StepType.FIRST), int(dm_env.StepType.LAST)
ENVS, T, BATCH = 4, 5, 8


def config_of(folder, fields=None, **changes):
  """A small run; `changes` are fields of it or of its parts."""
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
    actors=sessions.Config(num_actors=2, envs_per_actor=ENVS),
    learner=learner.InboxConfig(unroll_length=T, batch_size=BATCH),
    log_seconds=0.1,
  )
  return running.replaced(config, **changes).with_sockets(str(folder))


@contextlib.contextmanager
def compiling_once():
  """Lets the actors of a run, which are threads, share what they compile.

  What is entered has their programs; those of the first are shared.
  """
  made, lock = [], threading.Lock()

  class Programs(local_actor.Programs):
    def warm_up(self, acting, device):
      with lock:
        made.append(self)
        for name in ("act", "unrolled", "priorities"):
          setattr(self, name, getattr(made[0], name))
        unroll = super().warm_up(acting, device)
        self.priorities(acting, unroll)
        return unroll

  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(local_actor, "Programs", Programs)
    yield made


@contextlib.contextmanager
def compilations():
  """A list that grows with every program that is compiled meanwhile."""
  compiled = []

  def listen(event, seconds, **_):
    if event == "/jax/core/compile/backend_compile_duration":
      compiled.append(seconds)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    yield compiled
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)


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
  """A run of two actors that has ended, and what went through it.

  Beside it, parameters that were fetched meanwhile, and how many programs had
  been compiled after some updates and at the end.
  """
  cores, fields = request.param
  folder = tmp_path_factory.mktemp("run")
  # One place is for this test.
  config = config_of(
    folder, fields, learner_devices=cores, total_steps=10**9, num_actors=3
  )
  run = running.Running(impala, config, actors=2)
  spy, fetched = running.Spy(run), []
  layout = protocol.parameters_layout(spy.published[0])
  with (
    compilations() as compiled,
    compiling_once(),
    run,
    wire.Client(config.address) as client,
  ):
    run.wait_for(lambda: spy.heard(2, messages=5) and run.learner.steps >= 5)
    before = len(compiled)
    for version in (0, 6, 20):
      run.wait_for(lambda v=version: run.learner.steps >= v + 1)
      fetched.append(client.call(protocol.PARAMETERS, (), wire.NOTHING, layout))
    run.wait_for(lambda: spy.heard(2, messages=15))
    run.wait_for_steps(1_000)
    run.fetched, run.compiled = fetched, (before, len(compiled))
    run.stop.set()
  return run, spy


def test_every_unroll_is_learned_from_once_and_in_order(ran):
  run, spy = ran
  sent = running.joined([running.time_major(x.unroll) for x in spy.messages])
  parts = [part for batch in spy.learned for part in batch]
  learned = running.joined(parts)
  count = learned.action.shape[1]
  assert count == BATCH * len(spy.learned)
  running.assert_equal(learned, jax.tree.map(lambda x: x[:, :count], sent))
  # What is not learned from was under way when the run ended: what is less
  # than a share, and shares in front of the inbox, in it, and taken out.
  left = sent.action.shape[1] - count
  assert left < 4 * BATCH
  last = run.sink.lines[-1]
  assert last["learner_steps"] == len(spy.learned) > 20
  new = learned.inputs.timestep.step_type[1:] != FIRST
  assert last["learned_steps"] == new.sum()
  assert last["learned_steps"] <= last["env_steps"]
  # Beside those, messages of two actors that were counted and not yet cut.
  assert last["env_steps"] - last["learned_steps"] <= (left + 2 * ENVS) * T


def test_env_steps_and_returns_are_those_of_the_environments(ran):
  run, spy = ran
  ended, env_steps = [], 0
  for session in spy.sessions:
    messages = spy.of(session)
    for message in messages:
      step_type = message.unroll.inputs.timestep.step_type
      # The first row is the last of the unroll before, or a reset.
      steps = np.sum(step_type[:, 1:] != FIRST, axis=1)
      np.testing.assert_array_equal(message.env_steps, steps)
      env_steps += steps.sum()
    ended += returns_of(messages)
  last = run.sink.lines[-1]
  # A message that was counted at the very end is not cut any more.
  assert 0 <= last["env_steps"] - env_steps <= 2 * ENVS * T
  said = [
    message.episode_return[~np.isnan(message.episode_return)]
    for message in spy.messages
  ]
  said = np.sort(np.concatenate(said))
  np.testing.assert_array_equal(said, np.sort(ended))
  assert len(said) <= last["episodes"] <= len(said) + 2 * ENVS
  assert len(said) > 10
  assert 8 <= last["episode_return"] <= 100  # A random policy has 20.


def returns_of(messages):
  """Returns of the episodes that end in an actor's messages, by its rewards."""
  parts = [message.unroll.inputs.timestep for message in messages]
  # Consecutive unrolls share a step.
  steps = jax.tree.map(
    lambda *xs: np.concatenate([xs[0], *[x[:, 1:] for x in xs[1:]]], axis=1),
    *parts,
  )
  returns = []
  for env in range(ENVS):
    total = 0.0
    for step_type, reward in zip(
      steps.step_type[env], steps.reward[env], strict=True
    ):
      total = 0.0 if step_type == FIRST else total + reward
      if step_type == LAST:
        returns.append(total)
  return returns


def test_lines_say_what_crosses_and_who_waits(ran):
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


def test_actors_have_places_and_seeds_of_their_own(ran):
  run, spy = ran
  first, second = spy.sessions
  places = np.concatenate([first.slots, second.slots])
  assert sorted(places) == list(range(2 * ENVS))
  assert abs(first.first_seed - second.first_seed) >= ENVS
  for session in spy.sessions:
    hand = envs.EnvPoolEnvironment(
      run.config.env, ENVS, seed=session.first_seed
    )
    hand.reset()
    inputs = spy.of(session)[0].unroll.inputs
    np.testing.assert_array_equal(
      inputs.timestep.observation[:, 0], hand.recv().timestep.observation
    )
    hand.close()
  assert run.unrolls._connected._slots.free == 3 * ENVS


def test_all_cores_have_the_same_parameters(ran):
  run, _ = ran
  # That of all cores, of which `state` is a copy.
  for leaf in jax.tree.leaves(run.learner._state):
    shards = [np.asarray(shard.data) for shard in leaf.addressable_shards]
    assert len(shards) == len(run.config.learner.learner_devices)
    for shard in shards:
      np.testing.assert_array_equal(shard, shards[0])


# Parameters


def test_actors_act_by_the_parameters_that_they_say(ran):
  """What an actor did is done again, with what had that version."""
  run, spy = ran
  agent = run.config.agent.make(envs.spec(run.config.env))
  step, versions = jax.jit(agent.step), set()
  for session in spy.sessions:
    key, last = jax.random.key(session.first_seed), 0
    for k, message in enumerate(spy.of(session)[:12]):
      unroll = running.time_major(message.unroll)
      core_state = unroll.core_state
      # What is put into the last step is thrown away.
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


def test_versions_follow_the_updates(ran):
  run, spy = ran
  for k, message in enumerate(spy.messages):
    # There is an update for each share, but for what was not learned from yet:
    # see `test_a_learner_that_does_not_learn_holds_actors_back`.
    behind = k * ENVS // BATCH - message.unroll.version[:, 1:T]
    assert np.all((behind >= 0) & (behind <= 6))
  lags = [line["policy_lag"] for line in run.sink.lines]
  lags = [lag for lag in lags if lag is not None]
  assert 0 <= min(lags) <= max(lags) <= 6


def restarted(agent, inputs, core_state):
  """The core state, anew where an episode begins."""
  first = inputs.timestep.step_type == FIRST
  return jax.tree.map(
    lambda a, b: np.where(first.reshape(-1, *(1,) * (a.ndim - 1)), a, b),
    jax.tree.map(np.zeros_like, core_state),
    core_state,
  )


def test_parameters_are_those_of_their_version_bit_by_bit(ran):
  run, spy = ran
  versions = [int(reply.version) for reply in run.fetched]
  assert versions == sorted(versions)
  assert versions[0] < 20 <= versions[-1]
  for reply, version in zip(run.fetched, versions, strict=True):
    running.assert_equal(reply.acting, spy.published[version])
  moved = jax.tree.map(
    lambda a, b: np.any(a != b), run.fetched[0].acting, run.fetched[-1].acting
  )
  assert all(jax.tree.leaves(moved))


def test_nothing_is_compiled_after_the_first_updates(ran):
  run, _ = ran
  before, after = run.compiled
  assert before == after > 0


# Back-pressure


@pytest.mark.slow
def test_a_learner_that_does_not_learn_holds_actors_back(tmp_path):
  threads = threading.active_count()
  config = config_of(tmp_path, total_steps=10**9)
  run = running.Running(impala, config)
  own, go_on, held = run.learner, threading.Event(), []
  learn = own.learn

  def learn_when_told(batch):
    held.append(own.steps)
    while not go_on.wait(0.01) and not run.stop.is_set():
      pass
    learn(batch)

  own.learn = learn_when_told
  counted = run.acted

  def all_wait():
    return held and settled(lambda: (counted.env_steps, own.steps))

  with run:
    for _ in range(2):
      before = counted.env_steps
      run.wait_for(all_wait)
      # A share in the learner's hands, or two; one in the queue, and one in
      # front of it; less than one that fills; a message of each actor.
      assert 0 < counted.env_steps - before <= (5 * BATCH + 2 * ENVS) * T
      stuck = own.steps
      go_on.set()
      run.wait_for_steps(counted.env_steps + 500)
      assert own.steps > stuck + 5
      go_on.clear()
      held.clear()
    run.wait_for(all_wait)
    run.stop.set()
    for thread in [run.main, *run.threads]:
      thread.join(300)
    assert not any(thread.is_alive() for thread in run.threads)
  # Nor do those that serve the actors wait on.
  run.wait_for(lambda: threading.active_count() <= threads)


def settled(read):
  """Whether nothing moves; on a slow machine it may only seem so."""
  before = read()
  time.sleep(0.7)
  return read() == before


@pytest.mark.slow
def test_statistics_of_observations_go_down_with_the_parameters(tmp_path):
  config = config_of(
    tmp_path,
    {"normalize_observations": True},
    env=envs.Config("Pendulum-v1"),
    total_steps=400,
    num_actors=1,
    micro_batches=2,
  )
  run = running.Running(impala, config)
  spy = running.Spy(run)
  with run:
    pass
  last = run.sink.lines[-1]
  assert last["learner_steps"] >= 6
  assert np.isfinite(last["loss_value"])
  moved = jax.tree.map(
    lambda a, b: np.any(a != b), spy.published[0], spy.published[6]
  )
  assert all(jax.tree.leaves(moved))
  assert max(x.unroll.version.max() for x in spy.messages) >= 3


# Processes


@pytest.mark.long
def test_a_killed_actors_place_is_taken_with_other_seeds(tmp_path, capfd):
  run = killed_test.Running("impala", "vtrace", tmp_path)
  spy = running.Spy(run.own)
  with run:
    run.wait_for(lambda: spy.heard(2, messages=2))
    victim = run.child("actor")
    os.kill(victim.pid, signal.SIGKILL)
    # The other goes on at once, and one takes its place.
    run.wait_for_more_steps(200)
    run.wait_for(lambda: len(spy.sessions) == 3)
    run.wait_for(lambda: len(spy.of(spy.sessions[2])) > 3)
    assert run.child("actor").pid != victim.pid
    run.wait_for_more_steps(1_000)
  assert not run.failures
  assert run.last["learner_steps"] > 10
  assert f"actor {victim.pid} died with status -9" in capfd.readouterr().err
  places = [tuple(session.slots) for session in spy.sessions]
  assert places[0] != places[1]
  assert places[2] in places[:2]
  seeds = sorted(session.first_seed for session in spy.sessions)
  assert np.all(np.diff(seeds) >= len(places[0]))
  # It begins with a reset, and with the newest parameters.
  message = spy.of(spy.sessions[2])[0]
  assert np.all(message.unroll.inputs.timestep.step_type[:, 0] == FIRST)
  assert message.unroll.version[0, 0] > 0


# Refusals


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"batch_size": 6, "learner_devices": (0, 1, 2, 3)}, "4 learner devices"),
    ({"micro_batches": 3}, "1 learner devices with 3 micro-batches"),
    ({"total_steps": 0}, "total_steps from 1 to"),
    ({"total_steps": BATCH * T - 1}, "total_steps of at least 40, so"),
    ({"num_actors": 0}, "num_actors from 1"),
    ({"envs_per_actor": 0}, "envs_per_actor from 1"),
    ({"unroll_length": 0}, "unroll_length from 1"),
    ({"queue_capacity": 0}, "queue_capacity from 1"),
    ({"learner_devices": (99,)}, "learner devices from 0 to"),
    ({"env": envs.Config("NoSuch-v1")}, "NoSuch-v1"),
    (
      {"agent": dqn.Config(n_step=1)},
      "expected a replay: this agent learns from windows of 2 time steps",
    ),
  ],
)
def test_what_makes_no_sense_is_refused_with_its_reason(
  tmp_path, changes, message
):
  with pytest.raises(types.ConfigError, match=message):
    impala.learn(config_of(tmp_path, **changes), process.Context())
