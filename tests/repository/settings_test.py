"""Tests of the tables of settings and presets that the site shows."""

import re

import pytest

from docs import settings
from seedx import types


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


@pytest.mark.parametrize(
  "module",
  [
    "seedx.agents.normalizer",
    "seedx.agents.no",
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
