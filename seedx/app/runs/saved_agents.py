"""The agent's state in a checkpoint, which has one form in every pipeline.

Its arrays are those of a `base.AgentState`, by path. In a run of several seeds,
each array has an axis of seeds.
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping

import jax
import numpy as np

from seedx import checkpoint, types
from seedx.agents import base
from seedx.app.runs import checkpointer, records
from seedx.learning import populations

_PREFIX = "agent/"


def arrays(
  checkpoints: checkpoint.Checkpoints,
  env_steps: int,
  num_seeds: int = 1,
  index: int = 0,
) -> Mapping[str, np.ndarray]:
  """Returns the arrays of an agent's state, such as `params/...`, by path.

  Of a run with `num_seeds` trainings, they are those of the one at `index`.

  Raises:
    checkpoint.Damaged: the checkpoint is damaged, or too large for memory.
    types.ConfigError: the arrays have no axis of this size.
  """
  saved = checkpointer.arrays(checkpoints, env_steps, checkpointer.RUN)
  named = {
    name.removeprefix(_PREFIX): array
    for name, array in saved.items()
    if name.startswith(_PREFIX)
  }
  if num_seeds == 1:
    return named
  for name, array in named.items():
    if array.shape[:1] != (num_seeds,):
      raise types.ConfigError(
        f"expected {name} of shape [{num_seeds}, ...] in checkpoint"
        f" {env_steps} of {str(checkpoints.directory)!r}, found"
        f" {[*array.shape]}"
      )
  return {name: array[index] for name, array in named.items()}


def restored(
  checkpoints: checkpoint.Checkpoints,
  env_steps: int,
  agent: base.Agent,
  num_seeds: int = 1,
  index: int = 0,
) -> base.AgentState:
  """Returns the state of an agent in a checkpoint; see also `arrays`.

  Raises:
    types.ConfigError: its arrays are not those of the agent.
  """
  # A new lambda, since JAX does not trace the same function again.
  form = jax.eval_shape(lambda key: agent.init(key), jax.random.key(0))
  where = f"checkpoint {env_steps} in {str(checkpoints.directory)!r}"
  named = arrays(checkpoints, env_steps, num_seeds, index)
  state: base.AgentState = checkpoint.like(named, form, where)
  return state


def copy(
  run_dir: str | os.PathLike[str],
  other: str | os.PathLike[str],
  values: Mapping[str, float],
) -> None:
  """Replaces the agent in the newest checkpoint of a run that does not train.

  The run keeps its counts, its replay and its seeds, and resumes with other
  hyper-parameters, which are also written to its `config.json`.

  Args:
    run_dir: directory of the run.
    other: directory of the run whose agent is copied, which may be training; or
      `run_dir`, to change only hyper-parameters.
    values: hyper-parameters by name.

  Raises:
    types.ConfigError: a run has no checkpoint, or the agents differ.
  """
  own, theirs = (
    checkpoint.Checkpoints(checkpointer.directory(x)) for x in (run_dir, other)
  )
  (steps, items), (other_steps, taken) = map(_newest, (own, theirs))
  run = dict(items[checkpointer.RUN])
  agent = {k: x for k, x in run.items() if k.startswith(_PREFIX)}
  copied = {k: x for k, x in taken[checkpointer.RUN].items() if k in agent}
  copied = checkpoint.like(copied, agent, str(other))
  copied[f"{_PREFIX}resets"] = agent[f"{_PREFIX}resets"]
  for name, value in values.items():
    path = f"{_PREFIX}hyperparameters/{name}"
    copied[path] = np.full_like(agent[path], value)
  record = records.read(run_dir)
  options = {**record.options, **values}
  record = dataclasses.replace(record, options=options)
  records.write(pathlib.Path(run_dir), record)
  run |= populations.inherited(agent, copied)
  folder = own.directory.folder(str(steps))
  # A process may be killed between the two files: the run's state comes last.
  for name, nest in {**taken, checkpointer.RUN: run}.items():
    folder.write(name, checkpoint.to_bytes(nest))
  own.rate(steps, theirs.score(other_steps))


def _newest(
  checkpoints: checkpoint.Checkpoints,
) -> tuple[int, dict[str, Mapping[str, np.ndarray]]]:
  """Returns the steps and the items of the newest undamaged checkpoint."""
  return checkpointer.first_whole(
    checkpoints,
    lambda: checkpointer.newest_first(checkpoints),
    lambda steps: {
      item: checkpointer.arrays(checkpoints, steps, item)
      for item in (checkpointer.ACTING, checkpointer.RUN)
    },
  )
