"""Populations on the device: members differ, exploit and explore."""

import dataclasses

import chex
import jax
import numpy as np
import pytest

from seedx import app, checkpoint, envs, types
from seedx.agents import a2c
from seedx.app import lineage, policies
from seedx.app.runs import checkpointer, saved_agents
from seedx.learning import learner
from seedx.pipelines import anakin
from seedx.pipelines.anakin import population
from seedx.runtime import process

MEMBERS = 4
SEARCH = {"learning_rate": "log:1e-5..1e-1", "entropy_cost": "0..0.1"}


def config_of(total_steps=2_000, devices=1, num_seeds=1, **options):
  options = {
    "members": MEMBERS,
    "vary": SEARCH,
    "ready_steps": 400,
    **options,
  }
  return anakin.Config(
    env=envs.Config("seedx:Catch"),
    agent=a2c.Config(hidden_sizes=(8,), learning_rate_end=1.0),
    num_envs=8,
    num_seeds=num_seeds,
    total_steps=total_steps,
    population=population.Config(**options),
    learner=learner.Config(
      unroll_length=10, learner_devices=tuple(range(devices))
    ),
  )


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"num_seeds": 2}, "members or num_seeds of 1, found 4 and 2"),
    ({"vary": {}}, "members of at least 2 together with vary"),
    ({"members": 1}, "members of at least 2 together with vary"),
  ],
)
def test_wrong_populations_are_refused(options, message):
  with pytest.raises(types.ConfigError, match=message):
    config_of(**options)


def test_a_search_over_sizes_is_refused_before_training():
  config = config_of(vary={"hidden_sizes": "8|16"})
  with pytest.raises(types.ConfigError, match="found hidden_sizes"):
    config.learn(process.Context())


def agents(training):
  """Returns copies of the members' agent states."""
  return jax.device_get(training.saved().agent)


def steps(config, calls):
  """Yields agent states and lines before any call, and after each."""
  made = config.learn(process.Context())
  training = made.parts["agent"]
  run = made.steps()
  yield agents(training), training.measure()
  for _ in range(calls):
    next(run)
    yield agents(training), training.measure()


def parents_of(line):
  return [line[f"member_{k}_parent"] for k in range(MEMBERS)]


@pytest.mark.slow
@pytest.mark.parametrize("exploit", ["truncation", "none"])
def test_members_copy_whole_agents_and_change_their_values(exploit):
  """A call makes 80 steps; members are ready each 5 calls."""
  old, copies = None, 0
  for k, (agent, line) in enumerate(steps(config_of(exploit=exploit), 20)):
    rates = agent.hyperparameters["learning_rate"]
    names = [f"member_{m}_learning_rate" for m in range(MEMBERS)]
    assert [line[x] for x in names] == [*map(float, rates)]
    assert rates.min() >= np.float32(1e-5) and rates.max() <= np.float32(0.1)
    assert (agent.updates == k).all()
    if old is None:
      old = rates
      assert len({*map(float, rates)}) == MEMBERS
    for m, parent in enumerate(parents_of(line)):
      if parent == m:
        assert rates[m] == old[m]
        continue
      assert exploit == "truncation" and k % 5 == 0
      copies += 1
      assert rates[m] not in (old[m], old[parent])
      for leaf in jax.tree.leaves((agent.params, agent.optimizer_state)):
        np.testing.assert_array_equal(leaf[m], leaf[parent])
    old = rates
  assert copies == (4 if exploit == "truncation" else 0)


@pytest.mark.slow
def test_a_members_first_steps_are_those_of_a_run_with_its_seed_and_values():
  *_, (agent, line) = steps(config_of(), 4)
  for k in (0, 3):
    alone = dataclasses.replace(
      config_of(),
      seed=k,
      population=population.Config(),
      agent=a2c.Config(
        hidden_sizes=(8,),
        learning_rate_end=1.0,
        learning_rate=line[f"member_{k}_learning_rate"],
        entropy_cost=line[f"member_{k}_entropy_cost"],
      ),
    )
    made = alone.learn(process.Context())
    run = made.steps()
    for _ in range(4):
      next(run)
    for one, other in zip(
      jax.tree.leaves(agents(made.parts["agent"]).params),
      jax.tree.leaves(agent.params),
      strict=True,
    ):
      np.testing.assert_allclose(one, other[k], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_on_two_cores_the_same_members_are_copied():
  lines = [
    [parents_of(line) for _, line in steps(config_of(devices=n), 10)]
    for n in (1, 2)
  ]
  assert any(x != [*range(MEMBERS)] for x in lines[1])
  for k in (5, 10):  # One member, the worst, has copied the best.
    changed = [sum(m != p for m, p in enumerate(x[k])) for x in lines]
    assert changed == [1, 1]


@pytest.mark.slow
def test_a_population_is_resumed_evaluated_and_drawn(tmp_path):
  folder = tmp_path / "run"
  first = app.train(config_of(), run_dir=str(folder), quiet=True).metrics
  config = config_of(total_steps=3_000)
  last = app.train(config, resume=str(folder), quiet=True).metrics
  assert last["env_steps"] >= 3_000 > first["env_steps"]
  returns = [last[f"episode_return_seed_{k}"] for k in range(MEMBERS)]
  assert last["episode_return"] == pytest.approx(np.mean(returns))
  means = [x or -np.inf for x in returns]
  best = policies.load(folder)
  states = [
    saved_agents.restored(
      checkpoint.Checkpoints(checkpointer.directory(folder)),
      best.env_steps,
      config.plan.agent(config.agent, best.spec),
      MEMBERS,
      k,
    )
    for k in range(MEMBERS)
  ]
  index = int(np.argmax(means))
  chex.assert_trees_all_equal(best.acting.params, states[index].params)
  third = policies.load(folder, seed_index=3)
  chex.assert_trees_all_equal(third.acting.params, states[3].params)
  config = config_of(total_steps=400, num_seeds=2, members=1, vary={})
  app.train(config, init_from=str(folder), quiet=True)
  lineage.draw(folder, folder / "population.svg")
  assert (folder / "population.svg").read_bytes().startswith(b"<?xml")
