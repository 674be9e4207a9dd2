"""Compiled programs are kept in a directory that only its user may write."""

import grp
import os
import pathlib
import pwd
import stat
import subprocess
import sys

import jax
import pytest

from seedx import types
from seedx.app import compiled

_NAMES = (
  "JAX_COMPILATION_CACHE_DIR",
  "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
)


@pytest.fixture(autouse=True)
def _without_a_cache(monkeypatch, tmp_path):
  """Turns the cache of this process off during a test."""
  before = jax.config.jax_compilation_cache_dir
  seconds = jax.config.jax_persistent_cache_min_compile_time_secs
  for name in _NAMES:
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / ".cache"))
  jax.config.update("jax_compilation_cache_dir", None)
  yield
  jax.config.update("jax_compilation_cache_dir", before)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)


def _cache_folder():
  assert os.environ["JAX_COMPILATION_CACHE_DIR"] == (
    jax.config.jax_compilation_cache_dir
  )
  return pathlib.Path(jax.config.jax_compilation_cache_dir)


def test_the_default_is_a_private_folder_in_the_users_cache(tmp_path):
  compiled.keep()
  home = tmp_path / "home" / ".cache"
  assert _cache_folder().parent == home / "seedx" / "compiled"
  for directory in (home, home / "seedx", _cache_folder()):
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
  assert jax.config.jax_persistent_cache_min_compile_time_secs == 0


def test_another_directory_or_no_cache_can_be_chosen(tmp_path):
  compiled.keep(compiled.OFF)
  assert jax.config.jax_compilation_cache_dir is None
  assert not (tmp_path / "home").exists()
  compiled.keep(str(tmp_path / "other"))
  assert _cache_folder().parent == tmp_path / "other"


@pytest.mark.parametrize("mode", [0o707, 0o770])
@pytest.mark.parametrize("below", ["", "home"])
def test_a_directory_that_others_may_write_is_refused(
  mode, below, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(compiled, "_is_private", lambda group: False)
  shared = tmp_path / "shared"
  (shared / below).mkdir(parents=True)
  shared.chmod(mode)
  with pytest.raises(types.ConfigError, match=f"may write {shared}"):
    compiled.keep(str(shared / below))
  monkeypatch.setenv("XDG_CACHE_HOME", str(shared))
  compiled.keep()
  assert f"other users may write {shared}" in capsys.readouterr().err
  assert jax.config.jax_compilation_cache_dir is None


def test_a_link_to_a_shared_directory_is_refused(tmp_path):
  shared = tmp_path / "shared"
  shared.mkdir()
  shared.chmod(0o777)
  (tmp_path / "link").symlink_to(shared)
  with pytest.raises(types.ConfigError, match="other users may write"):
    compiled.keep(str(tmp_path / "link"))


def test_a_directory_of_another_user_is_refused(tmp_path, monkeypatch):
  (tmp_path / "theirs").mkdir()
  monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
  if tmp_path.stat().st_uid == 0:
    os.chown(tmp_path / "theirs", 12345, -1)
  with pytest.raises(types.ConfigError, match="belongs to another user"):
    compiled.keep(str(tmp_path / "theirs"))


def test_a_folder_of_programs_that_others_may_add_to_is_refused(tmp_path):
  compiled.keep(str(tmp_path))
  folder = _cache_folder()
  jax.config.update("jax_compilation_cache_dir", None)
  for name in _NAMES:
    os.environ.pop(name)
  folder.chmod(0o1777)
  with pytest.raises(types.ConfigError, match=f"may write {folder}"):
    compiled.keep(str(tmp_path))


@pytest.mark.parametrize(
  ("name", "members", "accepted"),
  [
    ("me", [], True),
    ("me", ["me"], True),
    ("me", ["me", "you"], False),
    ("staff", [], False),
  ],
)
def test_only_a_group_of_this_user_alone_may_write(
  name, members, accepted, tmp_path, monkeypatch
):
  user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(os.getgid())
  me = pwd.struct_passwd(["me", *user[1:]])
  own = grp.struct_group([name, *group[1:3], members])
  monkeypatch.setattr(pwd, "getpwuid", lambda number: me)
  monkeypatch.setattr(grp, "getgrgid", lambda number: own)
  (tmp_path / "home").mkdir()
  (tmp_path / "home").chmod(0o775)
  if accepted:
    compiled.keep(str(tmp_path / "home"))
    assert _cache_folder().parent == tmp_path / "home"
  else:
    with pytest.raises(types.ConfigError, match="other users may write"):
      compiled.keep(str(tmp_path / "home"))


def test_a_directory_that_cannot_be_made_is_reported_in_one_line(
  tmp_path, monkeypatch, capsys
):
  (tmp_path / "file").write_text("")
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
  compiled.keep()
  printed = capsys.readouterr().err
  assert printed.startswith("compiled programs are not kept: ")
  assert printed.count("\n") == 1


def test_a_relative_cache_directory_is_ignored(tmp_path, monkeypatch):
  """Otherwise each working directory would get one."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  monkeypatch.setenv("XDG_CACHE_HOME", "relative")
  compiled.keep()
  assert _cache_folder().is_relative_to(tmp_path / "home" / ".cache" / "seedx")
  assert [x.name for x in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("JAX_COMPILATION_CACHE_DIR", "elsewhere"),
    ("JAX_ENABLE_COMPILATION_CACHE", "false"),
  ],
)
def test_environment_variables_of_jax_take_precedence(
  name, value, monkeypatch, tmp_path
):
  monkeypatch.setenv(name, value)
  compiled.keep()
  assert jax.config.jax_compilation_cache_dir is None
  assert not (tmp_path / "home").exists()


def test_machines_with_different_cpus_have_different_folders(tmp_path):
  folders = set()
  for number, flags in enumerate(["sse2", "sse2 avx2", "sse2"]):
    root = tmp_path / str(number)
    (root / "proc").mkdir(parents=True)
    (root / "proc" / "cpuinfo").write_text(
      f"processor : 0\nflags : {flags}\ncpu MHz : {number}\n\nflags : x\n"
    )
    jax.config.update("jax_compilation_cache_dir", None)
    for name in _NAMES:
      os.environ.pop(name, None)
    compiled.keep(str(tmp_path / "kept"), root)
    folders.add(_cache_folder())
  assert len(folders) == 2


def test_programs_used_longest_ago_are_removed(tmp_path, monkeypatch):
  monkeypatch.setattr(compiled, "_LIMIT_BYTES", 250)
  compiled.keep(str(tmp_path / "kept"))
  folder = _cache_folder()
  for age in range(4):
    path = folder / f"program-{age}-cache"
    path.write_bytes(b"0" * 100)
    os.utime(path, (1e9 - age, 1e9 - 10))
  jax.config.update("jax_compilation_cache_dir", None)
  for name in _NAMES:
    os.environ.pop(name)
  compiled.keep(str(tmp_path / "kept"))
  kept = sorted(x.name for x in folder.iterdir())
  assert kept == ["program-0-cache", "program-1-cache"]


@pytest.mark.slow
def test_a_second_start_compiles_nothing(tmp_path):
  environment = {k: v for k, v in os.environ.items() if k not in _NAMES}
  environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
  kept = []
  for number in range(2):
    words = ["train", "ppo", "--total-steps", "2000", "--quiet"]
    subprocess.run(
      [sys.executable, "-m", "seedx", *words, "--run-dir", str(number)],
      cwd=tmp_path,
      env=environment,
      check=True,
    )
    kept.append({x.name for x in (tmp_path / "cache").rglob("*-cache")})
  assert kept[0] == kept[1] and len(kept[0]) > 5
