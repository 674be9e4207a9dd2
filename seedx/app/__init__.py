"""Programs that train agents, and tools for their runs.

`Experiment`, `preset` and `main` make a training program. In a script or a
notebook, `train` trains, and `load` returns a policy. Each name is imported
when it is first used (`__init__.pyi` has the types). Thus, defining an
experiment imports no code that trains, and plotting no JAX.
"""

import importlib
from typing import Any

_MODULES = {
  "Experiment": "settings.experiments",
  "Policy": "policies",
  "Run": "training",
  "load": "policies",
  "main": "cli.programs",
  "preset": "settings.presets",
  "train": "training",
}


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  module = importlib.import_module(f"seedx.app.{_MODULES[name]}")
  return getattr(module, name)
