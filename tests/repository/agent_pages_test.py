"""Tests of the agents' pages: their flags and commands exist."""

import pathlib
import re

import pytest

from seedx.app import requests
from seedx.app.settings import configs, experiments, wording
from tests.repository import documentation

_AGENTS = pathlib.Path(__file__).parents[2] / "docs" / "agents"
PAGES = {x.stem: x.read_text() for x in sorted(_AGENTS.glob("*.md"))}
# Commands with options in the running text or in a table.
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


@pytest.mark.parametrize("name", PAGES)
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
  documentation.parse(name, words, monkeypatch)
