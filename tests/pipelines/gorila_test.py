"""Gorila's coordinator: restored runs, and the counts of workers' reports."""

import dataclasses
import functools
import threading

import chex
import jax
import numpy as np
import optax
import pytest

from seedx import envs, replay, types, wire
from seedx.acting import sessions
from seedx.agents import base, dqn
from seedx.launch import admission
from seedx.pipelines.gorila import (
  parameter_server,
  reports,
  saved_shards,
  worker,
)
from seedx.runtime import counters, memory, process, seeding
from tests import running
from tests.acting import cases
from tests.pipelines import cells

UPDATES, STEPS = 7, 100


def restored(tmp_path, total_steps=10**9):
  """Returns a run that resumes from a checkpoint, and its agent's state."""
  config = cells.config_of("gorila", "dqn", tmp_path, total_steps)
  run = running.Running(config, actors=0)
  agent = config.agent.make(envs.spec(config.env), None, config.plan.horizon)
  rng = np.random.default_rng(0)
  size = parameter_server.num_params(agent)
  vector = rng.normal(size=size).astype(np.float32)
  shards = [
    running.copied(agent.start(jax.numpy.asarray(vector[part]), UPDATES))
    for part in parameter_server.parts(size, 2)
  ]
  state = run.process.parts["agent"]._joined(shards)

  def load(like):
    counts = like["acted"] | {"env_steps": np.int64(STEPS)}
    return like | {"agent": state, "acted": counts}

  run.process.restore(load)
  return run, state


class Serving:
  """A context in which the parameter servers of a run are running."""

  def __init__(self, run):
    self.stop = threading.Event()
    self.threads = [
      threading.Thread(target=node.run, args=(node.config, self.stop))
      for node in run.nodes
      if node.role.startswith("server")
    ]
    assert len(self.threads) == 2

  def __enter__(self):
    for thread in self.threads:
      thread.start()

  def __exit__(self, *_):
    self.stop.set()
    for thread in self.threads:
      thread.join(300)
      assert not thread.is_alive()


def open_reports(run, client):
  config = run.nodes[-1].config
  spec = envs.spec(config.env)
  agent = config.agent.make(spec, None, config.plan.horizon)
  shapes = worker.Shapes.of(agent, spec, config.plan, config.workers)
  return client.exchange(
    reports.REPORT, shapes.report, wire.NOTHING, {"num_envs": 4}
  )


def test_workers_are_refused_until_the_servers_are_restored(tmp_path):
  run, state = restored(tmp_path)
  run.process.refill(STEPS)
  with run, wire.Client(run.config.address) as client:
    with pytest.raises(wire.WireError, match="being restored") as caught:
      open_reports(run, client)
    assert caught.value.code is wire.StatusCode.UNAVAILABLE
    # The run cannot save anything yet, either.
    with pytest.raises(wire.WireError) as caught:
      run.process.saved()
    assert caught.value.code is wire.StatusCode.UNAVAILABLE
    with Serving(run):
      run.wait_for(run.process.parts["agent"].are_ready)
      saved = run.process.saved()["agent"]
      # Each of the two workers fills its replay again with 40 env steps.
      chex.assert_trees_all_equal(saved, state.leave_out(2 * 40 / 8))
      assert saved.clock == UPDATES + 10
      assert saved.updates == UPDATES
      assert open_reports(run, client).welcome["first_seed"] == 0
    run.stop.set()


def test_a_finished_run_that_resumes_restores_the_servers(tmp_path):
  """The run could not save parameters at its end if nothing were restored."""
  run, state = restored(tmp_path, total_steps=STEPS)
  with run:
    run.wait_for(lambda: run.sink.lines)
    with Serving(run):
      run.main.join(300)
      chex.assert_trees_all_equal(run.process.saved()["agent"], state)
  assert run.sink.lines[-1]["env_steps"] == STEPS


WINDOW = 4
REPLAY = replay.Config(replay_batch_size=8, replay_ratio=2.0)


def report_of(steps, **changes):
  """Returns a worker's report of two environments; `changes` are counts."""
  counts = {name: np.int32(0) for name in reports.Counts._fields}
  counts |= {"newest": {"loss": np.float32(np.nan)}} | changes
  return reports.Report(
    steps, np.int32(steps.step_type.shape[1]), reports.Counts(**counts)
  )


def opened():
  acted = counters.ActingCounts()
  connected = sessions.Sessions(
    np.zeros(2, np.float32), acted, seeding.Seeds(0), envs.Config()
  )
  reported = reports.Reports(
    connected,
    lambda: True,
    REPLAY,
    base.Needs(WINDOW),
  )
  return acted, reported, reported.open({"num_envs": 2})


def test_a_workers_reports_are_counted():
  acted, reported, worker = opened()
  worker(report_of(cases.steps_of("FMMLF", "FLFLF", claimed=3e38)))
  worker(report_of(cases.steps_of("", "")))
  assert acted.env_steps == 5 and acted.returns.count == 3
  assert acted.returns.mean() == (3 + 1 + 1) / 3
  newest = {"q_mean": np.float32(0.5), "loss": np.float32(np.nan)}
  two = {"gradients": np.int32(2), "learned_steps": np.float32(60.0)}
  two |= {"newest": newest}
  worker(report_of(cases.steps_of("MM", "MM"), **two))
  worker(report_of(cases.steps_of("MM", "MM"), stale=np.int32(1)))
  line = reported.measure() | reported.learned.measure()
  assert line["learner_steps"] == 2 and line["gradients_stale"] == 1
  assert line["learned_steps"] == 60
  assert line["q_mean"] == 0.5
  assert "loss" not in line  # The reported loss is NaN.


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"gradients": 4}, r"steps allow from 0 to 3\.0, found 4"),
    ({"gradients": 2, "stale": 1, "outliers": 1}, "found 4"),
    ({"stale": -1}, "stale from 0"),
    ({"gradients": 1, "learned_steps": 32.5}, "learned_steps from 0 to 32"),
    ({"staleness": np.inf}, "staleness"),
    ({"wire_bytes": -1}, "wire_bytes"),
    ({"wait_servers": np.nan}, "wait_servers"),
    ({"learning": 2.0}, "shares of time"),
  ],
)
def test_an_impossible_report_is_refused_and_counts_nothing(changes, message):
  acted, reported, worker = opened()
  changes = {name: np.asarray(value) for name, value in changes.items()}
  with pytest.raises(wire.Refusal, match=message) as caught:
    worker(report_of(cases.steps_of("FMML", "FMML"), **changes))
  assert caught.value.code is wire.StatusCode.INVALID_ARGUMENT
  assert (acted.env_steps, acted.returns.count) == (0, 0)
  assert reported.learned.steps == 0
  assert reported.measure()["gradients_stale"] == 0


def test_gradients_use_up_the_steps_of_earlier_reports():
  _, _, worker = opened()
  steps = cases.steps_of("FMML", "FMML")
  worker(report_of(steps, gradients=np.int32(3)))
  with pytest.raises(
    wire.Refusal, match=r"steps allow from 0 to 0\.0, found 1"
  ):
    worker(report_of(cases.steps_of("", ""), gradients=np.int32(1)))


@pytest.mark.parametrize("num_steps", [-1, 4])
def test_a_report_with_a_wrong_number_of_steps_is_refused(num_steps):
  acted, _, worker = opened()
  honest = report_of(cases.steps_of("FML", "FML"))
  with pytest.raises(wire.Refusal, match="num_steps from 0 to 3"):
    worker(honest._replace(num_steps=np.int32(num_steps)))
  assert acted.env_steps == 0


def test_a_stop_ends_the_wait_for_servers(tmp_path):
  run, _ = restored(tmp_path)
  with run:
    run.wait_for(lambda: run.sink.lines)
    run.stop.set()
    run.main.join(300)
    assert not run.main.is_alive()
  assert not run.process.parts["agent"].are_ready()


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"server": 2}, "server from 0 to 1, found 2"),
    ({"num_workers": 0}, "num_workers from 1"),
    (
      {"agent": dqn.Config(normalize_observations=True)},
      "without statistics of observations",
    ),
    (
      {"agent": running.Changed(dqn.Config(), lambda agent: agent)},
      "whose config has a max_gradient_norm",
    ),
    ({"replay": replay.PrioritizedConfig()}, "a uniform replay"),
  ],
  ids=lambda x: x if isinstance(x, str) else ",".join(x),
)
def test_invalid_options_are_refused(tmp_path, changes, message):
  config = cells.config_of("gorila", "dqn", tmp_path)
  with pytest.raises(types.ConfigError, match=message):
    running.replaced(config, **changes).learn(process.Context())


def test_the_replays_of_all_workers_of_a_machine_must_fit_into_its_memory(
  tmp_path, monkeypatch
):
  config = cells.config_of("gorila", "dqn", tmp_path)
  config = config.with_sockets(str(tmp_path))
  spec, workers = envs.spec(config.env), config.workers
  agent = config.plan.agent(config.agent, spec)
  shapes = worker.Shapes.of(agent, spec, config.plan, workers)
  free = workers.num_workers * shapes.replay_bytes - 1
  monkeypatch.setattr(memory, "free_bytes", lambda _: free)
  with pytest.raises(types.ConfigError, match="a replay that fits into memory"):
    config.learn(process.Context())
  free += 1
  config.learn(process.Context())
  # Workers on other machines have memory of their own.
  free = 0
  away = dataclasses.replace(config, address="127.0.0.1:0")
  away.learn(process.Context())


def test_gradients_for_a_users_own_optimizer_are_not_clipped():
  config = dqn.Config(transformation=functools.partial(optax.sgd, 0.1))
  assert worker.max_gradient_norm(config) == np.inf
  assert worker.max_gradient_norm(dqn.Config()) == 10.0
  # 0 is no clipping, not a norm to which every gradient is scaled down.
  assert worker.max_gradient_norm(dqn.Config(max_gradient_norm=0.0)) == np.inf


@pytest.mark.parametrize(
  ("wrong", "number_before"), [(np.nan, 0), (-np.inf, 200)]
)
def test_a_loss_that_is_not_finite_is_an_outlier_and_leaves_the_mean_unchanged(
  wrong, number_before
):
  rng = np.random.default_rng(0)
  outliers, other = worker.Outliers(), worker.Outliers()
  losses = rng.normal(1.0, 0.1, 400)
  for loss in losses[:number_before]:
    assert outliers(loss) == other(loss)
  assert outliers(wrong)
  for loss in losses[number_before:]:
    assert outliers(loss) == other(loss)
  assert outliers(3.0)
  assert not outliers(1.0)


def test_skipped_gradients_are_reported_and_many_in_a_row_end_the_run(tmp_path):
  config = cells.config_of("gorila", "dqn", tmp_path)
  made = running.Own(config)
  reported = made.process.server._methods[reports.REPORT].open_session.__self__
  zeros = reports.Counts(*(np.float32(0),) * len(reports.Counts._fields))
  zeros = zeros._replace(newest={})
  reported.count(zeros._replace(skipped=np.int32(60)))
  reported.count(zeros._replace(gradients=np.int32(1), skipped=np.int32(60)))
  reported.count(zeros._replace(skipped=np.int32(99)))
  assert made.process.measure()["updates_skipped"] == 219
  assert not made.process.done()
  reported.count(zeros._replace(skipped=np.int32(1)))
  with pytest.raises(RuntimeError, match="in 100 in a row"):
    made.run()


def test_a_checkpoint_does_not_depend_on_the_number_of_servers(tmp_path):
  config = cells.config_of("gorila", "dqn", tmp_path, 1_000)
  agent = config.agent.make(envs.spec(config.env), None, config.plan.horizon)
  size = parameter_server.num_params(agent)
  vector = np.random.default_rng(0).normal(size=size).astype(np.float32)

  def shards(number):
    addresses = admission.Addresses(number)
    return saved_shards.SavedShards(agent, addresses, threading.Event())

  states = [
    agent.start(vector[part], UPDATES + k)
    for k, part in enumerate(parameter_server.parts(size, 2))
  ]
  whole = shards(2)._joined(states)
  like = jax.eval_shape(agent.init, jax.random.key(0))
  chex.assert_trees_all_equal_shapes_and_dtypes(whole.params, like.params)
  assert whole.updates == UPDATES  # Those of the older shard.
  of_three = shards(3)._divided(whole)
  assert [len(x.params) for x in of_three] == [
    x.stop - x.start for x in parameter_server.parts(size, 3)
  ]
  chex.assert_trees_all_equal(shards(3)._joined(of_three), whole)
