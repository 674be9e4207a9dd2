"""Training programs, each with a config, its presets and a line to run it."""

import importlib
import sys

from seedx import output, signals

# With `python -m experiments.NAME`, this code runs before the import of JAX,
# which takes seconds.
_option, _module = (*sys.orig_argv[1:3], "", "")[:2]
_package, _, _name = _module.rpartition(".")
if (_option, _package) == ("-m", __name__):
  signals.exit_on_signals()
  output.outlive_readers()
  importlib.import_module("seedx.app.cli.first_checks").check(
    _name, sys.argv[1:]
  )
