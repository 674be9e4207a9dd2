"""Settings that a user's own pipeline and agent define as fields."""

import copy
import dataclasses
import json
import pickle
from collections.abc import Mapping
from typing import Any, Literal

import pytest

from seedx import envs, types
from seedx.agents import a2c, base
from seedx.app import requests
from seedx.app.runs import records, run_groups
from seedx.app.settings import experiments
from seedx.pipelines import sync


@dataclasses.dataclass(frozen=True)
class Agent(a2c.Config):
  """An agent with a new setting of each kind, and another default discount."""

  discount: float = 0.9
  kl_cost: float = types.setting(0.5, changes="run_time", low=0.0)
  rates: tuple[float, ...] = types.setting((0.1, 0.2), high=1.0)
  kind: Literal["soft", "hard"] = "soft"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(sync.Config):
  """A pipeline with a setting for each value of `changes`."""

  agent: base.Config = Agent()
  width: int = 8
  backlog: int = types.setting(4, changes="resume", labels=False)
  length: int = types.setting(5, changes="resume", alike=True)
  port: int = types.setting(0, changes="process", labels=False)
  verbose: bool = types.setting(False, changes="start")
  extra: Mapping[str, Any] = types.setting({"a": 1})


def written(path, config):
  """Writes a run with a config; reads and returns the config and the run."""
  path.mkdir()
  records.write(path, records.of(config, config, None))
  line = {"env_steps": 1, "wall_seconds": 1.0, "episode_return": 1.0}
  (path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
  return records.read(path), run_groups.read(path)


@pytest.mark.parametrize(
  ("name", "value", "expected"),
  [
    ("kl_cost", -1.0, "kl_cost of at least 0.0, found -1.0"),
    ("rates", (0.5, 2.0), "found 2.0"),
  ],
)
def test_a_value_out_of_its_range_is_refused(name, value, expected):
  with pytest.raises(types.ConfigError, match=expected):
    Agent(**{name: value})


def test_settings_that_change_at_run_time_are_in_the_agents_state():
  hyperparameters = base.hyperparameters(Agent(kl_cost=0.25))
  added = {"kl_cost": 0.25, "discount": 0.9}
  assert hyperparameters == base.hyperparameters(a2c.Config()) | added


def test_a_config_can_be_copied_and_pickled():
  config = Config(backlog=7)
  for other in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
    assert other == config == dataclasses.replace(Config(), backlog=7)
  assert config.extra == {"a": 1} and config.extra is not Config().extra


def test_a_resume_restores_and_changes_only_what_settings_allow(tmp_path):
  old = Config(width=9, backlog=6, port=80, verbose=True)
  saved, _ = written(tmp_path / "run", old)
  assert "verbose" not in saved.options and saved.options["port"] == 80
  restored = records.restored(Config(port=81), saved)
  assert restored == dataclasses.replace(old, port=81, verbose=False)
  assert records.not_restored(restored, saved) == "--port 80"
  changed = dataclasses.replace(restored, backlog=1, length=1, verbose=True)
  records.check_resumed(saved, changed, "")
  for wrong in (
    dataclasses.replace(old, width=1),
    dataclasses.replace(old, agent=Agent(kl_cost=0.1)),
  ):
    with pytest.raises(types.ConfigError, match="--backlog, --length, --port"):
      records.check_resumed(saved, wrong, "")


def test_a_run_with_settings_that_cannot_be_read_does_not_begin(tmp_path):
  with pytest.raises(types.ConfigError, match="action_mask of at most 4,096"):
    written(tmp_path / "name", Config(env=envs.Config(action_mask="A" * 5000)))
  text = {"text": "A" * (2**20 - 3000)}
  saved, _ = written(tmp_path / "text", Config(extra=text))
  assert saved.options["extra"] == text
  with pytest.raises(types.ConfigError, match="less than 1,048,576 bytes in"):
    written(tmp_path / "texts", Config(extra={"text": "A" * 2**20}))


def test_only_some_settings_must_be_equal_on_all_learner_hosts():
  first, second = (
    records.settings_of_all_hosts(config)
    for config in (Config(), Config(backlog=1, port=1, verbose=True))
  )
  assert first == second
  assert {"width", "length", "kl_cost"} <= {*first}


def test_runs_are_labelled_by_settings_with_labels(tmp_path):
  configs = Config(), Config(backlog=1, port=1, seed=1), Config(width=1)
  runs = [written(tmp_path / str(i), x)[1] for i, x in enumerate(configs)]
  labels = [x.partition(" ")[2] for x in run_groups.labels(runs)]
  assert labels == ["--width 8", "--width 8", "--width 1"]


def test_settings_of_a_process_or_of_saving_have_no_labels():
  asked = requests.of(experiments.load("seed_vtrace"))
  unlabelled = records.of(asked.run, asked, "seed_vtrace").unlabelled
  assert {"role", "address", "seed", "presets", "checkpoint_every_seconds"} <= {
    *unlabelled
  }
  assert {"total_steps", "learner_devices"}.isdisjoint(unlabelled)
