"""Tests that options, settings and metrics that the pages name exist."""

import ast
import functools
import importlib
import re

import pytest

from seedx import metrics
from seedx.__main__ import _PROGRAMS
from seedx.agents import ddpg, sac
from seedx.app.cli import command_line, programs
from seedx.app.settings import configs, experiments
from tests import programs as test_programs
from tests.repository import documentation

PAGES = documentation.PAGES
_CODE_FOLDERS = ("seedx", "experiments", "benchmarks", "examples")
# Options of other programs, and of other libraries, where pages compare them.
_FOREIGN = {"--gamma", "--logdir", "--no-deps", "--pid", "--signal"}
# Metrics with a seed, a member, or the name of an entry of `info`.
_COMPLETED = {"episode_return_seed_K", "info_NAME", "evaluation_info_NAME"}
_COMPLETED |= {"member_K_NAME", "member_K_parent"}
# Metrics of each group of parameters; the loss of critics is `loss`.
_OF_GROUPS = {
  f"{name}_{group}"
  for name in ("gradient_norm", "learning_rate", "loss")
  for group in {*ddpg._Deterministic.rates, *sac._Soft.rates}
} - {"loss_critic"}
_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_OPTION = re.compile(r"(?<!\S)(--[a-z][\w-]*)")
_SNAKE_CASE = re.compile(r"(?<![\w./:-])([a-z]+(?:_[a-z0-9]+)+)(?![\w/.-])")
_NAME_AND_VALUE = re.compile(r"([a-z]+(?:_[a-z]+)+) [\w.,]+")


class _ReadError(Exception):
  """Ends a program as soon as its settings are known."""


@pytest.fixture(scope="module")
def settings():
  """The settings of all programs and experiments by name."""
  by_name = {}

  def read(config, *_, **__):
    by_name.update(configs.settings(config))
    raise _ReadError

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(command_line, "parse", read)
    for module in (*_PROGRAMS.values(), "benchmarks.speed.__main__"):
      with pytest.raises(_ReadError):
        importlib.import_module(module).main([])
    for name in experiments.shipped():
      module = experiments.load_module(name)
      for agent in module.EXPERIMENT.agents or ("",):
        words = ["--agent", agent] if agent else []
        with pytest.raises(_ReadError):
          programs.read(module.EXPERIMENT, words, module.__name__)
  return by_name


@pytest.fixture(scope="module")
def options(settings):
  """The options of all programs, benchmarks included."""
  flags = {f for x in settings.values() for f in command_line._flags(x)}
  for path in (test_programs.ROOT / "benchmarks").rglob("*.py"):
    flags |= {*re.findall(r'"(--[\w-]+)"', path.read_text())}
  return flags | {"--help"}


@functools.cache
def code():
  """Returns all names in the code and in the pages' blocks of code."""
  names = {*experiments.shipped()}
  for page in PAGES:
    names |= {*re.findall(r"\w+", " ".join(_BLOCK.findall(page.read_text())))}
  for folder in _CODE_FOLDERS:
    for path in (test_programs.ROOT / folder).rglob("*.py"):
      text = re.sub(r'"""(.*?)"""', "", path.read_text(), flags=re.DOTALL)
      names |= {*re.findall(r"\w+", text)}
  return names


@functools.cache
def strings():
  """Returns the strings and the names of keyword arguments of seedx."""
  names = set()
  for path in (test_programs.ROOT / "seedx").rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
      match node:
        case ast.Constant(value=str(text)) | ast.keyword(arg=str(text)):
          names.add(text)
  return names


def inline_code(text):
  """Returns the code in a page's sentences and tables."""
  sentences = _BLOCK.sub("", text)
  return [" ".join(x.split()) for x in re.findall(r"`([^`]+)`", sentences)]


def unknown_options(text, options):
  named = {x for code in inline_code(text) for x in _OPTION.findall(code)}
  return named - options - _FOREIGN


def unknown_names(text):
  """Returns names of settings, metrics and others that no code has."""
  named = {x for code in inline_code(text) for x in _SNAKE_CASE.findall(code)}
  logged = {x for x in named if x.startswith(metrics.OF_INFO)}
  return named - logged - _OF_GROUPS - code()


def unknown_settings(text, settings):
  """Returns the names in `name value` that are no settings."""
  named = [_NAME_AND_VALUE.fullmatch(x) for x in inline_code(text)]
  return {x[1] for x in named if x} - {*settings} - {*experiments.shipped()}


@pytest.mark.parametrize("page", PAGES, ids=documentation.name_of)
def test_options_and_settings_in_the_text_exist(page, options, settings):
  text = page.read_text()
  assert not unknown_options(text, options)
  assert not unknown_names(text)
  assert not unknown_settings(text, settings)


def test_the_metrics_of_the_page_exist():
  assert documentation.metrics() - strings() <= _COMPLETED | _OF_GROUPS


def test_names_that_do_not_exist_are_detected(options, settings):
  assert unknown_options("Set `--batch-sizes 3`.", options)
  assert unknown_options("| `seedx train ppo\n--batch-sizes` |", options)
  assert unknown_names("See `episode_returns`, which is high.")
  assert unknown_settings("| `learning_rates 0.1` |", settings)
