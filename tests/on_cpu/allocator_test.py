"""The freed memory that a process keeps."""

import os
import subprocess
import sys

import pytest

# Prints the resident MiB that remain after 256 MiB are allocated and freed.
_PROGRAM = """\
import pathlib, sys
from seedx.on_cpu import allocator

def resident():
  pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
  return int(pages) * 4096 / 2**20

allocator.keep_freed_memory()
before = resident()
large = b"x" * 2**28
del large
print(round(resident() - before))
"""


@pytest.mark.skipif(
  "glibc" not in os.confstr("CS_GNU_LIBC_VERSION"),
  reason="only glibc has thresholds",
)
@pytest.mark.parametrize(
  ("settings", "kept"),
  [({}, True), ({"MALLOC_TRIM_THRESHOLD_": "4096"}, False)],
)
def test_a_process_keeps_freed_memory_unless_the_user_set_thresholds(
  settings, kept
):
  environment = {k: v for k, v in os.environ.items() if "MALLOC" not in k}
  command = [sys.executable, "-c", _PROGRAM]
  remaining = subprocess.check_output(
    command, env=environment | settings, text=True
  )
  assert (int(remaining) > 200) == kept, remaining
