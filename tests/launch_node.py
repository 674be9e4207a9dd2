"""A node for `launch_test`, that does as its config says."""

import dataclasses
import os
import pathlib
import sys
import time

from seedx import types


@dataclasses.dataclass(frozen=True)
class Config:
  """`status` is what it ends with, once it has left a mark in `folder`.

  Attributes:
    folder: of marks.
    status: 0 for one that works on until it is told to end.
    returns: whether it returns at once instead.
  """

  folder: str
  status: int = 0
  returns: bool = False


def run(config, stop):
  """Leaves a mark, and goes on until it is told to end, unless it fails."""
  pathlib.Path(config.folder, str(time.monotonic_ns())).touch()
  if config.status == 2:
    raise types.ConfigError("called wrong")
  if config.status:
    raise RuntimeError("environment 3 (seed 7) failed\n  Traceback\nNaN")
  if not config.returns:
    stop.wait()


def say_threads(config, stop):
  """Leaves a mark that is named after JAX's threads, none without JAX.

  "queued" where what it computes waits for one of them to be free.
  """
  name = os.environ.get("PJRT_NPROC", "none")
  if sys.modules.get("jax"):
    queued = sys.modules["jax"].config.read("jax_cpu_enable_async_dispatch")
    name += "-queued" if queued else ""
  pathlib.Path(config.folder, f"{time.monotonic_ns()}-{name}").touch()
  stop.wait()
