"""Short runs for tests of the application, and parts of fake runs."""

import dataclasses
from types import SimpleNamespace

from flax import linen as nn

from experiments import a2c as a2c_experiment
from seedx import app, envs, wire
from seedx.app.runs import checkpointer
from seedx.learning import learner
from seedx.pipelines import sync
from seedx.runtime import counters
from tests import running
from tests.pipelines import cells

CARTPOLE = envs.Config("CartPole-v1")


def config_of(pipeline, name, **fields):
  """Returns the config of a small run without an address."""
  if pipeline == "sync":
    return small()
  config = cells.config_of(pipeline, name, "nowhere", **fields)
  names = {field.name for field in dataclasses.fields(config)}
  empty = {"address": "", "server_addresses": ()}
  return running.replaced(
    config, **{k: v for k, v in empty.items() if k in names}
  )


# The agent of the experiment `a2c` with the options `SMALL`: tests with this
# agent and tests with these options use the same compiled programs.
A2C = dataclasses.replace(
  a2c_experiment.EXPERIMENT.config.agent, hidden_sizes=(8,)
)


def small(total_steps=100, agent=A2C, **fields):
  """Returns the config of a short run of the pipeline `sync`."""
  return sync.Config(
    total_steps=total_steps,
    agent=agent,
    num_envs=4,
    learner=learner.Config(unroll_length=5),
    **fields,
  )


class Torso(nn.Module):
  @nn.compact
  def __call__(self, observation):
    return nn.relu(nn.Dense(8)(observation))


CUSTOM = """
\"\"\"A custom experiment.\"\"\"

import sys

from seedx import app
from seedx.agents import a2c
from seedx.learning import learner
from seedx.pipelines import sync

EXPERIMENT = app.Experiment(
  sync.Config(
    total_steps=100,
    num_envs=4,
    agent=a2c.Config(hidden_sizes=(8,)),
    learner=learner.Config(unroll_length=5),
  ),
  continuous=app.preset(total_steps=120),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
"""


def lines_of(steps, returns, **more):
  return [
    {"env_steps": x, "wall_seconds": x / 10, "episode_return": y, **more}
    for x, y in zip(steps, returns, strict=True)
  ]


SMALL = "--hidden-sizes 8 --num-envs 4 --unroll-length 5 --total-steps 400"


def train(words, folder):
  return app.main(
    a2c_experiment.EXPERIMENT,
    [*SMALL.split(), "--run-dir", str(folder), *words.split()],
    a2c_experiment.__name__,
  )


class Counting:
  """A run whose state is only its counts.

  Attributes:
    down: whether a parameter server is missing.
  """

  replay = None
  refill = staticmethod(lambda env_steps: None)

  def __init__(self):
    self.acted = counters.ActingCounts()
    self.clock = self.acted.clock
    self.down = False

  def saved(self):
    if self.down:
      raise wire.WireError(wire.StatusCode.UNAVAILABLE, "a server is down")
    return {"acted": self.acted.saved()}

  def restore(self, load):
    self.acted.restore(load(self.saved())["acted"])

  def policy(self, saved):
    return {"w": saved["acted"]["env_steps"]}


class Keeper(checkpointer.Checkpointer):
  """A checkpointer with a fake clock.

  Attributes:
    clock: the clock; tests set `now`, in seconds.
  """

  def __init__(self, run, run_dir, monkeypatch, seconds=0.0, evaluation=None):
    self.clock = SimpleNamespace(now=0.0, monotonic=lambda: self.clock.now)
    monkeypatch.setattr(checkpointer, "time", self.clock)
    config = checkpointer.Config(checkpoint_every_seconds=seconds)
    super().__init__(run, run_dir, config, evaluation)

  def check_after(self, seconds):
    """Checks after some time, and waits until checkpoints are written."""
    self.clock.now += seconds
    self.check()
    self.wait()


class Evaluation:
  """A fake evaluation, due every 10 env steps; tests set its means."""

  def __init__(self):
    self.means, self.started = {}, []

  def due(self, env_steps):
    return env_steps % 10 == 0

  def start(self, env_steps, acting):
    self.started.append(env_steps)

  def finish(self, env_steps, acting, interrupted):
    pass
