"""Every agent in every pipeline that takes it, as the README's table says."""

import pathlib
import re
import threading

import numpy as np
import pytest

from experiments import a3c as a3c_program
from experiments import impala as impala_program
from seedx import envs, types
from seedx.agents import a2c, base, dqn, ppo, vtrace
from seedx.pipelines import a3c, apex, gorila, impala, seed, sync
from seedx.runtime import feeds

AGENTS = {"a2c": a2c, "vtrace": vtrace, "ppo": ppo, "dqn": dqn}
CELLS = [
  ("sync", "a2c"),
  ("sync", "vtrace"),
  ("sync", "ppo"),
  ("sync", "dqn"),
  ("seed", "a2c"),
  ("seed", "vtrace"),
  ("seed", "ppo"),
  ("seed", "dqn"),
  ("impala", "a2c"),
  ("impala", "vtrace"),
  ("impala", "ppo"),
  ("a3c", "a2c"),
  ("a3c", "vtrace"),
  ("a3c", "dqn"),
  ("gorila", "dqn"),
  ("apex", "dqn"),
]
PIPELINES = ("sync", "seed", "impala", "a3c", "gorila", "apex")
REPLAY = {"capacity": 1000, "min_steps": 60, "batch_size": 8, "ratio": 1.0}
TOTAL_STEPS = 600


def make_agent(pipeline, name, **own):
  fields = {"hidden_sizes": (8,), "learning_rate": 1e-2, **own}
  if name == "ppo":
    fields |= {"epochs": 2, "minibatches": 2}
  if name == "dqn":
    fields |= {"n_step": 2, "replayed": pipeline != "a3c"}
  return base.Maker(AGENTS[name].make, AGENTS[name].Config(**fields))


def make(pipeline, name, tmp_path, total_steps=TOTAL_STEPS, **own):
  """The pipeline's own process, and the nodes that run beside it.

  `own` are fields of the agent's config.
  """
  common = {
    "env": envs.Config("CartPole-v1"),
    "make_agent": make_agent(pipeline, name, **own),
    "total_steps": total_steps,
    "seed": 0,
    "unroll_length": 5,
    "log_seconds": 0.05,
  }
  uniform = feeds.ReplayConfig(**REPLAY) if name == "dqn" else None
  actors = {
    "address": f"unix:{tmp_path}/learner",
    "num_actors": 2,
    "envs_per_actor": 4,
    "batch_size": 4,
  }
  workers = {"num_workers": 2, "envs_per_worker": 4}
  if pipeline == "sync":
    config = sync.Config(**common, num_envs=4, replay=uniform)
    return sync.Trainer(config, []), []
  if pipeline == "seed":
    config = seed.Config(**common, **actors, actor_batch_size=4, replay=uniform)
    return seed.Learner(config, []), [seed.actors(config)]
  if pipeline == "impala":
    config = impala.Config(**common, **actors)
    return impala.Learner(config, []), [impala.actors(config)]
  if pipeline == "apex":
    replay = feeds.PrioritizedConfig(**REPLAY)
    config = apex.Config(**common, **actors, replay=replay)
    return apex.Learner(config, []), [apex.actors(config)]
  if pipeline == "a3c":
    config = a3c.Config(**common, **workers)
    return a3c.Trainer(config, []), []
  config = gorila.Config(
    **common,
    **workers,
    address=f"unix:{tmp_path}/coordinator",
    server_addresses=[f"unix:{tmp_path}/server-{i}" for i in range(2)],
    replay=feeds.ReplayConfig(**REPLAY),
    max_gradient_norm=0.5,
  )
  nodes = [*gorila.servers(config), gorila.workers(config)]
  return gorila.Coordinator(config, []), nodes


def train(pipeline, name, tmp_path):
  """Runs all of it on threads of this process; returns the last line."""
  return run_all(*make(pipeline, name, tmp_path))


def run_all(own, nodes, finish=lambda: None):
  """As `train`; `finish` is called before the nodes are told to stop."""
  stop, failures = threading.Event(), []

  def run(node):
    try:
      node.run(node.config, stop)
    except BaseException as failure:
      failures.append(failure)

  threads = [
    threading.Thread(target=run, args=(node,), daemon=True)
    for node in nodes
    for _ in range(node.count)
  ]
  for thread in threads:
    thread.start()

  def check():
    if failures:
      raise failures[0]

  try:
    last = own.run(check)
    finish()
    return last
  finally:
    stop.set()
    for thread in threads:
      thread.join(30)
      assert not thread.is_alive()


@pytest.mark.parametrize(("pipeline", "name"), CELLS)
def test_it_learns(pipeline, name, tmp_path):
  last = train(pipeline, name, tmp_path)
  assert last["env_steps"] >= TOTAL_STEPS
  assert last["learner_steps"] >= 3
  # A replay counts resets as well: one for each episode, and 8 that go on.
  resets = last["episodes"] + 8 if name == "dqn" else 0
  assert 0 < last["learned_steps"] <= last["env_steps"] + resets
  loss = last["loss" if name == "dqn" else "loss_value"]
  assert np.isfinite(loss) and loss > 0
  assert last["episodes"] > 0
  if pipeline in ("a3c", "gorila"):
    assert last["gradient_staleness"] >= 0
  elif pipeline == "sync" and name != "dqn":
    assert last["policy_lag"] == 0
  else:
    assert last["policy_lag"] >= 0
  if pipeline not in ("sync", "a3c"):
    assert last["wire_bytes"] > 4 * last["env_steps"]


@pytest.mark.parametrize(
  ("pipeline", "name", "reason"),
  [
    ("impala", "dqn", "expected a replay"),
    ("a3c", "ppo", "takes several steps"),
    ("gorila", "a2c", "expected no replay"),
    ("gorila", "vtrace", "expected no replay"),
    ("gorila", "ppo", "expected no replay"),
    ("apex", "a2c", "expected no replay"),
    ("apex", "vtrace", "expected no replay"),
    ("apex", "ppo", "expected no replay"),
  ],
)
def test_any_other_pair_is_refused_with_the_reason(
  pipeline, name, reason, tmp_path
):
  assert (pipeline, name) not in CELLS
  with pytest.raises(types.ConfigError, match=reason):
    make(pipeline, name, tmp_path)


def test_every_pair_is_either_tested_or_refused():
  marks = test_any_other_pair_is_refused_with_the_reason.pytestmark
  (refused,) = [mark.args[1] for mark in marks]
  pairs = {*CELLS, *((pipeline, name) for pipeline, name, _ in refused)}
  assert pairs == {(p, a) for p in PIPELINES for a in AGENTS}


def test_the_readmes_table_is_what_is_tested():
  text = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
  rows = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in text.splitlines()
    if re.match(r"\| (agent|A2C|V-trace|PPO|DQN) \|", line)
  ]
  names = [cell.strip("`") for cell in rows[0]]
  cells = [
    (pipeline, row[0].lower().replace("-", ""))
    for row in rows[1:]
    for pipeline, cell in zip(names, row, strict=True)
    if pipeline in PIPELINES and cell != "-"
  ]
  assert sorted(cells) == sorted(CELLS)


@pytest.mark.parametrize(
  ("program", "words", "reason"),
  [
    (impala_program, "--agent dqn", "expected a replay"),
    (a3c_program, "--agent ppo", "takes several steps"),
    (impala_program, "--agent sarsa", "invalid choice"),
  ],
)
def test_a_program_exits_with_2_and_the_reason(
  program, words, reason, tmp_path, capfd
):
  with pytest.raises(SystemExit) as caught:
    program.main(["--run-dir", str(tmp_path), *words.split()])
  assert caught.value.code == 2
  assert reason in capfd.readouterr().err
