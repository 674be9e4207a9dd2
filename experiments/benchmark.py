"""Measures how fast this machine trains, as `seedx benchmark` does."""

import sys

from seedx.app import benchmark

if __name__ == "__main__":
  sys.exit(benchmark.main())
