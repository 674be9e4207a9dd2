"""The agent's state in a checkpoint, which has one form in every pipeline.

Its arrays are those of a `base.AgentState`, by path. In a run of several seeds,
each array has an axis of seeds.
"""

from collections.abc import Mapping

import jax
import numpy as np

from seedx import checkpoint, types
from seedx.agents import base
from seedx.app.runs import checkpointer

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
