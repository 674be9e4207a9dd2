"""Every pair of agent and pipeline in the documented table of agents."""

import dataclasses
import functools
import pathlib
import re
import threading

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.speed import work
from seedx import envs, replay, trees, types
from seedx.acting import local_actor
from seedx.agents import (
  base,
)
from seedx.learning import replay_source
from seedx.pipelines.gorila import worker
from seedx.runtime import process
from tests import conftest, programs, running
from tests.pipelines import cells

compiled_once = programs.compiled_once
# Every other pipeline has a test file with small trainings.
FAST = [("a3c", "a2c")]
# To a pipeline, agents differ only in what they need: whole batches, windows,
# sequences or priorities. These cells cover all needs, beside other slow tests.
# Agents with critics have a network for each group of parameters, and a core
# state that no network reads.
SLOW = [
  ("sync", "rainbow"),
  ("impala", "pqn"),
  ("pool", "ppo"),
  ("seed", "vtrace"),
  ("gorila", "r2d2"),
  ("apex", "r2d2"),
  ("seed", "sac"),
  ("a3c", "td3"),
  ("impala", "alphazero"),
  ("gorila", "alphazero"),
]
PIPELINES = tuple(cells.MODULES)


@pytest.mark.parametrize(
  ("pipeline", "name"),
  [
    *conftest.slow_but(FAST, FAST + SLOW),
    *(
      pytest.param(*cell, marks=pytest.mark.long)
      for cell in cells.CELLS
      if cell not in FAST + SLOW
    ),
  ],
)
def test_each_agent_learns_in_each_of_its_pipelines(
  pipeline, name, tmp_path, monkeypatch
):
  warmed, warming = watch_warm_up(monkeypatch)
  # This pair also tests an LSTM that learns on policy from unrolls.
  recurrent = (pipeline, name) == ("seed", "vtrace")
  changes = {"recurrent": True, "lstm_size": 8} if recurrent else {}
  with running.compiled(lambda: not warming()) as names:
    last = cells.run_all(cells.make(pipeline, name, tmp_path, **changes))
  assert last["env_steps"] >= cells.TOTAL_STEPS
  assert last["learner_steps"] >= 3
  if name in ("ddpg", "sac"):
    assert np.isfinite(last["loss_actor"])
  # A replay counts resets as steps: one for each ended episode, and 8 for the
  # episodes in progress.
  replayed = name in cells.REPLAYED
  resets = last["episodes"] + 8 if replayed else 0
  assert 0 < last["learned_steps"] <= last["env_steps"] + resets
  loss = last["loss" if replayed or name == "pqn" else "loss_value"]
  assert np.isfinite(loss) and loss > 0
  assert last["episodes"] > 0 or (
    pipeline == "anakin" and name in cells.CRITICS
  )
  if pipeline in ("a3c", "gorila"):
    assert last["gradient_staleness"] >= 0
  elif pipeline in ("sync", "anakin") and not replayed:
    assert last["policy_lag"] == 0
  else:
    assert last["policy_lag"] >= 0
  if pipeline not in ("sync", "anakin", "a3c"):
    assert last["wire_bytes"] > 4 * last["env_steps"]
  # Actors and workers compile all programs before they connect.
  expected = {"impala": {"warm_up"}, "apex": {"warm_up"}}
  expected["gorila"] = {"warm_up", "_warm_up"}
  assert warmed == expected.get(pipeline, set())
  late = {"act", "unrolled", "gradient", "priorities"} & {*names}
  assert not warmed or not late


def watch_warm_up(monkeypatch):
  """Returns a set for warm-ups' names, and whether this thread is in one."""
  warmed, of_thread = set(), threading.local()

  def watch(where, name, warming):
    function = getattr(where, name)

    def spy(*arguments, **options):
      of_thread.warming = warming
      warmed.update([name] * warming)
      return function(*arguments, **options)

    monkeypatch.setattr(where, name, spy)

  watch(local_actor.Programs, "warm_up", True)
  watch(worker, "_warm_up", True)
  watch(local_actor.LocalActor, "__init__", False)
  return warmed, lambda: getattr(of_thread, "warming", False)


def unlucky(agent):
  def gradients(state, rng_key, batch):
    finite, output = agent.gradients(state, rng_key, batch)
    wrong = jnp.where(jax.random.bernoulli(rng_key), jnp.nan, 0.0)
    params, metrics = jax.tree.map(
      lambda x: x + wrong, (finite.params, output.metrics)
    )
    return finite._replace(params=params), output._replace(metrics=metrics)

  update = base.composed_update(gradients, agent.apply)
  return dataclasses.replace(agent, gradients=gradients, update=update)


# Gorila's skipped gradients have tests of their own.
@pytest.mark.slow
@pytest.mark.parametrize(
  ("pipeline", "name"), [("impala", "vtrace"), ("a3c", "a2c")]
)
def test_updates_that_are_not_finite_are_skipped_and_counted(
  pipeline, name, tmp_path
):
  config = cells.config_of(pipeline, name, tmp_path, total_steps=1200)
  agent = running.Changed(config.agent, unlucky)
  made = running.Own(running.replaced(config, agent=agent))
  saved = {}
  last = cells.run_all(made, lambda: saved.update(made.process.saved()))
  assert last["learner_steps"] >= 5 and last["updates_skipped"] >= 5
  assert last["learned_steps"] < 0.9 * last["env_steps"]
  assert np.isfinite(last["loss_value"])
  assert not trees.non_finite(jax.tree.leaves(made.process.policy(saved)))
  part = saved["learned" if pipeline == "a3c" else "learner"]
  assert part["updates_skipped"] == last["updates_skipped"]
  state = saved["agent"]
  assert not trees.non_finite(jax.tree.leaves(state))
  assert state.updates == last["learner_steps"]


# The other pipelines make their counts as `sync` does.
@pytest.mark.parametrize("pipeline", ["sync", "anakin"])
def test_each_pipeline_measures_time_by_its_contexts_clock(pipeline, tmp_path):
  context = process.Context()
  made = cells.config_of(pipeline, "a2c", tmp_path).learn(context)
  assert made.acted.wall_clock is context.wall_clock
  made.close()


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_missing_addresses_become_sockets(pipeline, tmp_path):
  name = "dqn" if pipeline in ("gorila", "apex") else "a2c"
  config = cells.config_of(pipeline, name, tmp_path)
  assert config.with_sockets("elsewhere") == config
  given = [
    *([config.address] if hasattr(config, "address") else []),
    *getattr(config, "server_addresses", ()),
    *getattr(config, "inference_addresses", ()),
  ]
  assert len(set(given)) == len(given)
  expected = {"sync": 0, "anakin": 0, "a3c": 0, "gorila": 3, "pool": 3}
  assert len(given) == expected.get(pipeline, 1)
  assert all(x.startswith(f"unix:{tmp_path}/") for x in given)


@pytest.mark.parametrize(
  ("pipeline", "name"),
  [
    (p, name)
    for p in PIPELINES
    for name in cells.AGENTS
    if (p, name) not in cells.CELLS
  ],
)
def test_other_pairs_of_pipeline_and_agent_are_refused(
  pipeline, name, tmp_path
):
  reasons = {
    "impala": "expected a replay",
    "pool": "expected a replay",
    "a3c": "expected replayed True",
    "gorila": "use another" if name in cells.CRITICS else "expected no replay",
    "apex": "expected no replay",
  }
  if name in cells.WHOLE:
    reasons["a3c"] = "takes several steps"
  with pytest.raises(types.ConfigError, match=reasons[pipeline]):
    cells.make(pipeline, name, tmp_path)


def test_parameter_servers_refuse_agents_with_critics_and_any_optimizer(
  tmp_path,
):
  sgd = functools.partial(optax.sgd, 1e-3)
  reason = "keys .*'actor', 'critic'.*, found a part of .*another pipeline"
  with pytest.raises(types.ConfigError, match=reason):
    cells.make("gorila", "td3", tmp_path, transformation=sgd)


def test_all_pairs_of_the_documented_table_are_tested():
  text = (pathlib.Path(__file__).parents[2] / "docs/agents.md").read_text()
  rows = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in text.splitlines()
    if re.match(
      r"\| (agent|A2C|V-trace|PPO|PQN|DQN|R2D2|Rainbow|DDPG|TD3|SAC|AlphaZero)"
      r" \|",
      line,
    )
  ]
  names = [cell.strip("`") for cell in rows[0]]
  named = [
    (pipeline, row[0].lower().replace("-", ""))
    for row in rows[1:]
    for pipeline, cell in zip(names, row, strict=True)
    if pipeline in PIPELINES and cell != "-"
  ]
  assert sorted(named) == sorted(cells.CELLS)


def with_own_priorities(agent):
  """Returns an agent whose priorities are computed from observations."""

  def priorities(acting, unroll):
    del acting
    windows = unroll.version.shape[0] - agent.needs.window + 1
    assert unroll.extras.outputs.shape[:2] == unroll.version.shape
    seen = jnp.abs(unroll.inputs.timestep.observation).sum(axis=-1)
    return seen[:windows].T

  return dataclasses.replace(agent, priorities=priorities)


@pytest.mark.parametrize(
  "pipeline", ["sync", pytest.param("seed", marks=pytest.mark.slow)]
)
def test_the_agent_computes_first_priorities_from_the_same_unrolls(
  pipeline, tmp_path, monkeypatch
):
  config = cells.config_of(pipeline, "dqn", tmp_path)
  config = dataclasses.replace(
    config,
    agent=running.Changed(config.agent, with_own_priorities),
    replay=replay.PrioritizedConfig(**cells.REPLAY),
  )
  shares, call = [], replay_source.ReplaySource.__call__

  def spy(source, new_shares):
    shares.extend(map(running.copied, new_shares))
    return call(source, new_shares)

  monkeypatch.setattr(replay_source.ReplaySource, "__call__", spy)
  made = running.Own(config)
  cells.run_all(made)
  assert len(shares) > 10
  for unroll, priorities, _ in shares:
    seen = np.abs(unroll.inputs.timestep.observation).sum(axis=-1)
    expected = seen[: priorities.shape[1]].T
    np.testing.assert_allclose(priorities, expected, rtol=1e-6)


@pytest.mark.parametrize(
  ("pipeline", "name"),
  conftest.slow_but(
    [("sync", "dqn")],
    [("sync", "dqn"), ("seed", "dqn"), ("apex", "r2d2"), ("gorila", "dqn")],
  ),
)
def test_a_replay_stores_each_step_of_an_environment_once(
  pipeline, name, tmp_path, monkeypatch
):
  config = cells.config_of(pipeline, name, tmp_path, 400)
  shares, call = {}, replay_source.ReplaySource.__call__

  def spy(source, new_shares):
    shares.setdefault(source, []).extend(map(running.copied, new_shares))
    return call(source, new_shares)

  monkeypatch.setattr(replay_source.ReplaySource, "__call__", spy)
  made = running.Own(config)
  cells.run_all(made)
  assert shares
  for source, added in shares.items():
    (state,) = source.states
    state = getattr(state, "ring", state)
    origins = np.concatenate([share.origin for share in added])
    length, period = added[0].data.version.shape[0], 5
    # An environment's first unroll is stored whole; others add their new steps.
    firsts = len(np.unique(origins[:, 0])) * (length - period)
    num_new = int(state.book.next_row) - len(origins) * period
    # On a busy machine, an actor may be so late that an unroll is stored whole.
    late = firsts if pipeline in ("seed", "apex") else 0
    assert firsts <= num_new <= firsts + late
    unrolls = jax.tree.map(
      lambda *x: np.concatenate(x, axis=1),
      *(share.data._replace(core_state=()) for share in added),
    )
    stored = stored_unrolls(state)
    jax.tree.map(np.testing.assert_array_equal, stored.inputs, unrolls.inputs)
    np.testing.assert_array_equal(stored.action[:-1], unrolls.action[:-1])


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ["sync", "seed", "apex"])
def test_what_only_a_search_reads_reaches_no_replay(
  pipeline, tmp_path, monkeypatch
):
  config = cells.config_of(pipeline, "alphazero", tmp_path, 400)
  env = envs.Config("jax:tests.own_games:hidden_state")
  seen, call = [], replay_source.ReplaySource.__call__

  def spy(source, shares):
    seen.extend(share.data.inputs.timestep.observation for share in shares)
    return call(source, shares)

  monkeypatch.setattr(replay_source.ReplaySource, "__call__", spy)
  made = running.Own(dataclasses.replace(config, env=env))
  last = cells.run_all(made)
  assert last["learner_steps"] >= 3 and last["episodes"] > 3
  # In sync, the replay itself leaves it out.
  (state, *_) = made.process.replay.states
  stored = getattr(state, "ring", state).unrolls.inputs.timestep.observation
  assert {*stored} == {"board", "action_mask"}
  expected = {"state"} if pipeline == "sync" else set()
  assert all({*x} == {*stored} | expected for x in seen) and len(seen) > 3


def stored_unrolls(state):
  """Returns all unrolls `[L, unrolls, ...]` of a replay that is not full."""
  unrolls = running.copied(state.unrolls._replace(core_state=()))
  count = int(state.inserted)
  return jax.tree.map(lambda x: np.moveaxis(x[:count], 0, 1), unrolls)


@pytest.mark.slow
def test_anakins_replay_stores_each_step_of_an_environment_once(tmp_path):
  made = running.Own(cells.config_of("anakin", "r2d2", tmp_path, 400))
  cells.run_all(made)
  state = jax.tree.map(lambda x: x[0], made.learner._state.replay)
  state = getattr(state, "ring", state)
  unrolls = stored_unrolls(state)
  length, count = unrolls.version.shape
  assert int(state.book.next_row) == 5 * count + 4 * (length - 5)
  first = unrolls.inputs.timestep.step_type[1:] == dm_env.StepType.FIRST
  same = unrolls.inputs.action_tm1[1:] == unrolls.action[:-1]
  assert np.all(same | first) and 0 < np.mean(unrolls.action) < 1


@pytest.mark.parametrize(
  ("name", "cores"),
  conftest.slow_but(
    [("apex_dqn", 1), ("apex_dqn", 2)],
    [("apex_dqn", 1), ("apex_dqn", 2), ("r2d2", 1)],
  ),
)
def test_a_million_steps_of_atari_take_little_more_than_their_frames(
  name, cores
):
  config = work.config_of(name, "Pong-v5")
  plan = dataclasses.replace(
    config.plan,
    replay=dataclasses.replace(config.replay, replay_capacity=10**6),
  )
  spec = envs.spec(config.env)
  agent = plan.agent(config.agent, spec)
  programs_of_share = local_actor.Programs.of(
    agent, spec, config.learner.unroll_length, config.learner.share_size
  )
  core_replay = plan.replay_of_core(agent, cores)
  num_bytes = cores * core_replay.num_bytes(programs_of_share.share())
  frames = 10**6 * 84 * 84
  # With several cores, consecutive unrolls are in different replays.
  length = agent.needs.time_steps(config.learner.unroll_length)
  copies = length / config.learner.unroll_length if cores > 1 else 1
  # A sequence begins with a core state, which contains stacked frames.
  largest = 1.12 if agent.needs.whole_unrolls else 1.04
  assert copies * frames < num_bytes < largest * copies * frames
  assert num_bytes < 8e9 or cores > 1
