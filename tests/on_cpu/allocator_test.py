"""Tests of the memory that a process keeps."""

import os
import subprocess
import sys

import pytest

# Resident megabytes that are left when 256 are allocated and freed.
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
  "glibc" not in os.confstr("CS_GNU_LIBC_VERSION"), reason="it is glibc's"
)
@pytest.mark.parametrize(
  ("own", "kept"), [({}, True), ({"MALLOC_TRIM_THRESHOLD_": "4096"}, False)]
)
def test_a_process_keeps_freed_memory_unless_it_is_told_otherwise(own, kept):
  given = {k: v for k, v in os.environ.items() if "MALLOC" not in k}
  words = [sys.executable, "-c", _PROGRAM]
  left = subprocess.check_output(words, env=given | own, text=True)
  assert (int(left) > 200) == kept, left
