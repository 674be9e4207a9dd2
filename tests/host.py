"""A learner host that a test starts: an experiment that prints its result.

`python -m tests.host EXPERIMENT [OPTIONS]` prints a last line of JSON: a digest
of the agent's state, updates, and env steps.
"""

import contextlib
import hashlib
import json
import runpy
import sys

import jax
import numpy as np

from seedx.runtime import running

_processes = []
_run = running.run


def keeping(process, *args, **options):
  """Runs a process as `running.run` does, and keeps it for `result`."""
  _processes.append(process)
  return _run(process, *args, **options)


def result(process):
  saved = process.saved()
  digest = hashlib.sha256()
  for leaf in jax.tree.leaves(saved["agent"]):
    digest.update(np.asarray(leaf).tobytes())
  return {
    "digest": digest.hexdigest(),
    "updates": int(saved["agent"].updates),
    "env_steps": process.acted.env_steps,
    "first_seeds": int(saved["seeds"]),
  }


if __name__ == "__main__":
  running.run = keeping
  status = 0
  name, sys.argv = sys.argv[1], sys.argv[1:]
  with contextlib.suppress(BrokenPipeError):
    try:
      runpy.run_module(f"experiments.{name}", run_name="__main__")
    except SystemExit as end:
      status = end.code
    print(json.dumps(result(_processes[0])), flush=True)
  sys.exit(status)
