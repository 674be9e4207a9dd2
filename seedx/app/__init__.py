"""Training programs, and what is done with the runs that they leave.

What an experiment, a script or a notebook uses is here: `Experiment`, `preset`
and `main` make a program; `train` and `load` are the same without a command
line. Each is imported when it is first used (`__init__.pyi` has their types),
so that who makes an experiment does not import what trains, nor a plot JAX.
"""

import importlib
from typing import Any

_MODULES = {
  "Experiment": "cli.experiments",
  "Policy": "runs.policies",
  "Run": "training",
  "load": "runs.policies",
  "main": "cli.programs",
  "preset": "cli.presets",
  "train": "training",
}


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  module = importlib.import_module(f"seedx.app.{_MODULES[name]}")
  return getattr(module, name)
