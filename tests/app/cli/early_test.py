"""What is refused before JAX is imported, which takes seconds."""

import json
import os
import subprocess
import sys

import pytest

from tests import programs

_RUN = {"experiment": "a2c", "seedx": "0", "format": 4, "options": {}}
_RUN |= {"pipeline": "seedx.pipelines.sync:Config", "agent": "a:b"}


@pytest.mark.parametrize(
  ("words", "reason"),
  [
    ("seedx train nothing", "expected seedx train with a2c"),
    ("seedx train ppo --resume nowhere", "found no config.json in"),
    ("seedx train ppo --resume run", "expected a run of ppo"),
    ("experiments.ppo --resume nowhere", "found no config.json in"),
    ("seedx evaluate nowhere", "found no config.json in"),
    ("experiments.evaluate run --nothing", "unrecognized arguments"),
    ("seedx export nowhere", "found no config.json in"),
    ("seedx plot nowhere", "found no config.json in"),
    ("seedx compare --seeds 0", "--seeds from 1 to"),
    ("seedx compare --experiments nothing", "found 'nothing'"),
    ("seedx sweep nothing", "found 'nothing'"),
    ("seedx sweep ppo --trials 0", "--trials from 1 to"),
    ("seedx benchmark --seconds 0", "--seconds of at least 1"),
    ("seedx certificates", "expected DIRECTORY"),
  ],
)
def test_a_refusal_needs_no_jax(words, reason, tmp_path):
  (tmp_path / "jax.py").write_text("import os\nos._exit(99)\n")
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "config.json").write_text(json.dumps(_RUN))
  ended = subprocess.run(
    [sys.executable, "-m", *words.split()],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": f"{tmp_path}:{programs.ROOT}"},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert ended.returncode == 2
  assert ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1
  assert reason in ended.stderr
