"""Programs that train, each a config, its presets and a line to run it."""

from seedx.app import allocator

# Before one of them imports JAX, which takes seconds.
if allocator.runs_module_of(__name__):
  allocator.keep_freed_memory()
