"""A node for `launch_test`, whose behaviour its config sets."""

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
    folder: folder in which it leaves a mark when it starts.
    status: exit status; 0 to work until it is stopped.
    returns: whether it returns at once instead.
  """

  folder: str
  status: int = 0
  returns: bool = False


def run(config, stop):
  """Leaves a mark, then fails, returns, or waits for the stop."""
  pathlib.Path(config.folder, str(time.monotonic_ns())).touch()
  if config.status == 2:
    raise types.ConfigError("called wrong")
  if config.status:
    raise RuntimeError("environment 3 (seed 7) failed\n  Traceback\nNaN")
  if not config.returns:
    stop.wait()


def report_threads(config, stop):
  """Leaves a mark whose name has the number of JAX's threads.

  It is "none" without JAX, and ends with "queued" if computations wait for a
  free thread.
  """
  name = os.environ.get("PJRT_NPROC", "none")
  if sys.modules.get("jax"):
    queued = sys.modules["jax"].config.read("jax_cpu_enable_async_dispatch")
    name += "-queued" if queued else ""
  pathlib.Path(config.folder, f"{time.monotonic_ns()}-{name}").touch()
  stop.wait()
