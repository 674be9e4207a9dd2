"""Help and refusals that do not import JAX, which would take seconds."""

import json
import os
import re
import subprocess
import sys

import pytest

from seedx.__main__ import _PROGRAMS
from seedx.app.runs import records
from seedx.app.settings import experiments
from tests import programs

_RUN = {
  "experiment": "a2c",
  "seedx": "0",
  "format": records.FORMAT,
  "options": {},
}
_RUN |= {"pipeline": "seedx.pipelines.sync:Config", "agent": "a:b"}


def run(words, folder):
  """Runs a program in which JAX cannot be imported."""
  (folder / "jax.py").write_text("import os\nos._exit(99)\n")
  return subprocess.run(
    [sys.executable, "-m", *words.split()],
    cwd=folder,
    env={**os.environ, "PYTHONPATH": f"{folder}:{programs.ROOT}"},
    capture_output=True,
    text=True,
    timeout=300,
  )


@pytest.mark.parametrize(
  ("words", "pattern", "names"),
  [
    ("seedx", r"  seedx (\w+) ", ("train", *_PROGRAMS)),
    ("seedx train", r"  (\w+) +Trains ", experiments.shipped()),
    ("seedx train --help", r"  (\w+) +Trains ", experiments.shipped()),
  ],
)
def test_help_lists_all_commands_and_experiments(
  words, pattern, names, tmp_path
):
  ended = run(words, tmp_path)
  assert (ended.returncode, ended.stderr) == (0, "")
  assert re.findall(f"(?m)^{pattern}", ended.stdout) == [*names]


@pytest.mark.parametrize(
  ("words", "reason"),
  [
    ("seedx train nothing", "seedx train: expected one of a2c"),
    ("seedx train ppo --resume run", "expected a run of ppo"),
    ("experiments.ppo --resume nowhere", "found no config.json in"),
    ("seedx evaluate nowhere", "found no config.json in"),
    ("seedx export nowhere", "found no config.json in"),
    ("seedx plot nowhere", "found no config.json in"),
    ("seedx compare --experiments nothing", "found 'nothing'"),
    ("seedx sweep nothing", "found 'nothing'"),
    ("seedx certificates", "expected DIRECTORY"),
    ("seedx join localhost", "expected host:port"),
  ],
)
def test_a_refusal_needs_no_jax(words, reason, tmp_path):
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "config.json").write_text(json.dumps(_RUN))
  ended = run(words, tmp_path)
  assert ended.returncode == 2
  assert ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1
  assert reason in ended.stderr
