"""A learner on any machine of a cluster, and the directory that it finds."""

import pathlib
import threading

import numpy as np
import pytest

from seedx import checkpoint, signals, types
from seedx.app import cluster_learner
from seedx.app.runs import checkpointer, run_folders
from seedx.launch import config as launch_config
from seedx.launch import ray_cluster

CONFIG = launch_config.Config(launcher="ray", learner_on_cluster=True)


@pytest.fixture(autouse=True)
def _on_this_machine(monkeypatch):
  def here(work, config, stop, ending):
    assert config is CONFIG
    return work(stop, ending)

  monkeypatch.setattr(ray_cluster, "elsewhere", here)


def trained(run_dir, resumes=False, stop=None):
  """Returns the directory and `resumes` that the work receives."""
  work = lambda run_dir, resumes, stop, ending: (run_dir, resumes)  # noqa: E731
  stop = stop or threading.Event()
  return cluster_learner.run(
    work, CONFIG, run_dir, resumes, stop, signals.Ending()
  )


def test_a_run_begins_or_is_resumed(tmp_path, monkeypatch):
  """The work receives an absolute path, which is valid on all machines."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "run").mkdir()
  assert trained(pathlib.Path("run")) == (tmp_path / "run", False)
  (tmp_path / "run" / "config.json").touch()
  assert trained(tmp_path / "run", resumes=True) == (tmp_path / "run", True)


def test_a_run_that_another_machine_began_continues(tmp_path, capfd):
  (tmp_path / "config.json").touch()
  # No checkpoint has been saved.
  assert trained(tmp_path) == (tmp_path, False)
  assert not (tmp_path / "config.json").exists()
  assert "continues from the beginning" in capfd.readouterr().err
  (tmp_path / "config.json").touch()
  saved = checkpoint.Checkpoints(checkpointer.directory(tmp_path))
  saved.save(30, {"parameters": np.zeros(2)}, 0.0)
  assert trained(tmp_path) == (tmp_path, True)
  assert "continues from checkpoint 30" in capfd.readouterr().err


def test_a_learner_waits_for_the_previous_one(tmp_path, monkeypatch):
  """A learner may still write after the cluster has lost its machine."""
  monkeypatch.setattr(cluster_learner, "_LOOK_SECONDS", 0.01)
  claim = run_folders.claimed(tmp_path)
  claim.__enter__()
  release = threading.Timer(0.2, claim.__exit__, (None, None, None))
  release.start()
  assert trained(tmp_path) == (tmp_path, False)
  assert not release.is_alive()


def test_a_learner_waits_for_a_limited_time(tmp_path, monkeypatch):
  with run_folders.claimed(tmp_path):
    stop = threading.Event()
    stop.set()
    with pytest.raises(types.ConfigError, match="another process"):
      trained(tmp_path, stop=stop)
    monkeypatch.setattr(cluster_learner, "_LEFT_SECONDS", 0.0)
    with pytest.raises(types.ConfigError, match="another process"):
      trained(tmp_path)


def test_a_directory_that_is_not_shared_is_refused(tmp_path):
  with pytest.raises(types.ConfigError, match="file system that all machines"):
    trained(tmp_path / "of_another_machine")
