"""What a command line of an experiment is refused for before JAX is imported.

The configs lie in the modules that they are for, most of which import JAX.
"""

import dataclasses
from collections.abc import Sequence

from seedx import types
from seedx.app.cli import command_line, experiments
from seedx.app.runs import run_dirs


@dataclasses.dataclass(frozen=True)
class _Options:
  """A part of the command line.

  Attributes:
    resume: directory of a run to resume.
  """

  resume: str = ""


def check(name: str, argv: Sequence[str]) -> None:
  """Exits with status 2 and one line where an experiment cannot begin.

  Args:
    name: of an experiment; any other than those of seedx can begin.
    argv: without the program's name.
  """
  run_dir = command_line.first(_Options(), ["resume"], argv)["resume"]
  if not run_dir or name not in experiments.shipped():
    return
  try:
    run_dirs.check_experiment(run_dirs.config(run_dir), name, run_dir)
  except types.ConfigError as error:
    command_line.fail(error)
