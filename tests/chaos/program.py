"""An experiment of seedx with an audited agent and environment.

python -m tests.chaos.program EXPERIMENT [options]

After SIGRTMIN, updates of the learner do not return.
"""

import dataclasses
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from seedx import app
from seedx.app.cli import programs
from seedx.app.settings import experiments
from seedx.learning import updates
from tests.chaos import audit

ENV = "tests.chaos.environment:make"


def config(name: str) -> Any:
  original = experiments.load(name).config
  options = {"continuous": True} if name == "qt_opt" else {}
  env = dataclasses.replace(original.env, env=ENV, env_options=options)
  return dataclasses.replace(
    original,
    env=env,
    agent=audit.of(original.agent),
  )


def main(argv: Sequence[str] | None = None) -> int:
  name, *words = sys.argv[1:] if argv is None else argv
  _hang_at_signal()
  return programs.main(app.Experiment(config(name)), words)


def _hang_at_signal() -> None:
  hangs, update = threading.Event(), updates.Whole.__call__
  signal.signal(signal.SIGRTMIN, lambda *_: hangs.set())

  def hanging(self: updates.Whole, *arguments: Any) -> updates.Result:
    if hangs.is_set():
      threading.Event().wait()
    return update(self, *arguments)

  updates.Whole.__call__ = hanging  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
  sys.exit(main())
