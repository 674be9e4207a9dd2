"""Policies that are loaded from the checkpoints of runs."""

import dataclasses
import importlib
import os
import re
from typing import Any

import dm_env
import jax
import jax.numpy as jnp

from seedx import checkpoint, envs, files, types
from seedx.agents import acting_step, base
from seedx.app import checkpointer, configs, experiments, programs, run_dirs


@dataclasses.dataclass(frozen=True)
class Policy:
  """The policy of a run.

  Attributes:
    directory: directory of the run's checkpoints.
    name: name of the experiment or script that trained it, such as `ppo`.
    seed: seed of the run.
    env_steps: env steps of the run at the checkpoint.
    env: the environment.
    spec: spec of the environment.
    agent: the agent, without a mesh axis.
    acting: the part of the agent's state that acts, `agent.acting(state)`.
  """

  directory: files.Folder
  name: str
  seed: int
  env_steps: int
  env: envs.Config
  spec: types.EnvironmentSpec
  agent: base.Agent
  acting: types.Tree

  def initial_state(self, batch_size: int) -> acting_step.ActingState:
    """The state for the first call of `act` with `batch_size` rows."""
    return acting_step.initial_state(self.agent, self.spec, batch_size)

  def act(
    self, timestep: dm_env.TimeStep, state: acting_step.ActingState
  ) -> tuple[jax.Array, acting_step.ActingState]:
    """Takes the greedy actions. This function can be jitted.

    Args:
      timestep: `[B, ...]`.
      state: the state that the last call returned. Rows whose `step_type` is
        FIRST ignore it.

    Returns:
      The actions, `[B, ...]`, and the state for the next call.

    Raises:
      types.ConfigError: the agent has no `greedy` step.
    """
    if self.agent.greedy is None:
      raise types.ConfigError(
        "expected an agent with a `greedy` step, found one without"
      )
    taken = acting_step.take(
      dataclasses.replace(self.agent, step=self.agent.greedy),
      self.acting,
      jax.random.key(0),  # A greedy step samples nothing.
      timestep,
      state,
      exploration=jnp.zeros(timestep.reward.shape, jnp.float32),
    )
    return taken.output.action, taken.acting_state


def load(
  run_dir: str | os.PathLike[str],
  which: str = "latest",
  config: Any = None,
  *,
  trust: bool = False,
) -> Policy:
  """Loads the policy of a run, which may still be training.

  Args:
    run_dir: directory of the run.
    which: "latest", "best", or the env steps of a checkpoint. Where the latest
      or best is damaged, the next one is taken, and stderr says so.
    config: the config that was trained. Only a script needs it, and only if its
      environment, agent or network is not part of seedx.
    trust: run the code that the directory names, such as an environment or an
      experiment of one's own. Anyone may have written what it says.

  Raises:
    types.ConfigError: there is no such run or checkpoint, this version of the
      program cannot read it, or it names code that is not trusted.
  """
  asked = run_dirs.trusted(run_dir, trust or config is not None)
  directory = checkpointer.directory(run_dir)
  found = checkpoint.Checkpoints(directory)
  config = config or _config(asked)
  checkpointer.newest_first(found)  # Fails early if there is none.
  spec = envs.spec(config.env)
  agent = config.agent.make(spec)
  like = jax.eval_shape(
    lambda key: agent.acting(agent.init(key)), jax.random.key(0)
  )
  env_steps, acting = checkpointer.first_whole(
    found,
    lambda: _chosen(found, which),
    lambda step: found.restore(step, checkpointer.ACTING, like),
  )
  return Policy(
    directory=directory,
    name=asked.name,
    seed=config.seed,
    env_steps=env_steps,
    env=config.env,
    spec=spec,
    agent=agent,
    acting=jax.device_put(acting),
  )


def _config(asked: run_dirs.Config) -> Any:
  """The pipeline config of a run, from its `config.json`."""
  if asked.experiment is None:
    if asked.beyond:
      raise types.ConfigError(
        "expected the config of this run, because config.json cannot hold its"
        f" {', '.join(map(str, asked.beyond))}; use app.load(run_dir,"
        " config=...)"
      )
    try:
      agent = _class(asked.agent, "agents")()
      config = _class(asked.pipeline, "pipelines")(agent=agent)
      assert callable(agent.make)
    except (ImportError, AttributeError, TypeError) as error:
      raise types.ConfigError(
        f"expected configs that this version of seedx has, found {asked.agent}"
        f" in {asked.pipeline} ({error})"
      ) from error
    known = configs.settings(config)
    options = {k: v for k, v in asked.options.items() if k in known}
    return run_dirs.replaced(config, options)
  experiment = experiments.load(asked.experiment)
  name = str(asked.options.get("agent", ""))
  return run_dirs.restored(programs.asked_of(experiment, name), asked).run


def _class(name: str, package: str) -> Any:
  """The class of a config, from MODULE:Config in a package of seedx."""
  if not re.fullmatch(rf"seedx\.{package}\.\w+(\.\w+)?:Config", name):
    raise types.ConfigError(
      f"expected the config of this run, because its {name} is not part of"
      " seedx; use app.load(run_dir, config=...)"
    )
  return importlib.import_module(name.partition(":")[0]).Config


def _chosen(found: checkpoint.Checkpoints, which: str) -> list[int]:
  """The env steps of the checkpoints that `which` allows, in order."""
  if which == "latest":
    return checkpointer.newest_first(found)
  if which == "best":
    return found.ranked()
  if which not in map(str, found.steps()):
    raise types.ConfigError(
      "expected --checkpoint latest, best or one of"
      f" {', '.join(map(str, found.steps()))}, found {which!r}"
    )
  return [int(which)]
