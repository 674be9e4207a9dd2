"""Exports the policy of a run, as `seedx export` does; see its `--help`."""

import sys

from seedx.app import export

if __name__ == "__main__":
  sys.exit(export.main())
