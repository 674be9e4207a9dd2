"""A learner host that a test starts: an experiment that says what it ends with.

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

_made = []
_run = running.run


def keeping(own, *args, **options):
  """`running.run`, which keeps what it runs."""
  _made.append(own)
  return _run(own, *args, **options)


def said(own):
  """What a host ends with."""
  saved = own.saved()
  digest = hashlib.sha256()
  for leaf in jax.tree.leaves(saved["agent"]["state"]):
    digest.update(np.asarray(leaf).tobytes())
  return {
    "digest": digest.hexdigest(),
    "updates": int(saved["agent"]["state"].updates),
    "env_steps": own.acted.env_steps,
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
    print(json.dumps(said(_made[0])), flush=True)
  sys.exit(status)
