"""Runs killed at random moments, which resume bit for bit.

Half of the kills happen while a checkpoint is written. Gorila's checkpoints
have no replays: its workers fill new ones.
"""

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest

from seedx import checkpoint, types
from seedx.app import training
from seedx.app.runs import checkpointer
from seedx.learning import replay_source
from seedx.runtime import process, process_parts
from tests import programs, running
from tests.pipelines import cells

_ROOT = pathlib.Path(__file__).parents[2]
_lines = programs.lines_of
_RESUMED = "resumed.jsonl"


def rounds(
  pipeline: str, count: int, run_dir: pathlib.Path
) -> collections.Counter[str]:
  """Kills a run until `count` resumes; counts those that restored all bits."""
  rng, counts = random.Random(0), collections.Counter()
  folder, log = checkpointer.directory(run_dir), run_dir / _RESUMED
  saved = checkpoint.Checkpoints(folder)
  expected: dict[str, str] = {}
  while counts["resumes"] < count or not expected:
    restarts = len(_lines(log))
    program = _start(pipeline, run_dir, resume=bool(expected))
    try:
      steps = saved.steps()
      if expected and rng.random() < 0.2:
        # Kills the run before or while it resumes.
        time.sleep(rng.uniform(0.0, 8.0))
        continue
      if expected:
        _wait(program, lambda restarts=restarts: len(_lines(log)) > restarts)
        counts["resumes"] += 1
        counts["bitwise"] += _lines(log)[-1] == expected
        counts["replays"] += "replay" in expected
      # Waits for more checkpoints; the first ones may have no unroll.
      seen = set(saved.steps())
      more = len(steps) + (2 if expected else 4)
      _wait(program, lambda seen=seen, more=more: _count(saved, seen) >= more)
      time.sleep(rng.random())
      if rng.random() < 0.5:
        while not list(pathlib.Path(folder).glob("*.unfinished")):
          assert program.poll() is None
    finally:
      os.killpg(program.pid, signal.SIGKILL)
      program.wait()
      expected = _newest(saved)
  return counts


def _newest(saved: checkpoint.Checkpoints) -> dict[str, str]:
  """Reads all checkpoints; returns the digests of the newest one's items."""
  for step in saved.steps():
    saved.restore(step, "run")
    saved.restore(step, "acting")
  newest = saved.directory / str(saved.steps()[-1])
  return {
    path.name: _digest(np.fromfile(path, np.uint8))
    for path in newest.iterdir()
    if path.name in ("run", "replay")
  }


def _count(saved: checkpoint.Checkpoints, seen: set[int]) -> int:
  seen.update(saved.steps())
  return len(seen)


def _digest(content: np.ndarray) -> str:
  """Returns an item's digest, which ignores the time and the arrays' order."""
  digest = hashlib.sha256()
  for name, array in sorted(checkpoint.from_bytes(content).items()):
    if name.endswith("wall_seconds"):
      continue
    digest.update(f"{name} {array.dtype} {array.shape} ".encode())
    digest.update(array.tobytes())
  return digest.hexdigest()


def _start(
  pipeline: str, run_dir: pathlib.Path, resume: bool
) -> subprocess.Popen:
  words = [sys.executable, "-m", "tests.pipelines.kills_test", pipeline]
  return subprocess.Popen(
    [*words, str(run_dir), str(int(resume))],
    cwd=_ROOT,
    env={**os.environ, "PYTHONPATH": str(_ROOT), "JAX_PLATFORMS": "cpu"},
    start_new_session=True,
    stdout=subprocess.DEVNULL,
  )


def _wait(program, condition):
  def failed():
    assert program.poll() is None, f"the run ended: {program.returncode}"

  running.wait_until(condition, failed)


def _run(pipeline: str, run_dir: pathlib.Path, resume: bool) -> None:
  """Trains; records the digests of the state before the first update."""
  config = cells.config_of(pipeline, "dqn", "", total_steps=10**9)
  if pipeline != "sync":
    config = dataclasses.replace(config, address="")
  if pipeline == "gorila":
    config = dataclasses.replace(config, server_addresses=())
  larger = {"replay_capacity": 50_000}
  config = running.replaced(config, **larger)
  expected = {"run"} if pipeline == "gorila" else {"run", "replay"}
  digests: dict[str, str] = {}

  def record(**items: types.Tree) -> None:
    for name, nest in items.items():
      content = checkpoint.to_bytes(nest)
      digests[name] = _digest(np.frombuffer(content, np.uint8))
    if expected <= digests.keys():
      with (run_dir / _RESUMED).open("a") as file:
        file.write(json.dumps(dict(sorted(digests.items()))) + "\n")

  restore = process.Process.restore

  # Before Gorila moves its schedules past the refilling of its replays.
  def restore_and_record(self, load) -> None:
    restore(self, load)
    parts = dict(self.parts)
    if pipeline == "gorila":
      # The state that the parameter servers will receive.
      state = process_parts.PartState(parts["agent"]._restored, ())
      parts["agent"] = mock.Mock(saved=lambda: state)
    record(run=dataclasses.replace(self, parts=parts).saved())

  begin = replay_source.ReplaySource._begin

  def begin_and_record(self, shares) -> None:
    first = not self.states
    begin(self, shares)
    if first and resume:
      record(replay=self.saved()())

  process.Process.restore = restore_and_record
  replay_source.ReplaySource._begin = begin_and_record
  where = {"resume" if resume else "run_dir": str(run_dir)}
  training.train(config, quiet=True, checkpoint_every_seconds=0.3, **where)


@pytest.mark.parametrize(
  ("pipeline", "count"),
  [
    pytest.param("sync", 1, marks=pytest.mark.slow),
    *(
      pytest.param(x, 3, marks=pytest.mark.long)
      for x in ("sync", "apex", "gorila")
    ),
  ],
)
def test_a_killed_run_resumes_bitwise(pipeline, count, tmp_path):
  counts = rounds(pipeline, count, tmp_path / "run")
  replays = 0 if pipeline == "gorila" else count
  assert counts == {"resumes": count, "bitwise": count, "replays": replays}
  left = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
  # The next save removes the files that a kill has left.
  assert sum(not name.isdecimal() for name in left) <= 1, left


if __name__ == "__main__":
  _run(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3] == "1")
