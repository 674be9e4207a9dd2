"""Recordings on disk: episodes as written, damage, and false claims."""

import errno
import json
import os

import chex
import dm_env
import numpy as np
import pytest

from seedx import checkpoint, files, recordings, types
from seedx.recordings import specs, storage
from tests import planted_files

SPEC = types.EnvironmentSpec(
  observation={
    "board": dm_env.specs.BoundedArray((2,), np.int32, 0, 9),
    "x": dm_env.specs.Array((), np.float32),
  },
  action=dm_env.specs.BoundedArray((1,), np.float32, -1.0, 2.0),
)
DESCRIPTION = recordings.Description({"env": "Mine-v1"}, SPEC, "random")


def episode(length=3, seed=0, **fields):
  """Returns an episode whose time steps are numbered from `seed`."""
  numbers = seed + np.arange(length)
  whole = recordings.Episode(
    observation={
      "board": np.stack([numbers % 10] * 2, 1).astype(np.int32),
      "x": numbers.astype(np.float32),
    },
    action=np.full((length, 1), 0.5, np.float32),
    reward=np.where(np.arange(length), 1.0, 0.0).astype(np.float32),
    discount=np.where(np.arange(length) < length - 1, 1, 0).astype(np.float32),
    seed=seed,
    episode_return=length - 1.0,
  )
  return whole._replace(**fields)


def write(path, *episodes):
  with recordings.Writer(str(path), DESCRIPTION) as writer:
    for each in episodes:
      writer.add(each)
  return writer


def read(path):
  return list(recordings.Recording(str(path)).episodes())


def test_episodes_are_read_as_they_were_written(tmp_path):
  written = [episode(3), episode(2, 7, episode_return=float("nan"))]
  write(tmp_path / "data", *written)
  recording = recordings.Recording(str(tmp_path / "data"))
  assert recording.description == DESCRIPTION
  for old, new in zip(written, recording.episodes(), strict=True):
    chex.assert_trees_all_equal(old, new)
    assert new.step_type.tolist() == [0, *[1] * (len(new.reward) - 2), 2]


def test_parts_are_bounded_and_read_in_order(tmp_path, monkeypatch):
  monkeypatch.setattr(storage, "_PART_BYTES", 200)
  written = [episode(4, seed) for seed in range(9)]
  write(tmp_path, *written)
  assert recordings.Recording(str(tmp_path)).num_parts == 3
  assert [x.seed for x in read(tmp_path)] == [*range(9)]


def test_a_full_disk_is_an_error_in_one_line(tmp_path, monkeypatch):
  def fail(self, name, content):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  writer = recordings.Writer(str(tmp_path), DESCRIPTION)
  writer.add(episode())
  monkeypatch.setattr(files.Folder, "write", fail)
  with pytest.raises(types.ConfigError, match="No space left"):
    writer.close()


def test_parts_without_a_description_are_not_written_over(tmp_path):
  path = tmp_path / "part-000000"
  path.write_text("mine")
  with pytest.raises(types.ConfigError, match="without part-000000"):
    write(tmp_path, episode())
  assert [*tmp_path.iterdir()] == [path] and path.read_text() == "mine"


def test_a_recording_is_continued_with_new_seeds(tmp_path):
  write(tmp_path, episode(3, 4), episode(3, 2))
  with recordings.Writer(str(tmp_path), DESCRIPTION) as writer:
    counts = writer.num_episodes, writer.env_steps, writer.next_seed
    assert (*counts, writer.returns) == (2, 4, 5, [2.0, 2.0])
    with pytest.raises(types.ConfigError, match="another process is recording"):
      recordings.Writer(str(tmp_path), DESCRIPTION)
    writer.add(episode(5, 9))
  assert [x.seed for x in read(tmp_path)] == [4, 2, 9]


@pytest.mark.parametrize(
  "changed",
  [
    recordings.Description({"env": "Other-v1"}, SPEC, "random"),
    recordings.Description({"env": "Mine-v1"}, SPEC, "greedy"),
    recordings.Description(
      {"env": "Mine-v1"},
      types.EnvironmentSpec(SPEC.observation["x"], SPEC.action),
      "random",
    ),
  ],
  ids=["env", "policy", "spec"],
)
def test_other_episodes_are_not_added(tmp_path, changed):
  write(tmp_path, episode())
  with pytest.raises(types.ConfigError, match="recording with the same"):
    recordings.Writer(str(tmp_path), changed)
  assert len(read(tmp_path)) == 1


def wrong_numbers():
  good = episode(4)
  nan = np.array([0, 1, np.nan, 1], np.float32)
  x, board = good.observation["x"], good.observation["board"]
  yield "finite numbers", {"reward": nan}
  yield "finite numbers", {"observation": {"x": nan, "board": board}}
  yield "bounds of the spec", {"observation": {"x": x, "board": board + 9}}
  yield "actions within", {"action": good.action + 2}
  yield "discounts from 0 to 1", {"discount": good.discount * 2}
  yield "discounts from 0 to 1", {"discount": -good.discount}
  yield "reward 0 and discount 1", {"reward": good.reward + 1}
  yield "reward 0 and discount 1", {"discount": 0 * good.discount}
  yield "seeds from 0", {"seed": -1}
  yield "finite returns", {"episode_return": float("inf")}
  yield "another structure", {"observation": {"x": x}}
  yield "of shape", {"observation": {"x": x, "board": board[:, :1]}}
  yield "of shape", {"reward": good.reward.astype(np.float64)}


@pytest.mark.parametrize(("message", "fields"), wrong_numbers())
def test_what_a_part_claims_is_checked(tmp_path, message, fields):
  write(tmp_path, episode(4, **fields))
  with pytest.raises(types.ConfigError, match=message) as caught:
    read(tmp_path)
  assert "\n" not in str(caught.value)


def test_lengths_are_checked_against_the_arrays(tmp_path):
  write(tmp_path, episode(4))
  path = tmp_path / "part-000000"
  content = np.frombuffer(path.read_bytes(), np.uint8)
  for length in ([2**62, 2**62], [3], [], [1, 3], [-2, 6]):
    arrays = checkpoint.from_bytes(content)
    arrays["length"] = np.array(length, np.int64)
    path.write_bytes(checkpoint.to_bytes(arrays))
    with pytest.raises(types.ConfigError):
      read(tmp_path)


DAMAGES = {
  "truncated": lambda path: path.write_bytes(path.read_bytes()[:-10]),
  "emptied": lambda path: path.write_bytes(b""),
  "a folder": lambda path: (path.unlink(), path.mkdir()),
  "flipped": lambda path: path.write_bytes(b"\1" + path.read_bytes()[1:]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_is_refused_in_one_line(tmp_path, damage):
  write(tmp_path, episode())
  DAMAGES[damage](tmp_path / "part-000000")
  with pytest.raises(checkpoint.Damaged) as caught:
    read(tmp_path)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["recording.json", "part-000000"])
@pytest.mark.parametrize("kind", planted_files.PLANTED)
def test_planted_files_are_not_read(tmp_path, name, kind):
  write(tmp_path / "data", episode())
  (tmp_path / "data" / name).unlink()
  planted_files.PLANTED[kind](tmp_path / "data" / name, tmp_path / "outside")
  with pytest.raises(types.ConfigError):
    read(tmp_path / "data")


def test_a_missing_part_is_noticed(tmp_path, monkeypatch):
  monkeypatch.setattr(storage, "_PART_BYTES", 0)
  write(tmp_path, episode(), episode(), episode())
  (tmp_path / "part-000001").unlink()
  with pytest.raises(types.ConfigError, match="none with the number 1"):
    recordings.Recording(str(tmp_path))


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("format", 2),
    ("env", []),
    ("policy", "x" * 5000),
    ("spec", {}),
    ("spec", {**specs.to_json(SPEC), "action": {"kind": "array"}}),
    ("spec", {**specs.to_json(SPEC), "hidden": ["y"]}),
    ("spec", {**specs.to_json(SPEC), "frames_per_step": 0}),
  ],
)
def test_a_description_is_checked(tmp_path, name, value):
  write(tmp_path, episode())
  path = tmp_path / "recording.json"
  path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
  with pytest.raises(types.ConfigError, match=r"recording\.json") as caught:
    read(tmp_path)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  "leaf",
  [
    {"kind": "array", "shape": [2], "dtype": "object"},
    {"kind": "array", "shape": [2], "dtype": "i4,i4"},
    {"kind": "array", "shape": [2**40], "dtype": "int8"},
    {"kind": "array", "shape": [-1], "dtype": "int8"},
    {"kind": "array", "shape": [1] * 99, "dtype": "int8"},
    {"kind": "bounded", "shape": [2], "dtype": "int8", "minimum": 0},
    {"kind": "discrete", "shape": [], "dtype": "int8", "num_values": 1000},
    {"kind": "nothing"},
    {"dict": []},
    [],
  ],
  ids=repr,
)
def test_a_spec_from_a_file_is_checked(leaf):
  content = {**specs.to_json(SPEC), "observation": leaf}
  with pytest.raises(types.ConfigError, match="spec of an environment"):
    specs.from_json(content)


def test_nests_that_are_too_deep_are_refused():
  leaf = {"kind": "array", "shape": [], "dtype": "int8"}
  for _ in range(40):
    leaf = {"list": [leaf]}
  with pytest.raises(types.ConfigError, match="too many levels"):
    specs.from_json({**specs.to_json(SPEC), "observation": leaf})


def test_all_kinds_of_specs_are_the_same_after_json():
  leaves = (
    dm_env.specs.Array((2, 3), np.float32),
    dm_env.specs.BoundedArray((2,), np.float32, [-np.inf, -1.0], np.inf),
    types.ImageArray((1, 8, 8), np.float32, 0.0, 1.0),
    dm_env.specs.DiscreteArray(5, np.int32),
    types.MultiDiscreteArray(np.array([2, 3]), np.int32),
    types.HybridArray(1, np.array([0.0, -np.inf]), np.array([2.0, np.inf])),
  )
  spec = types.EnvironmentSpec(
    {"a": leaves, "b": [leaves[0]]}, leaves[3], 4, "b", hidden=("a",)
  )
  read = specs.from_json(json.loads(json.dumps(specs.to_json(spec))))
  assert read == spec
  assert [type(x) for x in read.observation["a"]] == [type(x) for x in leaves]
