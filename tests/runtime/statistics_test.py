"""The counts of a run, compared with the logs of its environments."""

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import checkpoint, envs
from seedx.app.runs import checkpointer
from seedx.envs import functional
from seedx.envs.processes import child
from seedx.runtime import counters, seeding
from tests import conftest, programs, running
from tests.envs import worker_processes
from tests.pipelines import cells

compiled_once = programs.compiled_once
fork_server = worker_processes.fork_server
NUM_ENVS = 4
AGENTS = {
  "sync": "a2c",
  "seed": "a2c",
  "impala": "a2c",
  "pool": "a2c",
  "a3c": "a2c",
  "gorila": "dqn",
}
# One actor or worker, so that episodes end in a known order.
ONE = {
  "sync": {},
  "seed": {"num_actors": 1},
  "impala": {"num_actors": 1, "unroll_length": 40},
  "pool": {"num_actors": 1, "num_inference": 1, "inference_addresses": ()},
  "a3c": {"num_workers": 1},
  "gorila": {"num_workers": 1},
}


class Arithmetic(functional.Episodic):
  """An environment whose k-th episode has 1 + (offset + k^2) % 5 steps.

  Rewards are offset + step. The offset, 0 to 9, depends on the key of `init`.
  """

  observation = dm_env.specs.Array((1,), np.float32)
  action = dm_env.specs.DiscreteArray(2)

  def init(self, rng_key):
    offset = offset_of(rng_key)
    inner = jnp.stack([offset, 0, 0])
    return functional.State(inner, jnp.int32(0), jnp.bool_(True))

  def reset(self, rng_key):
    raise NotImplementedError

  def step(self, state, action, rng_key):
    offset, episode, step = state.inner
    first = state.over
    episode = jnp.where(first, episode + 1, episode)
    step = jnp.where(first, 0, step + 1)
    last = step == 1 + (offset + episode**2) % 5
    step_type = jnp.where(first, 0, jnp.where(last, 2, 1))
    timestep = dm_env.TimeStep(
      step_type.astype(jnp.uint8),
      jnp.where(first, 0, offset + step).astype(jnp.float32),
      1.0 - last.astype(jnp.float32),
      step[None].astype(jnp.float32),
    )
    inner = jnp.stack([offset, episode, step])
    return functional.State(inner, jnp.int32(0), last), timestep

  def act(self, state, action, rng_key):
    raise NotImplementedError

  def observe(self, state):
    raise NotImplementedError


def offset_of(rng_key):
  return jax.random.randint(rng_key, (), 0, 10)


def rows_of_arithmetic(offset, length):
  rows, episode = [], 0
  while len(rows) < length:
    episode += 1
    steps = 1 + (offset + episode**2) % 5
    rows.append(None)
    rows.extend((np.nan, np.nan) for _ in range(steps - 1))
    rows.append((sum(offset + k for k in range(1, steps + 1)), steps))
  return rows[:length]


def rows_of_log(path):
  """Returns the rows that an environment has logged.

  A row is None for a reset. Any other row has the return and the length of the
  episode that ends with it, or two NaN.
  """
  rows = []
  for line in path.read_text().splitlines():
    word, *numbers = line.split()
    ended = tuple(map(float, numbers)) or (np.nan, np.nan)
    rows.append(None if word == "reset" else ended)
  return rows


def logs_in(folder):
  """Returns the logs of the environments that act, in the order of seeds."""
  paths = sorted(folder.iterdir(), key=lambda path: int(path.stem))
  logs = [rows_of_log(path) for path in paths]
  # Environments that were only made for their spaces have one row.
  logs = [log for log in logs if len(log) > 1]
  assert len(logs) == NUM_ENVS
  return logs


class Log:
  """The merged logs of environments in lock step.

  Attributes:
    env_steps: `[rows + 1]`; entry k counts the env steps of the first k rows.
    ends: a list for each row: (return, length) of each episode that ends there.
  """

  def __init__(self, environments, reported=None):
    """Merges rows; only the `reported` environments' episodes count."""
    rows = list(zip(*environments, strict=False))
    every = np.ones(len(environments), np.bool_)
    reported = every if reported is None else reported
    steps = [sum(x is not None for x in row) for row in rows]
    self.env_steps = np.concatenate([[0], np.cumsum(steps)])
    self.ends = [
      [
        x
        for x, counts in zip(row, reported, strict=True)
        if counts and x is not None and not np.isnan(x[0])
      ]
      for row in rows
    ]

  def until(self, rows):
    """Returns the episodes that ended in the first rows, oldest first."""
    return np.array([x for row in self.ends[:rows] for x in row])


def config_of(pipeline, env, tmp_path, **changes):
  name = AGENTS.get(pipeline, "a2c")
  config = cells.config_of(pipeline, name, tmp_path)
  config = running.replaced(config, env=env, **changes)
  return config.with_sockets(str(tmp_path))


@pytest.mark.parametrize(
  "pipeline",
  conftest.slow_but([("sync",)], [(x,) for x in AGENTS]),
)
def test_a_run_counts_what_environments_log(
  pipeline, tmp_path, fork_server, monkeypatch
):
  monkeypatch.setattr(child, "subprocess", fork_server)
  log = tmp_path / "log"
  log.mkdir()
  env = envs.Config("tests.own_envs:Logged", {"log": str(log)})
  config = config_of(pipeline, env, tmp_path, **ONE[pipeline])
  run = running.Own(config)
  last = cells.run_all(run)
  agent = config.plan.agent(config.agent, envs.spec(env))
  reported = counters.explores_least(agent.exploration(NUM_ENVS))
  logged = Log(logs_in(log), reported)
  # The logs continue after the last line, until the environments are closed.
  (rows, *_) = np.flatnonzero(logged.env_steps == last["env_steps"])
  episodes = logged.until(rows)
  assert len(episodes) == last["episodes"] > (100 if all(reported) else 20)
  mean_return, mean_length = episodes[-100:].mean(axis=0)
  assert last["episode_return"] == pytest.approx(mean_return, rel=1e-6)
  assert last["episode_length"] == mean_length
  assert score_of(run, tmp_path) == last["episode_return"]


@pytest.mark.slow
def test_anakin_counts_what_environments_do(tmp_path):
  """Each seed's mean return covers 100 episodes, even if more end in a call."""
  num_seeds = 2
  env = envs.Config("jax:tests.runtime.statistics_test:Arithmetic")
  options = {"num_seeds": num_seeds, "updates_per_call": 20, "num_envs": 8}
  config = config_of("anakin", env, tmp_path, **options)
  run = running.Own(config)
  last = run.run()
  logs = []
  for seed in range(num_seeds):
    keys = functional.keys(seeding.Seeds(seed).take(8), 8)
    numbers = jax.vmap(offset_of)(keys).tolist()
    logs.append(Log([rows_of_arithmetic(x, 1000) for x in numbers]))
  # Env steps are the mean over all seeds.
  env_steps = sum(log.env_steps for log in logs) // num_seeds
  (rows, *_) = np.flatnonzero(env_steps == last["env_steps"])
  episodes = [log.until(rows) for log in logs]
  assert last["episodes"] == sum(map(len, episodes)) > 100 * num_seeds
  means = [x[-100:, 0].mean() for x in episodes]
  assert last["episode_return"] == np.mean(means)
  assert score_of(run, tmp_path) == last["episode_return"]
  for seed, mean in enumerate(means):
    assert last[f"episode_return_seed_{seed}"] == mean


def score_of(run, run_dir):
  kept = checkpointer.Checkpointer(
    run.process, run_dir, checkpointer.Config(), None
  )
  kept.finish(interrupted=True)
  checkpoints = checkpoint.Checkpoints(checkpointer.directory(run_dir))
  (step,) = checkpoints.steps()
  assert step == run.process.acted.env_steps
  return float(checkpoints.restore(step, "score", np.float64(0)))
