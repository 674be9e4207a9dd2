"""The user's own environments, in separate processes.

A `ProcessEnvironment` starts processes that each run `worker` for some of the
environments; `messages` is what the two sides send each other.
"""

from seedx.envs.processes.environment import (
  ProcessEnvironment,
  Restarts,
  spec,
)

__all__ = ["ProcessEnvironment", "Restarts", "spec"]
