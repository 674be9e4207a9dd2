"""The policy of a run, from its checkpoint."""

import dataclasses
import importlib
import os
import pathlib
from typing import Any

import dm_env
import jax
import jax.numpy as jnp

from seedx import checkpoint, envs, types
from seedx.agents import acting_step, base
from seedx.app import (
  checkpointer,
  configs,
  experiments,
  programs,
  run_dirs,
)

_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Policy:
  """What acted in a run.

  Attributes:
    directory: where the run's checkpoints are.
    name: of what trained it, such as `ppo`.
    seed: of the run.
    env_steps: that the run had made.
    env: which environment.
    spec: of the environment.
    agent: without a mesh axis.
    acting: `agent.acting` of the checkpoint's state.
  """

  directory: pathlib.Path
  name: str
  seed: int
  env_steps: int
  env: envs.Config
  spec: types.EnvironmentSpec
  agent: base.Agent
  acting: types.Tree

  def initial_state(self, batch_size: int) -> acting_step.ActingState:
    """What `act` is first given, for so many environments."""
    return acting_step.initial_state(self.agent, self.spec, batch_size)

  def act(
    self, timestep: dm_env.TimeStep, state: acting_step.ActingState
  ) -> tuple[jax.Array, acting_step.ActingState]:
    """The best actions, as far as the agent knows; it can be jitted.

    Args:
      timestep: `[B, ...]`.
      state: of the step before; it is forgotten where `step_type` is FIRST.

    Returns:
      The actions `[B, ...]`, and the state of the next step.

    Raises:
      types.ConfigError: the agent cannot tell which action is best.
    """
    if self.agent.greedy is None:
      raise types.ConfigError(
        "expected an agent with a `greedy` step, found one without"
      )
    taken = acting_step.take(
      dataclasses.replace(self.agent, step=self.agent.greedy),
      self.acting,
      jax.random.key(0),  # Nothing is drawn.
      timestep,
      state,
      exploration=jnp.zeros(timestep.reward.shape, jnp.float32),
    )
    return taken.output.action, taken.acting_state


def load(
  run_dir: str | os.PathLike[str], which: str = "latest", config: Any = None
) -> Policy:
  """Loads the policy of a run, which may still be going on.

  Args:
    run_dir: the run's directory.
    which: "latest", "best", or the env steps of a checkpoint.
    config: what was trained, of a script whose agent does not come with seedx.

  Raises:
    types.ConfigError: there is no such run or checkpoint, or this version of
      the program cannot read it.
  """
  asked = run_dirs.config(run_dir)
  run = pathlib.Path(run_dir).expanduser()
  found = checkpoint.Checkpoints(checkpointer.directory(run))
  config = config or _config(asked)
  checkpointer.latest(found)  # Said first where there is none.
  spec = envs.spec(config.env)
  agent = config.agent.make(spec)
  like = jax.eval_shape(
    lambda key: agent.acting(agent.init(key)), jax.random.key(0)
  )
  env_steps, acting = _restored(found, which, like)
  return Policy(
    directory=checkpointer.directory(run),
    name=asked.name,
    seed=config.seed,
    env_steps=env_steps,
    env=config.env,
    spec=spec,
    agent=agent,
    acting=jax.device_put(acting),
  )


def _config(asked: run_dirs.Config) -> Any:
  """The config of the pipeline that ran."""
  if asked.experiment is None:
    if asked.beyond:
      raise types.ConfigError(
        f"expected the config of this run, whose {', '.join(asked.beyond)} no"
        " file can hold: app.load(run_dir, config=...)"
      )
    config = _class(asked.pipeline)(agent=_class(asked.agent)())
    known = configs.settings(config)
    options = {k: v for k, v in asked.options.items() if k in known}
    return configs.replaced(config, options)
  experiment = experiments.load(asked.experiment)
  agent = str(asked.options.get("agent", ""))
  return run_dirs.restored(programs.asked_of(experiment, agent), asked).run


def _class(name: str) -> Any:
  """A config's class that comes with seedx."""
  module, _, attribute = name.partition(":")
  if not module.startswith("seedx."):
    raise types.ConfigError(
      f"expected the config of this run, whose {name} does not come with seedx:"
      " app.load(run_dir, config=...)"
    )
  return getattr(importlib.import_module(module), attribute)


def _restored(
  found: checkpoint.Checkpoints, which: str, like: types.Tree
) -> tuple[int, types.Tree]:
  """The env steps of the checkpoint that is meant, and what acts by it."""
  for tries in range(1, _TRIES + 1):
    env_steps = _chosen(found, which)
    try:
      return env_steps, found.restore(env_steps, checkpointer.ACTING, like)
    except types.ConfigError:
      # A run that goes on may have replaced it meanwhile.
      if env_steps in found.steps() or tries == _TRIES:
        raise
  raise AssertionError("unreachable")


def _chosen(found: checkpoint.Checkpoints, which: str) -> int:
  if which == "latest":
    return checkpointer.latest(found)
  if which == "best":
    best = found.best()
    assert best is not None
    return best
  if not which.isdecimal() or int(which) not in found.steps():
    raise types.ConfigError(
      "expected --checkpoint latest, best or one of"
      f" {', '.join(map(str, found.steps()))}, found {which!r}"
    )
  return int(which)
