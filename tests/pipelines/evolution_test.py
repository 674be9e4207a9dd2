"""The pipeline `evolution`, in one process, with workers and on devices."""

import dataclasses
import os
import pathlib
import signal
import threading

import chex
import jax
import numpy as np
import pytest

from experiments import anakin_es, ars, es
from seedx import app, checkpoint, envs, types, wire
from seedx.acting import evaluator, parameters, perturbed, populations
from seedx.agents import a2c, evolution
from seedx.app.runs import checkpointer
from seedx.learning import learner
from seedx.pipelines import evolution as pipeline
from seedx.pipelines.evolution import on_device, training
from seedx.runtime import process
from tests import programs, running
from tests.pipelines import cells

own_signals = programs.own_signals
compiled_once = programs.compiled_once

ENV = envs.Config("jax:tests.population_envs:Constant")
AGENT = evolution.Config(
  hidden_sizes=(4,), learning_rate=0.05, sigma=0.1, normalize_observations=True
)
PAIRS = 8


def config_of(tmp_path, workers, iterations=5, **fields):
  config = pipeline.Config(
    env=ENV,
    agent=fields.pop("agent", AGENT),
    total_steps=2 * PAIRS * 4 * iterations,
    population=perturbed.Config(
      pairs=PAIRS,
      num_workers=workers,
      pairs_per_worker=2,
      **fields,
    ),
    log_seconds=0.05,
  )
  return config.with_sockets(str(tmp_path))


def trained(config):
  """Returns the last line of a run, and its state."""
  made = running.Own(config)
  states = []
  last = cells.run_all(
    made, lambda: states.append(running.copied(made.learner.state))
  )
  # Only evaluations rate the centre.
  assert made.acted.score() is None and last["episode_return"] is not None
  return last, states[0]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
  """A run in one process, to which runs with workers are equal."""
  last, state = trained(config_of(tmp_path_factory.mktemp("alone"), 0))
  assert last["learner_steps"] == 5 and last["episodes"] == 80
  assert last["env_steps"] == last["learned_steps"] == 320
  assert last["fitness"] > 0 and last["pairs_left_out"] == 0
  return state


@pytest.mark.slow
@pytest.mark.parametrize(
  ("workers", "rebuild"), [(1, True), (3, True), (2, False)]
)
def test_workers_make_the_updates_of_one_process(
  workers, rebuild, alone, tmp_path, monkeypatch
):
  fetches, fetch = [], parameters.Copy.newest

  def newest(self):
    reply = fetch(self)
    if reply and isinstance(reply.acting, list):  # The state, and no fitness.
      fetches.append(reply)
    return reply

  monkeypatch.setattr(parameters.Copy, "newest", newest)
  last, state = trained(config_of(tmp_path, workers, rebuild=rebuild))
  chex.assert_trees_all_close(state.params, alone.params, atol=2e-5)
  chex.assert_trees_all_close(state.statistics, alone.statistics, rtol=1e-4)
  assert last["learner_steps"] == 5 and last["episodes"] == 80
  assert 0 < last["bytes_up_per_episode"] < 200
  if rebuild:
    # A worker that misses an iteration fetches once more.
    assert workers <= len(fetches) <= 3 * workers
  else:
    assert len(fetches) >= 5


@pytest.mark.slow
def test_a_resumed_run_makes_the_same_updates(alone, tmp_path):
  run_dir = tmp_path / "run"
  for iterations in (2, 5):
    config = config_of(tmp_path, 2, iterations)
    app.train(
      dataclasses.replace(config, address=""),
      quiet=True,
      **{"run_dir" if iterations == 2 else "resume": str(run_dir)},
    )
  saved = checkpoint.Checkpoints(checkpointer.directory(run_dir))
  arrays = saved.restore(320, "run")
  for path, leaf in checkpoint.named({"agent": {"params": alone.params}}):
    np.testing.assert_allclose(arrays[path], leaf, atol=2e-5)


def results_of(lease, state):
  """Returns the results that a player has, for the pairs of a lease."""
  agent = AGENT.make(envs.spec(ENV))
  config = perturbed.Config(pairs_per_worker=PAIRS)
  player = perturbed.Player(
    agent, ENV, config, lambda count: 0, threading.Event()
  )
  played = next(player.play(state, int(lease.version), np.array(lease.pair)))
  player.close()
  return played


def test_the_pairs_of_a_dead_worker_are_played_by_another(alone, tmp_path):
  config = config_of(tmp_path, 2)
  with running.Running(config, actors=0) as made:
    agent = AGENT.make(envs.spec(ENV))
    state = jax.jit(agent.init)(jax.random.key(0))
    totals = evolution.no_totals(state.statistics)
    results, lease = perturbed.layouts(totals, config.population)
    none = perturbed.no_results(totals)
    running.wait_until(pathlib.Path(config.address[5:]).exists)  # After unix:
    with wire.Client(config.address) as client:
      dead = client.exchange(perturbed.RESULTS, results, lease)
      lost = dead(none).pair.tolist()
      dead.close()
    (book,) = (
      x for x in made.process.measures if isinstance(x, populations.Iterations)
    )
    running.wait_until(lambda: not any(book._due[x] for x in lost), seconds=20)
    worker = threading.Thread(
      target=made._act, args=(made.nodes[0],), daemon=True
    )
    worker.start()
    made.main.join(300)
    worker.join(300)
  actual = made.learner.state
  chex.assert_trees_all_close(actual.params, alone.params, atol=2e-5)


@pytest.mark.slow
def test_killed_workers_are_replaced(tmp_path, capfd):
  with cells.Running(config_of(tmp_path, 2)) as run:
    run.wait_for_more_steps(200)
    victims = run.children("worker")
    for victim in victims:
      os.kill(victim.pid, signal.SIGKILL)
    # No worker is left, so these episodes are those of new ones.
    run.wait_for(lambda: len({*run.children("worker")} - {*victims}) == 2)
    run.wait_for_more_steps(1_000)
  last = run.sink.lines[-1]
  assert last["learner_steps"] > 10 and last["pairs_left_out"] == 0
  assert (
    f"worker {victims[0].pid} died with status -9" in capfd.readouterr().err
  )


def test_late_results_are_counted_and_not_learned_from(tmp_path):
  config = config_of(tmp_path, 1, iterations=1, lease_seconds=0.0)
  context = process.Context()
  made = training.Centre(config, context)
  book = made.book
  seeds = context.seeds(0)
  book.bind(config.make_server(1), made.newest, config.population, seeds)
  book.begin(0)
  leases = [book.take() for _ in range(4)]
  assert len({y for x in leases for y in x.pair.tolist()}) == PAIRS
  again = book.take()  # All are leased, but for too long.
  zeros = perturbed.no_results(
    evolution.no_totals(made.learning.state.statistics)
  )

  def results(lease, value):
    shape = len(lease.pair), 2
    return zeros._replace(
      version=lease.version,
      pair=lease.pair,
      returns=np.full(shape, value, np.float32),
      lengths=np.ones(shape, np.int32),
      totals=zeros.totals._replace(count=np.float32(1)),
    )

  book.add(results(again, 1.0))
  for lease in leases:
    book.add(results(lease, 2.0))
  complete = book.collect()
  assert complete.totals.count == 4
  first = np.isin(complete.pair, again.pair)
  assert np.all(complete.returns[first] == 1.0)
  assert np.all(complete.returns[~first] == 2.0)
  book.begin(1)
  book.add(results(again, 3.0))
  assert book.measure()["episodes_old"] == 8
  assert made.acted.env_steps == 4 * 4 + 4 + 4
  assert not np.any(book._next.returns)


def test_results_of_other_pairs_are_refused(tmp_path):
  config = config_of(tmp_path, 1)
  with running.Running(config, actors=0) as made:
    totals = evolution.no_totals(made.learner.state.statistics)
    results, lease = perturbed.layouts(totals, config.population)
    none = perturbed.no_results(totals)
    running.wait_until(pathlib.Path(config.address[5:]).exists)  # After unix:
    with wire.Client(config.address) as client:
      stream = client.exchange(perturbed.RESULTS, results, lease)
      held = stream(none)
      wrong = none._replace(version=held.version, pair=held.pair[:1] + 5)
      with pytest.raises(wire.WireError, match="results of the leased pairs"):
        stream(wrong)
    made.stop.set()


@pytest.mark.slow
def test_devices_make_the_update_of_episodes_that_all_cores_play():
  states = []
  for devices in ((0,), (0, 1)):
    config = on_device.Config(
      env=ENV,
      agent=AGENT,
      total_steps=2 * PAIRS * 4 * 3,
      population=perturbed.Population(pairs=PAIRS),
      learner=learner.DevicesConfig(learner_devices=devices),
    )
    last, state = trained(config)
    assert last["learner_steps"] == 3 and last["env_steps"] == 192
    states.append(state)
  chex.assert_trees_all_close(states[0].params, states[1].params, atol=2e-5)
  chex.assert_trees_all_close(
    states[0].statistics, states[1].statistics, rtol=1e-4
  )


def test_episodes_on_devices_are_cut():
  config = on_device.Config(
    env=dataclasses.replace(ENV, env_options={"length": 1000}),
    agent=AGENT,
    total_steps=1,
    population=perturbed.Population(pairs=PAIRS, max_episode_steps=6),
  )
  last, _ = trained(config)
  assert last["episode_length"] == 6 and last["env_steps"] == 96


def test_other_agents_and_pairs_that_devices_do_not_divide_are_refused(
  tmp_path,
):
  with pytest.raises(types.ConfigError, match="expected an agent that learns"):
    running.Own(config_of(tmp_path, 0, agent=a2c.Config()))
  with pytest.raises(types.ConfigError, match=r"multiple of 3.*found 256"):
    on_device.Config(
      agent=AGENT, learner=learner.DevicesConfig(learner_devices=(0, 1, 2))
    )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("program", "steps", "minimum"), [(es, 500_000, 450), (ars, 100_000, 475)]
)
def test_the_centre_learns_cartpole(program, steps, minimum, tmp_path):
  asked = running.replaced(
    program.EXPERIMENT.config,
    env=envs.Config("CartPole-v1"),
    total_steps=steps,
  )
  alone = dataclasses.replace(asked.population, num_workers=0)
  asked = dataclasses.replace(asked, population=alone)
  config, _ = app.Experiment(asked).with_presets(asked, "")
  made = running.Own(config)
  made.run()
  played = evaluator.Evaluator(
    config.agent.make(envs.spec(config.env)),
    evaluator.Config(env=config.env, num_episodes=100),
  ).play(made.learner.acting(), seed=2**30)
  assert played.returns.mean() >= minimum


@pytest.mark.slow
def test_a_population_on_the_device_learns(tmp_path):
  config = dataclasses.replace(
    anakin_es.EXPERIMENT.config,
    agent=anakin_es.EXPERIMENT.config.agent.for_small(),
    total_steps=2_000_000,
  )
  last, _ = trained(config)
  assert last["fitness"] > 450
