"""The program `python -m tests.chaos`; see `trials`."""

import sys

from tests.chaos import trials

if __name__ == "__main__":
  sys.exit(trials.main())
