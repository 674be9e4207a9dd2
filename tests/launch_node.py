"""A node for `launch_test`; its config sets its behaviour."""

import dataclasses
import os
import pathlib
import sys
import time

from seedx import types


@dataclasses.dataclass(frozen=True)
class Config:
  """The config of the node.

  Attributes:
    folder: folder in which the node makes a file, its mark, when it starts.
    status: exit status with which the node fails at once; 0 for no failure.
    returns: whether the node returns at once, without a wait for the stop.
    error: message of the `ConfigError` that status 2 raises, or a line of that
      of another failure.
  """

  folder: str
  status: int = 0
  returns: bool = False
  error: str = "called wrong"


def run(config, stop):
  """Leaves a mark, then fails, returns, or waits for the stop."""
  pathlib.Path(config.folder, str(time.monotonic_ns())).touch()
  if config.status == 2:
    raise types.ConfigError(config.error)
  if config.status:
    # The seed differs in each process.
    seed, line = os.getpid(), config.error
    raise RuntimeError(f"environment 3 (seed {seed}) failed\n{line}\nNaN")
  if not config.returns:
    stop.wait()


def report_threads(config, stop):
  """Leaves a mark whose name ends with the number of JAX's threads.

  The number is "none" if it has not been set. "-queued" follows if JAX queues
  computations (asynchronous dispatch).
  """
  name = os.environ.get("PJRT_NPROC", "none")
  if sys.modules.get("jax"):
    queued = sys.modules["jax"].config.read("jax_cpu_enable_async_dispatch")
    name += "-queued" if queued else ""
  pathlib.Path(config.folder, f"{time.monotonic_ns()}-{name}").touch()
  stop.wait()
