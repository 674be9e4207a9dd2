"""Tests of the tables of settings and presets that the site shows."""

import dataclasses
import re

import pytest

from docs import settings
from seedx import types
from seedx.agents import dqn, ppo


def rows(table):
  """Returns the rows of Markdown's tables by their first cell."""
  lines = [x for x in table.splitlines() if x.startswith("|")]
  cells = [[cell.strip() for cell in x.split(" | ")] for x in lines]
  return {first.strip("| "): rest for first, *rest in cells}


def test_a_row_has_a_settings_default_variants_changes_and_text():
  table = rows(settings.settings_tables("seedx.agents.ppo"))
  assert table["`--clip-epsilon`"] == [
    "0.2",
    "Atari: 0.1",
    "during a run",
    "Clip range of the probability ratio. |",
  ]
  assert table["`--entropy-cost`"][:2] == [
    "0.005",
    "Atari: 0.01, MinAtar: 0.01, continuous actions: 0.0",
  ]
  assert table["`--epochs`"][2] == "no"
  assert table["`--clip-values`, `--no-clip-values`"][:2] == ["False", ""]


def test_settings_are_grouped_by_the_class_that_adds_them():
  text = settings.settings_tables("seedx.agents.r2d2")
  headings = re.findall(r"^\*\*(.*)\*\*$", text, re.MULTILINE)
  assert headings[0] == "Hyper-parameters that R2D2 adds to those of DQN."
  assert headings[-1] == "Hyper-parameters of the optimizer."
  # R2D2 has another default of a setting that DQN's base class adds.
  _, own, *others = re.split(r"^\*\*.*\*\*$", text, flags=re.MULTILINE)
  assert "`--burn-in`" in own and "`--n-step`" not in own
  (table,) = [x for x in others if "`--n-step`" in x]
  assert rows(table)["`--n-step`"][0] == "5"


def test_a_changed_config_changes_the_table(monkeypatch):
  @dataclasses.dataclass(frozen=True)
  class Config(ppo.Config):
    """Other hyper-parameters."""

    clip_epsilon: float = 0.3

    def for_images(self):
      return dataclasses.replace(self, clip_epsilon=0.4)

  monkeypatch.setattr(ppo, "Config", Config)
  table = rows(settings.settings_tables("seedx.agents.ppo"))
  assert table["`--clip-epsilon`"][:2] == ["0.3", "Atari: 0.4"]


def test_a_function_of_a_module_has_other_defaults():
  table = rows(settings.settings_tables("seedx.agents.ddpg"))
  assert table["`--actor-period`"][0] == "1"
  table = rows(settings.settings_tables("seedx.agents.ddpg:td3"))
  assert table["`--actor-period`"][0] == "2"


@pytest.mark.parametrize(
  "module",
  [
    "seedx.agents.normalizer",
    "seedx.agents.base",
    "seedx.agents.no",
    "seedx.",
    "seedx.agents.ddpg:no",
  ],
)
def test_a_module_without_a_config_is_refused(module):
  with pytest.raises(types.ConfigError, match="such as seedx"):
    settings.settings_tables(module)


def test_a_preset_lists_its_own_values_and_the_agents():
  lines = settings.presets_table("ppo, seed_vtrace").splitlines()
  assert lines[2] == (
    "| `seedx train ppo` | all | `--total-steps 500000`, `--unroll-length 64` |"
  )
  memory, small, atari, continuous, seed, *_ = lines[3:]
  assert small == "|  | small tasks | `--reward-scale 0.1` |"
  assert memory == "|  | a memory | `--minibatches 4` |"
  assert "| Atari, not measured |" in atari and "`--epochs 4`" in atari
  assert "| continuous actions |" in continuous
  assert {"`--normalize-observations`", "`--num-envs 8`"} <= {
    *continuous.strip("|").rpartition("|")[2].strip().split(", ")
  }
  assert seed == "| `seedx train seed_vtrace` | all | the defaults |"


def test_a_preset_of_an_agent_replaces_values_for_an_environment():
  first, *others = settings.presets_table("anakin_ppo").splitlines()[2:]
  assert "`--epochs 4`" in first
  assert not [x for x in others if "--epochs" in x]


@pytest.mark.parametrize("command", ["no", "ppo --agent a2c", "impala ppo"])
def test_an_experiment_that_does_not_exist_is_refused(command):
  with pytest.raises(types.ConfigError):
    settings.presets_table(command)


def test_variants_that_an_agent_lacks_are_left_out():
  assert not hasattr(dqn.Config, "for_continuous")
  assert "continuous" not in settings.settings_tables("seedx.agents.dqn")
  table = settings.presets_table("a3c --agent dqn, a3c")
  assert table.count("| continuous actions |") == 1


def test_a_preset_may_be_for_mujoco_only():
  first, mujoco = settings.presets_table("td3").splitlines()[2:]
  assert "`--total-steps 20000`" in first
  assert mujoco == (
    "|  | MuJoCo | `--total-steps 1000000`, `--replay-capacity 1000000`,"
    " `--replay-min-steps 25000` |"
  )
