"""Searches for settings of an experiment; see its `--help`."""

import sys

from seedx.app.studies import sweep

if __name__ == "__main__":
  sys.exit(sweep.main())
