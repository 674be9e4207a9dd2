"""Compares experiments, as `seedx compare` does; see its `--help`."""

import sys

from seedx.app.studies import compare

if __name__ == "__main__":
  sys.exit(compare.main())
