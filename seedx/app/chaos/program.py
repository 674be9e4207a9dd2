"""An experiment of seedx's own, audited, on the environment that is for that.

python -m seedx.app.chaos.program EXPERIMENT [options]
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from seedx import app
from seedx.app import experiments, programs
from seedx.app.chaos import audit

ENV = "seedx.app.chaos.environment:make"


def config(name: str) -> Any:
  """The config of an experiment, audited."""
  found = experiments.load(name).config
  return dataclasses.replace(
    found,
    env=dataclasses.replace(found.env, env=ENV),
    agent=audit.of(found.agent),
  )


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the experiment that the first word names."""
  name, *words = sys.argv[1:] if argv is None else argv
  return programs.main(app.Experiment(config(name)), words)


if __name__ == "__main__":
  sys.exit(main())
