"""A skip of tests that need Ray, on machines too busy to start it in time."""

import functools
import subprocess
import sys

import pytest

_START_SECONDS = 60.0
# With Ray's default niceness, its processes would wait for all other tests.
AS_OTHERS = {"RAY_worker_niceness": "0"}


@functools.cache
def _starts():
  program = "import ray; ray.init('local', num_cpus=1); ray.shutdown()"
  try:
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, timeout=_START_SECONDS, capture_output=True)
  except subprocess.TimeoutExpired:
    return False
  return done.returncode == 0


def needed():
  """Skips the test if Ray does not start."""
  pytest.importorskip("ray")
  if not _starts():
    pytest.skip(f"Ray does not start within {_START_SECONDS:.0f} s here")
