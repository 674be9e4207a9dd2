"""Directories for temporary files and sockets, with an odd TMPDIR."""

import os
import stat
import tempfile

import pytest

from seedx import app, types, wire
from seedx.app import scratch
from seedx.wire import serving
from tests.app import cases


@pytest.fixture
def long_folder(tmp_path, monkeypatch):
  folder = tmp_path / ("x" * 200)
  folder.mkdir()
  monkeypatch.setattr(tempfile, "tempdir", str(folder))
  monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
  return folder


def test_sockets_are_in_a_private_folder_with_a_short_path(long_folder):
  assert not wire.has_room(str(long_folder))
  with scratch.folder_for_sockets("seedx-") as folder:
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    server = serving.Server(f"unix:{folder}/server-12", 1)
    server.start()
    # Messages have a socket of their own, whose name is longer.
    assert sorted(os.listdir(folder)) == ["server-12", "server-12-messages"]
    server.stop()
  assert not os.path.exists(folder) and not os.listdir(long_folder)


def test_the_users_runtime_folder_comes_first(
  long_folder, tmp_path_factory, monkeypatch
):
  with tempfile.TemporaryDirectory(dir="/tmp") as runtime:
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    with scratch.folder_for_sockets("seedx-") as folder:
      assert os.path.dirname(folder) == runtime


def test_a_path_that_is_short_enough_is_used(monkeypatch):
  with tempfile.TemporaryDirectory(dir="/tmp") as parent:
    monkeypatch.setattr(tempfile, "tempdir", parent)
    with scratch.folder_for_sockets("seedx-") as folder:
      assert os.path.dirname(folder) == parent


def test_no_usable_folder_is_one_line_with_the_remedy(long_folder, monkeypatch):
  monkeypatch.setattr(scratch, "_SHORT", ("/proc",))
  with pytest.raises(types.ConfigError, match=r"a short path.*set TMPDIR"):
    scratch.folder_for_sockets("seedx-")
  monkeypatch.setattr(tempfile, "tempdir", "/proc")
  for make in (scratch.folder, scratch.folder_for_sockets):
    with pytest.raises(types.ConfigError, match=r"temporary files.*set TMPDIR"):
      make("seedx-")


def test_an_address_with_a_long_path_is_refused(tmp_path):
  wire.check_address(f"unix:{'x' * 107}")
  with pytest.raises(
    types.ConfigError, match=r"at most 107 bytes.*found one of"
  ):
    wire.check_address(f"unix:/{'x' * 107}")


@pytest.mark.slow
def test_a_run_starts_its_processes_despite_a_long_path(long_folder, tmp_path):
  config = cases.config_of("seed", "vtrace")
  run = app.train(config, run_dir=str(tmp_path / "run"), quiet=True)
  assert run.metrics["learner_steps"] > 0 and not os.listdir(long_folder)
