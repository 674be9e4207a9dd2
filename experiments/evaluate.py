"""Evaluates the policy of a run, as `seedx evaluate` does; see its `--help`."""

import sys

from seedx.app import evaluate

if __name__ == "__main__":
  sys.exit(evaluate.main())
