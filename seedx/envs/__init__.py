"""Environments, many at a time, as batched `dm_env` time steps.

Nothing here imports JAX, so that a thin actor can use it.
"""

from typing import TYPE_CHECKING, Any

from seedx.envs.config import Config
from seedx.envs.environment import Environment, make, spec
from seedx.envs.rendering import check_render

if TYPE_CHECKING:
  from seedx.envs.envpool_adapter import EnvPoolEnvironment

__all__ = [
  "Config",
  "EnvPoolEnvironment",
  "Environment",
  "check_render",
  "make",
  "spec",
]


def __getattr__(name: str) -> Any:
  # EnvPool is imported by those who use it: it takes a second with JAX.
  if name == "EnvPoolEnvironment":
    from seedx.envs import envpool_adapter

    return envpool_adapter.EnvPoolEnvironment
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
