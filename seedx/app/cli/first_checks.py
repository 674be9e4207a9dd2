"""Checks of an experiment's command line that come before JAX is imported.

Reading the full command line imports the configs and JAX, which takes seconds.
"""

import dataclasses
from collections.abc import Sequence

from seedx import types
from seedx.app.cli import command_line
from seedx.app.runs import records, run_folders
from seedx.app.settings import experiments


@dataclasses.dataclass(frozen=True)
class _Options:
  """The part of the command line that is checked."""

  resume: str = ""


def check(name: str, argv: Sequence[str]) -> None:
  """Exits with status 2 and one line if `name` cannot resume the given run."""
  run_dir = command_line.read_some(_Options(), ["resume"], argv)["resume"]
  if run_dir in ("", run_folders.AUTO) or name not in experiments.shipped():
    return
  try:
    records.check_experiment(records.read(run_dir), name, run_dir)
  except types.ConfigError as error:
    command_line.fail(error)
