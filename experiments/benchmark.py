"""Measures how fast this machine trains, as `seedx benchmark` does."""

import sys

from seedx.app.benchmark import main

if __name__ == "__main__":
  sys.exit(main.main())
