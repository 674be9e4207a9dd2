"""Every pair of agent and pipeline: small configs, and runs on threads."""

import contextlib
import dataclasses
import threading

import psutil

from seedx import envs, replay
from seedx.acting import local_actor, protocol, thin_actor
from seedx.agents import (
  a2c,
  alphazero,
  ddpg,
  dqn,
  ppo,
  pqn,
  r2d2,
  rainbow,
  sac,
  vtrace,
)
from seedx.launch import instances
from seedx.learning import learner
from seedx.pipelines import a3c, anakin, apex, gorila, impala, pool, seed, sync
from tests import running

AGENTS = {
  "a2c": a2c.Config(),
  "vtrace": vtrace.Config(),
  "ppo": ppo.Config(),
  "pqn": pqn.Config(),
  "dqn": dqn.Config(),
  "r2d2": r2d2.Config(),
  "rainbow": rainbow.Config(),
  "ddpg": ddpg.Config(),
  "td3": ddpg.td3(),
  "sac": sac.Config(),
  "alphazero": alphazero.Config(),
}
# Agents of continuous actions.
CRITICS = ("ddpg", "td3", "sac")
# Agents that take several optimizer steps on each batch.
WHOLE = ("ppo", "pqn")
# Agents that can learn from a replay.
REPLAYED = ("dqn", "r2d2", "rainbow", *CRITICS, "alphazero")
CELLS = [
  *(("sync", name) for name in AGENTS),
  *(("anakin", name) for name in AGENTS),
  *(("seed", name) for name in AGENTS),
  *(("impala", name) for name in ("a2c", "vtrace", "ppo", "pqn", "alphazero")),
  *(("pool", name) for name in ("a2c", "vtrace", "ppo", "pqn")),
  *(("a3c", name) for name in AGENTS if name not in (*WHOLE, "r2d2")),
  *(("gorila", name) for name in REPLAYED if name not in CRITICS),
  *(("apex", name) for name in REPLAYED),
]
MODULES = {
  "sync": sync,
  "anakin": anakin,
  "seed": seed,
  "impala": impala,
  "pool": pool,
  "a3c": a3c,
  "gorila": gorila,
  "apex": apex,
}
REPLAY = {
  "replay_capacity": 1000,
  "replay_min_steps": 60,
  "replay_batch_size": 8,
  "replay_ratio": 1.0,
}
TOTAL_STEPS = 600


def agent_config(pipeline, name, **changes):
  """Returns a small agent; `changes` are fields of its config."""
  fields = {"hidden_sizes": (8,), "learning_rate": 1e-2}
  if name != "alphazero":  # Its rewards are the results of games.
    fields |= {"reward_scale": 1.0}
  if name in WHOLE:
    fields |= {"epochs": 2, "minibatches": 2}
  if name in CRITICS:
    fields |= {"critic_learning_rate": 1e-2}
  if name in REPLAYED:
    on_policy = ("a3c", "impala") if name == "alphazero" else ("a3c",)
    fields |= {"n_step": 2, "replayed": pipeline not in on_policy}
  if name == "alphazero":
    fields |= {"num_simulations": 4}
    if not fields["replayed"]:  # The unroll's end bootstraps.
      del fields["n_step"]
  if name == "r2d2":
    fields |= {"burn_in": 2, "sequence_length": 6, "lstm_size": 8}
  return dataclasses.replace(AGENTS[name], **fields | changes)


def config_of(pipeline, name, tmp_path, total_steps=TOTAL_STEPS, **changes):
  """Returns a small run; `changes` are fields of the agent's config."""
  env = "Pendulum-v1" if name in CRITICS else "CartPole-v1"
  if name == "alphazero":
    env = "seedx:TicTacToe"
  elif pipeline == "anakin":
    env = f"seedx:{env}"
  # An episode of Pendulum has 200 steps, always in `seedx:Pendulum-v1`.
  short = name in CRITICS and pipeline != "anakin"
  options = {"max_episode_steps": 50} if short else {}
  common = {
    "env": envs.Config(env, options),
    "agent": agent_config(pipeline, name, **changes),
    "total_steps": total_steps,
    "seed": 0,
    "log_seconds": 0.05,
  }
  uniform = replay.Config(**REPLAY)
  prioritized = replay.PrioritizedConfig(**REPLAY)
  plain = uniform if name in ("dqn", "sac", "alphazero") else prioritized
  replayed = {"replay": plain if name in REPLAYED else None}
  inbox = learner.InboxConfig(unroll_length=5, batch_size=4)
  workers = {
    "workers": local_actor.WorkersConfig(
      num_workers=2, envs_per_worker=4, unroll_length=5
    )
  }
  if pipeline in ("sync", "anakin"):
    fields = {"num_envs": 4, "learner": learner.Config(unroll_length=5)}
    config = MODULES[pipeline].Config(**common | fields, **replayed)
  elif pipeline == "seed":
    actors = thin_actor.Config(num_actors=2, envs_per_actor=4)
    config = seed.Config(**common, actors=actors, learner=inbox, **replayed)
  elif pipeline == "pool":
    actors = thin_actor.Config(num_actors=2, envs_per_actor=4)
    config = pool.Config(**common, actors=actors, learner=inbox)
  elif pipeline == "a3c":
    config = a3c.Config(**common, **workers)
  elif pipeline == "gorila":
    config = gorila.Config(**common, **workers, replay=uniform)
  else:
    actors = protocol.Actors(num_actors=2, envs_per_actor=4)
    config = impala.Config(**common, actors=actors, learner=inbox)
    if pipeline == "apex":
      ranked = uniform if name == "alphazero" else prioritized
      config = apex.Config(**vars(config), replay=ranked)
  return config.with_sockets(str(tmp_path))


def make(pipeline, name, tmp_path, total_steps=TOTAL_STEPS, **changes):
  """Makes a pipeline's process; `changes` as in `config_of`."""
  config = config_of(pipeline, name, tmp_path, total_steps, **changes)
  return running.Own(config)


def run_all(made, finish=lambda: None):
  """Runs a process, and its nodes on threads; returns the last line.

  `finish` is called before the nodes are stopped.
  """
  stop, failures = threading.Event(), []

  def run(node):
    try:
      node.run(node.config, stop)
    except BaseException as failure:
      failures.append(failure)

  threads = [
    threading.Thread(target=run, args=(node,), daemon=True)
    for node in made.nodes
    for _ in range(node.count)
  ]
  for thread in threads:
    thread.start()

  def check():
    if failures:
      raise failures[0]

  try:
    last = made.run(check)
    finish()
    return last
  finally:
    stop.set()
    for thread in threads:
      thread.join(300)
      assert not thread.is_alive()


class Running(running.Running):
  """A pipeline whose nodes are processes, as in programs."""

  def __init__(self, config):
    self.before = set(psutil.Process().children())
    config = dataclasses.replace(config, total_steps=10**9)
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
