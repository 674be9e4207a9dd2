"""Checkpoints: restored arrays, retention, damage, and kills during a save."""

import dataclasses
import functools
import gc
import itertools
import json
import math
import os
import pathlib
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from typing import Any, NamedTuple

import chex
import hypothesis
import jax
import numpy as np
import psutil
import pytest
from hypothesis import strategies

from seedx import checkpoint, sharding, types
from tests import running

_ROOT = pathlib.Path(__file__).parent.parent
_SIZE = 4_000_000


class Pair(NamedTuple):
  left: Any
  right: Any


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=["params", "rest"],
  meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class State:
  params: Any
  rest: Any


def small(value):
  """Returns a nest with one number."""
  return {"value": np.float32(value)}


def save(checkpoints, env_steps, score=0.0):
  checkpoints.save(env_steps, {"run": small(env_steps)}, score)


def value_of(checkpoints, env_steps):
  return float(checkpoints.restore(env_steps, "run", small(0))["value"])


def signature(nest):
  return jax.tree.map(lambda x: (type(x), x.shape, x.dtype), nest)


DAMAGES = {
  "truncated": lambda path: path.write_bytes(path.read_bytes()[:-10]),
  "emptied": lambda path: path.write_bytes(b""),
  "deleted": lambda path: path.unlink(),
  "flipped": lambda path: flip(path, 1),
  "a folder": lambda path: (path.unlink(), path.mkdir()),
}


def flip(path, index):
  content = bytearray(path.read_bytes())
  content[index] ^= 1
  path.write_bytes(content)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_raises_an_error_of_one_line(tmp_path, damage):
  checkpoints = checkpoint.Checkpoints(tmp_path)
  save(checkpoints, 3)
  DAMAGES[damage](tmp_path / "3" / "run")
  assert checkpoints.steps() == [3]
  with pytest.raises(checkpoint.Damaged, match="'run' in checkpoint 3 in") as e:
    value_of(checkpoints, 3)
  assert "\n" not in str(e.value)


_NEST = {"a": np.arange(40, dtype=np.int16), "b": [np.float64(0.1), ()]}


@hypothesis.given(data=strategies.data())
@hypothesis.settings(max_examples=100, deadline=None)
def test_damaged_bytes_are_refused(data):
  """Parts of the file are cut, replaced or repeated."""
  whole = content = checkpoint.to_bytes(_NEST)
  for _ in range(data.draw(strategies.integers(1, 3))):
    start = data.draw(strategies.integers(0, len(content)))
    length = data.draw(strategies.integers(0, len(content) - start))
    noise = data.draw(strategies.binary(max_size=20))
    new = data.draw(strategies.sampled_from(["", noise, content[start:]]))
    content = content[:start] + (new or b"") + content[start + length :]
  try:
    arrays = checkpoint.from_bytes(np.frombuffer(content, np.uint8))
  except checkpoint.Damaged as error:
    assert content != whole
    assert "\n" not in str(error)
  else:
    # The changes may cancel out.
    chex.assert_trees_all_equal(checkpoint.like(arrays, _NEST, "it"), _NEST)


_ANY = strategies.one_of(
  strategies.none(),
  strategies.integers(),
  strategies.floats(),
  strategies.lists(strategies.integers(-2, 2**70), max_size=3),
  strategies.sampled_from(["object", "float32", "S5", "U", "V8", "M8[s]"]),
  strategies.text(max_size=5),
)


@hypothesis.given(index=_ANY | strategies.lists(strategies.tuples(*[_ANY] * 4)))
@hypothesis.example([["a", "object", [0], 0]])
@hypothesis.example([["a", "float32", [-1], 0]])
@hypothesis.example([["a", "float32", [2**70], 0]])
@hypothesis.example([["a", "float32", [0] * 99, 0]])
@hypothesis.example([["a", "S5", [0], 0]])
@hypothesis.settings(max_examples=100, deadline=None)
def test_a_made_up_index_is_refused_or_has_arrays_without_objects(index):
  text = json.dumps(index).encode()
  end = struct.pack("<IQ8s", zlib.crc32(text), len(text), b"seedx-01")
  content = np.frombuffer(text + end, np.uint8)
  try:
    arrays = checkpoint.from_bytes(content)
  except checkpoint.Damaged:
    return
  assert all(isinstance(array, np.ndarray) for array in arrays.values())
  assert not any(array.dtype.hasobject for array in arrays.values())


def test_a_checkpoint_of_an_older_version_is_not_reported_as_damaged(tmp_path):
  older = tmp_path / "7" / "run"
  older.mkdir(parents=True)
  (older.parent / "_CHECKPOINT_METADATA").write_text("{}")
  checkpoints = checkpoint.Checkpoints(tmp_path)
  with pytest.raises(types.ConfigError, match="older version") as caught:
    checkpoints.restore(7, "run", small(0))
  assert not isinstance(caught.value, checkpoint.Damaged)


@pytest.mark.slow
def test_many_saves_leave_nothing_in_memory(tmp_path, monkeypatch):
  monkeypatch.setattr(os, "fsync", lambda _: None)
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=2)
  nest = {str(k): np.zeros((64, 8), np.float32) for k in range(30)}
  process = psutil.Process()

  def used():
    gc.collect()
    return process.memory_info().rss, process.num_threads(), process.num_fds()

  measured = []
  for step in range(351):
    if step in (50, 150, 250, 350):
      measured.append(used())
    checkpoints.save(step, {"run": nest, "acting": nest}, 0.0)
  memory, threads, files = zip(*measured, strict=True)
  assert len({*threads}) == len({*files}) == 1
  # A leak of 20 KiB in each save would add 2 MiB each time. Python's allocator
  # may grow once.
  assert min(np.diff(memory)) < 2**20


def test_saved_arrays_are_restored_exactly(tmp_path):
  rng = np.random.default_rng(0)
  mesh = sharding.mesh(jax.devices()[:4])
  rows = rng.normal(size=(8, 3)).astype(np.float32)
  sharded = jax.device_put(
    rows,
    jax.sharding.NamedSharding(
      mesh, jax.sharding.PartitionSpec(sharding.CORES)
    ),
  )
  assert len(sharded.addressable_shards) == 4
  nest = State(
    params={
      "layers": (Pair(sharded, None), Pair((), {})),
      "everywhere": sharding.replicate(rows[0], mesh),
      "half": jax.numpy.asarray(rows, jax.numpy.bfloat16),
    },
    rest=[
      np.bool_(True),
      np.int64(2**40),
      np.uint8(200),
      np.float64(0.1),
      np.float32(-0.0),
      np.float32(math.nan),
      np.int32(-7),
      rng.random(5) < 0.5,
      np.array([np.inf, -np.inf, 1e-45], np.float32),
      np.asfortranarray(rng.integers(0, 256, (3, 4, 2), np.uint8)),
      (),
    ],
  )
  written = checkpoint.Checkpoints(tmp_path / "run")
  written.save(7, {"run": nest, "acting": {"w": rows}}, 0.0)
  expected = jax.tree.map(np.array, nest)
  shapes = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), expected
  )
  for checkpoints in (written, checkpoint.Checkpoints(tmp_path / "run")):
    for like in (nest, shapes):
      actual = checkpoints.restore(7, "run", like)
      assert jax.tree.structure(actual) == jax.tree.structure(nest)
      assert signature(actual) == signature(jax.tree.map(np.asarray, expected))
      chex.assert_trees_all_equal(actual, expected)
      assert np.signbit(actual.rest[4])
    # Each item can be restored alone.
    alone = checkpoints.restore(7, "acting", {"w": rows})
    chex.assert_trees_all_equal(alone, {"w": rows})


@pytest.mark.parametrize(
  ("keep", "scores", "kept", "best"),
  [
    # Also the first one of every 3 steps.
    ((1, 3), {1: 1.0, 2: 2.0, 4: 3.0, 5: 2.0, 8: 1.0}, [1, 4, 8], 4),
    (2, {1: 5.0, 2: 1.0, 3: 2.0, 4: 3.0}, [1, 3, 4], 1),
    # Some scores are unknown.
    (1, {1: -math.inf, 2: -5.0, 3: -math.inf}, [2, 3], 2),
    # The newest of several best ones counts as the best.
    (1, {1: 2.0, 2: 2.0, 3: 1.0}, [2, 3], 2),
    (None, {1: 2.0, 2: 1.0, 3: 0.0}, [1, 2, 3], 1),
  ],
  ids=str,
)
def test_the_newest_checkpoints_and_the_best_one_are_kept(
  tmp_path, keep, scores, kept, best
):
  for env_steps, score in scores.items():
    # A new instance continues with the checkpoints that exist.
    keeps = keep if isinstance(keep, tuple) else (keep,)
    checkpoints = checkpoint.Checkpoints(
      tmp_path, *keeps, newest_only=["replay"]
    )
    nests = {"run": small(env_steps), "replay": small(env_steps)}
    checkpoints.save(env_steps, nests, score)
    # An existing checkpoint is not written again.
    checkpoints.save(env_steps, {"run": small(99)}, 99.0)
  assert checkpoints.steps() == kept
  assert checkpoints.ranked()[0] == best
  assert [value_of(checkpoints, step) for step in kept] == kept
  *others, newest = kept
  assert checkpoints.restore(newest, "replay") == small(newest)
  for step in others:
    with pytest.raises(checkpoint.Damaged, match="No such file"):
      checkpoints.restore(step, "replay")


def test_a_held_checkpoint_is_kept_until_its_score_arrives(tmp_path):
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=1)
  checkpoints.held |= {1, 2}
  for env_steps in (1, 2, 3):
    checkpoints.save(env_steps, {"run": small(env_steps)}, -math.inf)
  checkpoints.rate(1, 5.0)
  checkpoints.held.clear()
  checkpoints.rate(2, 4.0)
  assert checkpoints.steps() == [1, 3] and checkpoints.ranked() == [1, 3]
  assert value_of(checkpoints, 1) == 1
  checkpoints.rate(2, 9.0)  # Checkpoint 2 has been deleted.
  assert checkpoints.ranked() == [1, 3]


@pytest.mark.parametrize(
  ("env_steps", "name", "like", "reason"),
  [
    (6, "run", {"a": np.zeros(3)}, "checkpoint 6"),
    (5, "acting", {"a": np.zeros(3)}, "'acting'"),
    (5, "run", {"a": np.zeros((3, 1))}, r"'a' of shape \(3, 1\).*\(3,\)"),
    (5, "run", {"a": np.zeros(3, np.float32)}, "float32.*float64"),
    (5, "run", {"a": np.zeros(3), "b": np.zeros(3)}, "structure"),
  ],
  ids=str,
)
def test_another_structure_shape_or_dtype_raises_an_error_of_one_line(
  tmp_path, env_steps, name, like, reason
):
  where = tmp_path / "run"
  written = checkpoint.Checkpoints(where)
  assert written.steps() == written.ranked() == []
  assert not where.exists()
  written.save(5, {"run": {"a": np.arange(3.0)}}, 0.0)
  with pytest.raises(types.ConfigError, match=reason) as caught:
    written.restore(env_steps, name, like)
  assert "\n" not in str(caught.value) and str(where) in str(caught.value)


def test_foreign_files_are_left_alone(tmp_path):
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=1)
  save(checkpoints, 5, score=1.0)
  (tmp_path / "evaluation-5.json").write_text("{}")
  (tmp_path / "6").write_text("a file")
  for name in ("notes", "8.unfinished", "8.removed"):
    (tmp_path / name).mkdir()
    (tmp_path / name / "of mine.txt").write_text("notes")
  (tmp_path / "best").symlink_to("5")
  for opened in (checkpoints, checkpoint.Checkpoints(tmp_path, keep=1)):
    assert opened.steps() == [5] and opened.ranked() == [5]
    assert value_of(opened, 5) == 5
  save(checkpoints, 7)
  assert checkpoints.steps() == [5, 7]
  assert len([*tmp_path.glob("*/of mine.txt")]) == 3
  assert (tmp_path / "evaluation-5.json").exists()


# Each checkpoint contains its step `_SIZE` times, which reveals a mix of two.
_WRITER = f"""
import itertools, sys, numpy as np
from seedx import checkpoint
checkpoints = checkpoint.Checkpoints(sys.argv[1], keep=2)
for step in itertools.count(int(sys.argv[2])):
  nest = {{"value": np.full({_SIZE}, step, np.float32), "step": np.int64(step)}}
  print(step, flush=True)
  checkpoints.save(step, {{"run": nest}}, score=float(-step))
  print("saved", flush=True)
"""
_LIKE = {"value": np.zeros(_SIZE, np.float32), "step": np.int64(0)}


def start_writer(where, first_step):
  return subprocess.Popen(
    [sys.executable, "-c", _WRITER, str(where), str(first_step)],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
    cwd=_ROOT,
  )


def assert_whole(checkpoints):
  """Checks that each listed checkpoint is whole; returns their env steps."""
  steps = checkpoints.steps()
  for step in steps:
    nest = checkpoints.restore(step, "run", _LIKE)
    assert nest["step"] == step
    assert (nest["value"] == step).all()
  assert checkpoints.ranked()[:1] == steps[:1]
  return steps


@pytest.mark.slow
def test_a_kill_during_a_save_leaves_only_whole_checkpoints(tmp_path):
  where, saved, interrupted_saves = tmp_path / "run", 0, 0
  seconds = None
  for part in itertools.cycle((0.0, 0.3, 0.6, 0.9)):
    writer = start_writer(where, saved + 1)
    try:
      if seconds is None:
        assert writer.stdout.readline() == "1\n"
        assert writer.stdout.readline() == "saved\n"
        writer.stdout.readline()
        started = time.monotonic()
        assert writer.stdout.readline() == "saved\n"
        seconds, saved = time.monotonic() - started, 2
      assert writer.stdout.readline() == f"{saved + 1}\n"
      time.sleep(part * seconds)
    finally:
      writer.send_signal(signal.SIGKILL)
      writer.wait()
    printed = writer.stdout.read().split()
    steps = assert_whole(checkpoint.Checkpoints(where))
    last = saved + printed.count("saved")
    # The kill may come after the rename and before the print.
    assert steps[-1] in (last, last + 1) and 1 in steps
    interrupted_saves += steps[-1] == last
    saved = steps[-1]
    if interrupted_saves >= 2 and part == 0.9:
      break
  # The next save deletes the unfinished checkpoints.
  checkpoints = checkpoint.Checkpoints(where, keep=2)
  nest = {"value": np.full(_SIZE, 99, np.float32), "step": np.int64(99)}
  checkpoints.save(99, {"run": nest}, -99.0)
  assert assert_whole(checkpoints) == [1, saved, 99]
  assert {path.name for path in where.iterdir()} == {"1", str(saved), "99"}


@pytest.mark.slow
def test_checkpoints_can_be_read_while_another_process_writes_some(tmp_path):
  """A checkpoint is read whole, or refused because it has been deleted."""
  checkpoints, seen = checkpoint.Checkpoints(tmp_path), set()
  writer = start_writer(tmp_path, 1)
  drain = threading.Thread(target=writer.stdout.read, daemon=True)
  drain.start()

  def read():
    assert writer.poll() is None
    best = checkpoints.ranked()[:1]
    for step in checkpoints.steps():
      try:
        nest = checkpoints.restore(step, "run", _LIKE)
      except types.ConfigError:
        assert step not in checkpoints.steps()
        continue
      assert nest["step"] == step
      assert (nest["value"] == step).all()
      seen.add(step)
    assert best in ([], [1])
    return len(seen) >= 12

  try:
    running.wait_until(read)
  finally:
    writer.kill()
    drain.join(300)
  assert 1 in seen
