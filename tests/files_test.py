"""Directories from other people: nothing outside of them is read or changed."""

import os
import pathlib
import time

import pytest

from seedx import files, types
from tests import planted_files

_SECRET = "the user's own"


@pytest.fixture
def outside(tmp_path):
  """Yields a folder, and checks that its content has not changed."""
  folder = tmp_path / "outside"
  folder.mkdir()
  (folder / "own").write_text(_SECRET)
  yield folder
  assert [x.name for x in folder.iterdir()] == ["own"]
  assert (folder / "own").read_text() == _SECRET
  assert (folder / "own").stat().st_nlink <= 2


@pytest.fixture
def folder(tmp_path):
  (tmp_path / "run").mkdir()
  return files.Folder(tmp_path / "run")


@pytest.mark.parametrize("kind", planted_files.PLANTED)
def test_only_regular_files_are_opened(kind, folder, outside):
  planted_files.PLANTED[kind](folder / "a", outside)
  began = time.monotonic()
  for mode in ("r", "a", "x"):
    with pytest.raises(OSError, match="is not a regular file"):
      folder.open("a", mode)
  assert time.monotonic() - began < 1


@pytest.mark.parametrize("kind", [*planted_files.PLANTED, *planted_files.FILES])
def test_writing_replaces_any_entry_but_a_directory(kind, folder, outside):
  (planted_files.PLANTED | planted_files.FILES)[kind](folder / "a", outside)
  if kind == "a directory":
    with pytest.raises(OSError):
      folder.write("a", "new")
  else:
    folder.write("a", "new")
    assert folder.read("a") == "new"
  assert folder.names() == ["a"]


def test_a_file_with_a_second_name_is_read_but_not_appended_to(folder, outside):
  planted_files.FILES["a second name"](folder / "a", outside)
  assert folder.read("a") == _SECRET
  with pytest.raises(OSError, match="second name"):
    folder.open("a", "a")


def test_a_huge_file_is_refused_before_it_is_read(folder, outside):
  planted_files.FILES["a sparse file"](folder / "a", outside)
  began = time.monotonic()
  with pytest.raises(OSError, match="1,099,511,627,776 bytes"):
    folder.read("a")
  assert time.monotonic() - began < 1


def test_a_link_is_not_used_as_a_subdirectory(folder, outside):
  (folder / "checkpoints").symlink_to(outside)
  linked = folder.folder("checkpoints")
  for use in (
    linked.names,
    lambda: linked.open("own"),
    lambda: linked.open("new", "a"),
    lambda: linked.write("new", "x"),
    lambda: linked.remove("own"),
    lambda: linked.rename("own", "new"),
    lambda: linked.make_new("new"),
    lambda: linked.folder("more").make(),
  ):
    with pytest.raises(OSError):
      use()
  linked.remove_folder("own")
  folder.remove_folder("checkpoints")
  assert (folder / "checkpoints").is_symlink()


def test_removing_a_directory_does_not_follow_links(folder, outside):
  (folder / "old").mkdir()
  (folder / "old" / "link").symlink_to(outside)
  folder.remove_folder("old")
  assert folder.names() == []


def test_subdirectories_are_listed_without_links_and_up_to_a_limit(
  folder, outside
):
  (folder / "link").symlink_to(outside)
  (folder / "file").touch()
  for name in ("a", "b"):
    (folder / name).mkdir()
  names = sorted(os.path.basename(x) for x in folder.folders(100))
  assert names == ["a", "b"]
  assert len(folder.folders(3)) in (1, 2) and not folder.folders(0)
  inner = folder.folders(100)[0]
  inner.write("new", "text")
  assert inner.read("new") == "text"


def test_links_to_the_directory_are_followed(tmp_path, folder):
  (tmp_path / "short").symlink_to(tmp_path / "run")
  files.Folder(tmp_path / "short").write("a", "text")
  assert folder.read("a") == "text"


def test_a_run_directory_is_made_and_keeps_its_files(tmp_path):
  folder = files.open_folder(str(tmp_path / "a" / "b"))
  assert str(folder) == str(tmp_path / "a" / "b")
  assert folder.names() == []
  folder.write("config.json", "{}")
  assert files.open_folder(folder).read("config.json") == "{}"


@pytest.mark.parametrize("name", ["file", "/proc"])
def test_a_directory_that_cannot_be_written_is_an_error(tmp_path, name):
  (tmp_path / "file").touch()
  with pytest.raises(types.ConfigError, match=str(tmp_path / name)):
    files.open_folder(tmp_path / name)


def test_a_directory_with_a_taken_name_is_refused(tmp_path, outside):
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "log of mine").touch()
  (tmp_path / "run" / "checkpoints").symlink_to(outside / "nothing")
  with pytest.raises(types.ConfigError, match="without checkpoints, which"):
    files.open_folder(tmp_path / "run", ["checkpoints", "config.json"])
  assert len(list((tmp_path / "run").iterdir())) == 2


def test_new_directories_have_different_names(tmp_path):
  made = [files.open_new_folder(tmp_path / "runs", "now") for _ in range(3)]
  assert [pathlib.Path(x).name for x in made] == ["now", "now-2", "now-3"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
  path = tmp_path / "a.json"
  files.write_file(path, "first")
  files.write_file(path, b"second")
  assert path.read_text() == "second"
  assert [x.name for x in tmp_path.iterdir()] == ["a.json"]
  with pytest.raises(types.ConfigError, match="cannot write"):
    files.write_file(tmp_path / "nowhere" / "a.json", "third")
