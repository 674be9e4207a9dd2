"""A node for `launch_test`, that does as its config says."""

import dataclasses
import pathlib
import time

from seedx import types


@dataclasses.dataclass(frozen=True)
class Config:
  """`status` is what it ends with, once it has left a mark in `folder`."""

  folder: str
  status: int = 0


def run(config, stop):
  """Leaves a mark, and goes on until it is told to end, unless it fails."""
  pathlib.Path(config.folder, str(time.monotonic_ns())).touch()
  if config.status == 2:
    raise types.ConfigError("called wrong")
  if config.status:
    raise RuntimeError("environment 3 (seed 7) failed\n  Traceback\nNaN")
  stop.wait()
