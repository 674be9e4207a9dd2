"""Runs pipelines while everything fails, as `seedx chaos` does; see --help."""

import sys

from seedx.app.chaos import main

if __name__ == "__main__":
  sys.exit(main.main())
