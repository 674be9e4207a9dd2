"""The C allocator's settings, which a process cannot change of itself."""

import os
import sys


def keep_freed_memory() -> None:
  """Starts this program again with an allocator that suits CPU networks.

  glibc gives large arrays back to the kernel when they are freed and gets them
  page by page when the next step needs them; a CNN's updates spend a quarter
  of their time so. These settings are only read when a process starts.
  """
  settings = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
  }
  if sys.platform != "linux" or any(name in os.environ for name in settings):
    return
  os.execve(sys.executable, sys.orig_argv, {**os.environ, **settings})


def runs_module_of(package: str) -> bool:
  """Whether this program is `python -m PACKAGE.MODULE`."""
  words = sys.orig_argv[1:3]
  return words[:1] == ["-m"] and words[-1].rpartition(".")[0] == package
