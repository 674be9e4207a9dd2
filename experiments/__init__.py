"""Programs that train, each a config, its presets and a line to run it."""

import importlib
import sys

from seedx import output, signals
from seedx.app import allocator

# Before one of them imports JAX, which takes seconds.
if allocator.runs_module_of(__name__):
  signals.leave_at_once()
  output.outlive_readers()
  allocator.keep_freed_memory()
  importlib.import_module("seedx.app.cli.early").check(
    sys.orig_argv[2].rpartition(".")[2], sys.argv[1:]
  )
