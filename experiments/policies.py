"""The policy of a run, from its checkpoint."""

import dataclasses
import importlib
import pathlib
import sys
from typing import Any

import jax

from experiments import keeper, runs, settings
from seedx import checkpoint, envs, types
from seedx.agents import base

_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Policy:
  """What acted in a run.

  Attributes:
    directory: where the run's checkpoints are.
    experiment: the program's module.
    given: its options.
    env_steps: that the run had made.
    env: which environment.
    spec: of the environment.
    agent: without a mesh axis.
    acting: `agent.acting` of the checkpoint's state.
  """

  directory: pathlib.Path
  experiment: str
  given: Any
  env_steps: int
  env: envs.Config
  spec: types.EnvironmentSpec
  agent: base.Agent
  acting: types.Tree


def load(run_dir: str, which: str) -> Policy:
  """Loads the policy of a run, which may still be going on.

  Args:
    run_dir: the run's directory.
    which: "latest", "best", or the env steps of a checkpoint.

  Raises:
    types.ConfigError: there is no such run or checkpoint, or this version of
      the program cannot read it.
  """
  asked = runs.config(run_dir)
  program = _program(asked)
  given = program.Options(**runs.options_of(program.Options, asked))
  run = pathlib.Path(run_dir).expanduser()
  found = checkpoint.Checkpoints(keeper.directory(run))
  keeper.latest(found)  # Said first where there is none.
  env = settings.environment(given)
  spec = envs.spec(env)
  agent = program.make_agent(given)(spec, None)
  like = jax.eval_shape(
    lambda key: agent.acting(agent.init(key)), jax.random.key(0)
  )
  env_steps, acting = _restored(found, which, like)
  return Policy(
    directory=keeper.directory(run),
    experiment=asked.experiment,
    given=given,
    env_steps=env_steps,
    env=env,
    spec=spec,
    agent=agent,
    acting=jax.device_put(acting),
  )


def _program(asked: runs.Config) -> Any:
  """The module of the program that ran."""
  here = str(pathlib.Path.cwd())
  if here not in sys.path:
    sys.path.insert(0, here)
  try:
    program = importlib.import_module(asked.experiment)
    _ = program.Options, program.make_agent
  except (AttributeError, ImportError, TypeError, ValueError) as error:
    raise types.ConfigError(
      f"expected {asked.experiment}, the program of this run, to be a module"
      f" with Options and make_agent that can be imported from here: {error}"
    ) from error
  return program


def _restored(
  found: checkpoint.Checkpoints, which: str, like: types.Tree
) -> tuple[int, types.Tree]:
  """The env steps of the checkpoint that is meant, and what acts by it."""
  for tries in range(1, _TRIES + 1):
    env_steps = _chosen(found, which)
    try:
      return env_steps, found.restore(env_steps, keeper.ACTING, like)
    except types.ConfigError:
      # A run that goes on may have replaced it meanwhile.
      if env_steps in found.steps() or tries == _TRIES:
        raise
  raise AssertionError("unreachable")


def _chosen(found: checkpoint.Checkpoints, which: str) -> int:
  if which == "latest":
    return keeper.latest(found)
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
