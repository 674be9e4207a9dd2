"""Environments, many at a time, as batched `dm_env` time steps.

Nothing here imports JAX, so that a thin actor can use it.
"""

from seedx.envs.config import (
  Config,
  code_in,
  games,
  in_one_line,
  is_functional,
  load_function,
  returns_are_sums,
)
from seedx.envs.environment import Environment, make, spec
from seedx.envs.envpool_adapter import EnvPoolEnvironment
from seedx.envs.processes import Restarts
from seedx.envs.rendering import check_render

__all__ = [
  "Config",
  "EnvPoolEnvironment",
  "Environment",
  "Restarts",
  "check_render",
  "code_in",
  "games",
  "in_one_line",
  "is_functional",
  "load_function",
  "make",
  "returns_are_sums",
  "spec",
]
