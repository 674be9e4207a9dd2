"""Draws runs, as `seedx plot` does; see its `--help`."""

import sys

from seedx.app import plot

if __name__ == "__main__":
  sys.exit(plot.main())
