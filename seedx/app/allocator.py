"""Settings of the C allocator, which glibc reads when a process starts."""

import os
import signal
import sys
from typing import Any

from seedx import signals


def keep_freed_memory() -> None:
  """Restarts this program with allocator settings for networks on the CPU.

  By default, glibc returns freed large arrays to the kernel and requests them
  again, page by page, at the next step. This takes a quarter of the time of a
  CNN's updates. Under a debugger or a profiler, nothing is done.
  """
  if _is_watched():
    return
  settings = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
  }
  if sys.platform != "linux" or any(name in os.environ for name in settings):
    return
  # Until it is back.
  before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.ENDING)
  try:
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **settings})
  finally:  # It could not leave.
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_watched() -> bool:
  """Whether a debugger, a profiler or a coverage tool looks at this program."""
  monitoring: Any = getattr(sys, "monitoring", None)  # Since Python 3.12.
  tools = monitoring and any(map(monitoring.get_tool, range(6)))
  return bool(sys.gettrace() or sys.getprofile() or tools)


def runs_module_of(package: str) -> bool:
  """Whether this program was started as `python -m PACKAGE.MODULE`."""
  words = sys.orig_argv[1:3]
  return words[:1] == ["-m"] and words[-1].rpartition(".")[0] == package
