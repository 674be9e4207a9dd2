"""Checkpoints: what comes back, which are kept, and what a kill leaves."""

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
  """A nest of one number, told apart by it."""
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
  "gone": lambda path: path.unlink(),
  "flipped at the start": lambda path: flip(path, 1),
  "flipped at the end": lambda path: flip(path, -1),
  "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
  "another's": lambda path: path.write_text("{}"),
  "a folder": lambda path: (path.unlink(), path.mkdir()),
}


def flip(path, index):
  content = bytearray(path.read_bytes())
  content[index] ^= 1
  path.write_bytes(content)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_said_in_a_line(tmp_path, damage):
  found = checkpoint.Checkpoints(tmp_path)
  save(found, 3)
  DAMAGES[damage](tmp_path / "3" / "run")
  assert found.steps() == [3]
  with pytest.raises(checkpoint.Damaged, match="'run' in checkpoint 3 in") as e:
    value_of(found, 3)
  assert "\n" not in str(e.value)


_NEST = {"a": np.arange(40, dtype=np.int16), "b": [np.float64(0.1), ()]}


@hypothesis.given(data=strategies.data())
@hypothesis.settings(max_examples=300, deadline=None)
def test_damaged_bytes_are_refused_or_read_as_they_were(data):
  """Whatever befalls the file: cut, flipped, replaced, joined."""
  whole = content = checkpoint.to_bytes(_NEST)
  for _ in range(data.draw(strategies.integers(1, 3))):
    start = data.draw(strategies.integers(0, len(content)))
    length = data.draw(strategies.integers(0, len(content) - start))
    others = data.draw(strategies.binary(max_size=20))
    kept = data.draw(strategies.sampled_from(["", others, content[start:]]))
    content = content[:start] + (kept or b"") + content[start + length :]
  try:
    found = checkpoint.from_bytes(np.frombuffer(content, np.uint8))
  except checkpoint.Damaged as error:
    assert content != whole
    assert "\n" not in str(error)
  else:
    chex.assert_trees_all_equal(checkpoint.like(found, _NEST, "it"), _NEST)


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
def test_an_index_that_somebody_made_up_does_no_harm(index):
  text = json.dumps(index).encode()
  end = struct.pack("<IQ8s", zlib.crc32(text), len(text), b"seedx-01")
  content = np.frombuffer(text + end, np.uint8)
  try:
    found = checkpoint.from_bytes(content)
  except checkpoint.Damaged:
    return
  assert all(isinstance(array, np.ndarray) for array in found.values())
  assert not any(array.dtype.hasobject for array in found.values())


def test_a_checkpoint_of_an_older_version_is_said_to_be_one(tmp_path):
  older = tmp_path / "7" / "run"
  older.mkdir(parents=True)
  (older.parent / "_CHECKPOINT_METADATA").write_text("{}")
  found = checkpoint.Checkpoints(tmp_path)
  with pytest.raises(types.ConfigError, match="older version") as caught:
    found.restore(7, "run", small(0))
  assert not isinstance(caught.value, checkpoint.Damaged)


def test_many_saves_leave_nothing_in_memory(tmp_path, monkeypatch):
  monkeypatch.setattr(os, "fsync", lambda _: None)
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=2)
  nest = {str(k): np.zeros((64, 8), np.float32) for k in range(30)}
  process = psutil.Process()

  def used():
    gc.collect()
    return process.memory_info().rss, process.num_threads(), process.num_fds()

  for step in range(250):
    if step == 50:
      before = used()
    checkpoints.save(step, {"run": nest, "acting": nest}, 0.0)
  after = used()
  assert after[1:] == before[1:]
  # A leak of 20 KiB each would be 4 MiB.
  assert after[0] - before[0] < 2 * 2**20


def test_what_is_saved_comes_back_exactly(tmp_path):
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
  for found in (written, checkpoint.Checkpoints(tmp_path / "run")):
    for like in (nest, shapes):
      actual = found.restore(7, "run", like)
      assert jax.tree.structure(actual) == jax.tree.structure(nest)
      assert signature(actual) == signature(jax.tree.map(np.asarray, expected))
      chex.assert_trees_all_equal(actual, expected)
      assert np.signbit(actual.rest[4])
    # Each item by itself.
    alone = found.restore(7, "acting", {"w": rows})
    chex.assert_trees_all_equal(alone, {"w": rows})


@pytest.mark.parametrize(
  ("keep", "scores", "kept", "best"),
  [
    (2, {1: 5.0, 2: 1.0, 3: 2.0, 4: 3.0}, [1, 3, 4], 1),
    # It is among the newest, and there are no more than these.
    (2, {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}, [3, 4], 4),
    # Nothing is known of some, or of any.
    (1, {1: -math.inf, 2: -5.0, 3: -math.inf}, [2, 3], 2),
    (1, {1: -math.inf, 2: -math.inf}, [2], 2),
    # Of several best ones the newest.
    (1, {1: 2.0, 2: 2.0, 3: 1.0}, [2, 3], 2),
    (None, {1: 2.0, 2: 1.0, 3: 0.0}, [1, 2, 3], 1),
  ],
  ids=str,
)
def test_the_newest_are_kept_and_the_best(tmp_path, keep, scores, kept, best):
  for env_steps, score in scores.items():
    # Also by one that goes on with what there is.
    found = checkpoint.Checkpoints(tmp_path, keep, newest_only=["replay"])
    nests = {"run": small(env_steps), "replay": small(env_steps)}
    found.save(env_steps, nests, score)
    found.save(env_steps, {"run": small(99)}, 99.0)  # It is there already.
  assert found.steps() == kept
  assert found.ranked()[0] == best
  assert [value_of(found, step) for step in kept] == kept
  *others, newest = kept
  assert found.restore(newest, "replay") == small(newest)
  for step in others:
    with pytest.raises(checkpoint.Damaged, match="No such file"):
      found.restore(step, "replay")


def test_a_score_may_come_later_and_a_held_checkpoint_waits_for_it(tmp_path):
  found = checkpoint.Checkpoints(tmp_path, keep=1)
  found.held |= {1, 2}
  for env_steps in (1, 2, 3):
    found.save(env_steps, {"run": small(env_steps)}, -math.inf)
  found.rate(1, 5.0)
  found.held.clear()
  found.rate(2, 4.0)
  assert found.steps() == [1, 3] and found.ranked() == [1, 3]
  assert value_of(found, 1) == 1
  found.rate(2, 9.0)  # It has been deleted.
  assert found.ranked() == [1, 3]


@pytest.mark.parametrize(
  ("env_steps", "name", "like", "reason"),
  [
    (6, "run", {"a": np.zeros(3)}, "checkpoint 6"),
    (5, "acting", {"a": np.zeros(3)}, "'acting'"),
    (5, "run", {"a": np.zeros((3, 1))}, r"'a' of shape \(3, 1\).*\(3,\)"),
    (5, "run", {"a": np.zeros(3, np.float32)}, "float32.*float64"),
    (5, "run", {"b": np.zeros(3)}, "structure"),
    (5, "run", {"a": np.zeros(3), "b": np.zeros(3)}, "structure"),
    (5, "run", {"a": (np.zeros(3),)}, "structure"),
    (5, "run", np.zeros(3), "structure"),
  ],
  ids=str,
)
def test_another_form_is_refused_in_a_sentence(
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


def test_foreign_files_do_no_harm(tmp_path):
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=1)
  save(checkpoints, 5, score=1.0)
  (tmp_path / "evaluation-5.json").write_text("{}")
  (tmp_path / "6").write_text("a file")
  (tmp_path / "notes").mkdir()
  (tmp_path / "notes" / "of mine.txt").write_text("notes")
  (tmp_path / "best").symlink_to("5")
  for found in (checkpoints, checkpoint.Checkpoints(tmp_path, keep=1)):
    assert found.steps() == [5] and found.ranked() == [5]
    assert value_of(found, 5) == 5
  save(found, 7)
  assert found.steps() == [5, 7]
  assert (tmp_path / "notes" / "of mine.txt").read_text() == "notes"
  assert (tmp_path / "evaluation-5.json").exists()


# A checkpoint of `_SIZE` times its own number, so that a mix of two is seen.
_WRITER = f"""
import itertools, sys, numpy as np
from seedx import checkpoint
found = checkpoint.Checkpoints(sys.argv[1], keep=2)
for step in itertools.count(int(sys.argv[2])):
  nest = {{"value": np.full({_SIZE}, step, np.float32), "step": np.int64(step)}}
  print(step, flush=True)
  found.save(step, {{"run": nest}}, score=float(-step))
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
  """Every checkpoint that is said to be there; returns their env steps."""
  steps = checkpoints.steps()
  for step in steps:
    found = checkpoints.restore(step, "run", _LIKE)
    assert found["step"] == step
    assert (found["value"] == step).all()
  assert checkpoints.ranked()[:1] == steps[:1]
  return steps


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_save_leaves_only_whole_ones(tmp_path):
  where, saved, cut = tmp_path / "run", 0, 0
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
    said = writer.stdout.read().split()
    steps = assert_whole(checkpoint.Checkpoints(where))
    last = saved + said.count("saved")
    # One that was renamed is there, though nobody could say so any more.
    assert steps[-1] in (last, last + 1) and 1 in steps
    cut += steps[-1] == last
    saved = steps[-1]
    if cut >= 2 and part == 0.9:  # Else no save was under way.
      break
  # What is left of the others goes.
  checkpoints = checkpoint.Checkpoints(where, keep=2)
  nest = {"value": np.full(_SIZE, 99, np.float32), "step": np.int64(99)}
  checkpoints.save(99, {"run": nest}, -99.0)
  assert assert_whole(checkpoints) == [1, saved, 99]
  assert {path.name for path in where.iterdir()} == {"1", str(saved), "99"}


@pytest.mark.slow
def test_another_process_reads_while_one_writes(tmp_path):
  """It gets what it asked for as a whole, or is told that it has gone."""
  checkpoints, seen = checkpoint.Checkpoints(tmp_path), set()
  writer = start_writer(tmp_path, 1)
  said = threading.Thread(target=writer.stdout.read, daemon=True)
  said.start()

  def read():
    assert writer.poll() is None
    best = checkpoints.ranked()[:1]
    for step in checkpoints.steps():
      try:
        found = checkpoints.restore(step, "run", _LIKE)
      except types.ConfigError:
        assert step not in checkpoints.steps()
        continue
      assert found["step"] == step
      assert (found["value"] == step).all()
      seen.add(step)
    assert best in ([], [1])
    return len(seen) >= 12

  try:
    running.wait_until(read)
  finally:
    writer.kill()
    said.join(300)
  assert 1 in seen
