"""An experiment whose updates hang after the first UPDATES.

`python -m tests.hanging_updates UPDATES EXPERIMENT [options]`
"""

import importlib
import sys
import threading

from seedx import app, signals
from seedx.learning import updates


def main() -> int:
  left, experiment, *words = int(sys.argv[1]), *sys.argv[2:]
  whole_update = updates.Whole.__call__

  def update(self, state, inputs):
    nonlocal left
    left -= 1
    if left < 0:
      threading.Event().wait()
    return whole_update(self, state, inputs)

  updates.Whole.__call__ = update
  module = importlib.import_module(f"experiments.{experiment}")
  return app.main(module.EXPERIMENT, words, module.__name__)


if __name__ == "__main__":
  signals.exit_on_signals()
  sys.exit(main())
