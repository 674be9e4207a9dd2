"""Batches of environments that return `dm_env` time steps.

Importing this package does not import JAX, so that a thin actor can use it.
"""

from seedx.envs.config import (
  Config,
  at,
  code_in,
  games,
  in_one_line,
  is_functional,
  load_function,
  returns_are_sums,
)
from seedx.envs.environment import Environment, make, spec

__all__ = [
  "Config",
  "Environment",
  "at",
  "code_in",
  "games",
  "in_one_line",
  "is_functional",
  "load_function",
  "make",
  "returns_are_sums",
  "spec",
]
