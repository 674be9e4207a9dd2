"""Tests of the agents' pages: what they state about commands and results."""

import pathlib
import re

import pytest

from docs import settings
from seedx.app import requests
from seedx.app.settings import configs, experiments, wording
from tests.repository import readme_test

_DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGES = {x.stem: x.read_text() for x in sorted((_DOCS / "agents").glob("*.md"))}
_AGENTS = (
  "a2c",
  "alphazero",
  "ddpg",
  "dqn",
  "ppo",
  "r2d2",
  "rainbow",
  "sac",
  "td3",
  "vtrace",
)
# Agents that are a function of another agent's module.
_CONFIGS = {"td3": "ddpg:td3"}
# Commands with options in the running text or in a table; `settings` parses the
# agents, and other tests ask all experiments for help.
COMMANDS = sorted(
  {
    x
    for text in PAGES.values()
    for x in re.findall(r"`seedx (train \w+ --(?!agent|help).*?)`", text)
    if not x.endswith("--help")
  }
)


def presets(text):
  """Returns the commands whose presets a page shows."""
  (commands,) = re.findall(r"```\{presets\} (.*)\n", text)
  return [command.strip() for command in commands.split(",")]


def section(text, title):
  """Returns a section of a page, without its code."""
  (body,) = re.findall(rf"^## {title}\n(.*?)(?=^## )", text, re.M | re.S)
  return re.sub(r"`[^`]*`", "", body)


def numbers(text):
  """Returns the numbers in a text, such as -73.3, 4,972 and 428k."""
  ends_of_ranges = re.sub(r"(?<=\w)-(?=\d)", " ", text)
  return set(re.findall(r"(?<![\w.])-?\d[\d.,]*(?<![.,])[kM]?", ends_of_ranges))


def trained():
  """Returns the cells of the table of agents and pipelines, by agent."""
  rows = [
    [cell.strip(" `") for cell in line.strip("|").split("|")]
    for line in (_DOCS / "agents.md").read_text().splitlines()
    if re.match(
      r"\| (agent|A2C|V-trace|PPO|DQN|R2D2|Rainbow|DDPG|TD3|SAC|AlphaZero) \|",
      line,
    )
  ]
  return {
    row[0].lower().replace("-", ""): {
      pipeline: cell
      for pipeline, cell in list(zip(rows[0], row, strict=True))[3:]
      if cell != "-"
    }
    for row in rows[1:]
  }


def test_each_agent_has_a_page_with_its_settings_and_presets():
  assert sorted(PAGES) == sorted(_AGENTS)
  for name, text in PAGES.items():
    config = f"seedx.agents.{_CONFIGS.get(name, name)}"
    assert f"```{{settings}} {config}\n" in text
    assert settings.settings_tables(config)
    assert settings.presets_table(", ".join(presets(text)))
    assert f"](agents/{name}.md)" in (_DOCS / "agents.md").read_text()


def test_the_pages_show_the_presets_of_all_experiments():
  commands = [x for text in PAGES.values() for x in presets(text)]
  assert {x.split()[0] for x in commands} == {*experiments.shipped()}


@pytest.mark.parametrize("name", _AGENTS)
def test_a_page_has_the_pipelines_and_presets_of_the_overview(name):
  row = r"^\| `(\w+)` \| (?:`seedx train (.*)`|(library)) \|$"
  listed = re.findall(row, PAGES[name], re.MULTILINE)
  expected = trained()[name]
  assert {p: command or library for p, command, library in listed} == expected
  commands = {x for x in expected.values() if x != "library"}
  assert {*presets(PAGES[name])} == commands


@pytest.mark.parametrize("name", _AGENTS)
def test_a_pages_results_are_those_of_the_pages_of_results(name):
  # Seeds, and counts of seeds, devices and environments.
  small = {str(i) for i in range(5)}
  stated = numbers(section(PAGES[name], "Results"))
  measured = "\n".join(x.read_text() for x in _DOCS.glob("results*.md"))
  assert stated - small and not stated - small - numbers(measured)


def test_numbers_are_read_from_text():
  text = "499.5 (-89.2 to 1,442), 428k-563k, 70.7M; `x 3`, R2D2, 2 x 1,024."
  assert numbers(re.sub(r"`[^`]*`", "", text)) == {
    "499.5",
    "-89.2",
    "1,442",
    "428k",
    "563k",
    "70.7M",
    "2",
    "1,024",
  }


@pytest.mark.parametrize("name", _AGENTS)
def test_flags_in_the_text_exist(name):
  existing = {"--help", "--no-greedy"}
  for command in presets(PAGES[name]):
    experiment, _, agent = command.partition(" --agent ")
    asked = requests.of(experiments.load(experiment), agent)
    for setting in configs.settings(asked).values():
      flag = wording.flag(setting.name)
      existing |= {flag, f"--no-{flag[2:]}"}
  text = re.sub(r"`seedx [^`]*`", "", PAGES[name])
  flags = {
    flag
    for code in re.findall(r"`(--[^`]*)`", text)
    for flag in re.findall(r"--[\w-]+", code)
  }
  assert flags and not flags - existing


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_the_text_can_be_parsed(command, monkeypatch):
  _, name, *words = command.split()
  readme_test.parse(name, words, monkeypatch)
