"""A node for `launch_test`: a program that does as its config says."""

import dataclasses
import json
import pathlib
import sys
import time


@dataclasses.dataclass(frozen=True)
class Config:
  """`status` is what it ends with, once it has left a mark in `folder`."""

  folder: str
  status: int = 0
  seconds: float = 0.0
  deaf: bool = False


def run(config, stop):
  """Leaves a mark, waits for its standard input to end, and returns."""
  pathlib.Path(config.folder, str(time.monotonic_ns())).touch()
  if config.deaf:
    time.sleep(60)
  time.sleep(config.seconds)
  if not config.seconds:
    stop()


if __name__ == "__main__":
  given = Config(**json.loads(sys.argv[1]))
  run(given, sys.stdin.read if given.status == 0 else lambda: None)
  sys.exit(given.status)
