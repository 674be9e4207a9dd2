"""All settings of all programs, with values at and beyond their limits."""

import importlib
import json
import math
import threading

import numpy as np
import pytest

from seedx import envs, types
from seedx.app import requests
from seedx.app.settings import configs, experiments, synonyms, wording
from tests import conftest
from tests import programs as programs_of_tests

compiled_once = programs_of_tests.compiled_once

_HUGE = 10**400
_INTS = (-_HUGE, -1, 0, 1, 2**31, 2**63, _HUGE)
_FLOATS = (math.nan, math.inf, -math.inf, -1.0, 0.0, 5e-324, 1.0, 1e30, 1e308)
_TEXTS = ("", " ", "\0", "x" * 5000, "../..", ":", "a:b", "\ud800", "٣")
_OPTIONS = (
  {},
  {"": 1},
  {"x": math.nan},
  {"x": _HUGE},
  {"x": []},
  {"a b": None},
  {"GPU": -1},
  {"CPU": 1},
  {"GPU": math.nan},
  {"GPU": True},
  {"GPU": "٣"},
)
_PLAIN = {bool: (False, True), int: _INTS, float: _FLOATS, str: _TEXTS}
_PAIRS = [
  (name, agent)
  for name in experiments.shipped()
  for agent in experiments.load(name).agents or [""]
]
# Agents and pipelines that differ.
_FAST = [("apex_dqn", ""), ("seed_ppo", ""), ("gorila_dqn", "")]
_PROGRAMS = "evaluate export plot studies.compare studies.sweep certificates"


def values(kind):
  """Returns values of a setting's type, most of them nonsensical."""
  if configs.choices(kind):
    return configs.choices(kind)
  if item := configs.item(kind):
    return [(), *((x,) for x in _PLAIN[item]), _PLAIN[item][-1:] * 2]
  return _PLAIN.get(kind, _OPTIONS)


def walk(config, wanted=lambda setting: True):
  """Yields each setting with each accepted value, and the resulting config."""
  for name, setting in configs.settings(config).items():
    for value in values(setting.kind) if wanted(setting) else ():
      try:
        yield setting, value, configs.replaced(config, {name: value})
      except types.ConfigError as error:
        assert str(error) and "\n" not in str(error)


def check_accepted(setting, value, config):
  """Checks that an accepted value can be saved, printed and computed with."""
  json.dumps(configs.in_json(config))
  wording.option(setting.name, value)
  if setting.kind is float and setting.name != "stop_at":
    with np.errstate(over="ignore"):
      assert np.isfinite(np.float32(value)), (setting.name, value)
  if setting.name.endswith("_seconds"):
    assert value <= threading.TIMEOUT_MAX, (setting.name, value)


def test_synonyms_are_for_settings_that_exist():
  settings = {
    setting
    for name, agent in _PAIRS
    for setting in configs.settings(requests.of(experiments.load(name), agent))
  }
  assert synonyms.NAMES.keys() <= settings
  for setting, names in synonyms.NAMES.items():
    assert names.split() and setting not in names.split()


_SEEN = set()


@pytest.mark.parametrize(("name", "agent"), conftest.slow_but(_FAST, _PAIRS))
def test_experiments_accept_or_refuse_each_value_in_one_line(name, agent):
  asked = requests.of(experiments.load(name), agent)
  spec = envs.spec(asked.run.env)

  def is_new(setting):
    key = type(asked.run), setting.owner, setting.name
    return key not in _SEEN and not _SEEN.add(key)

  for setting, value, config in walk(asked, is_new):
    check_accepted(setting, value, config)
    run = config.run.with_sockets("nowhere")
    run.nodes()
    if setting.path[0] == "run" and setting.path[1] != "env":
      # A strategy's number of updates is not planned.
      make = run.plan.agent if hasattr(run, "plan") else type(run.agent).make
      try:
        make(run.agent, spec)
      except types.ConfigError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("name", _PROGRAMS.split())
def test_programs_accept_or_refuse_each_value_in_one_line(name):
  module = importlib.import_module(f"seedx.app.{name}")
  for setting, value, config in walk(module.Options()):
    check_accepted(setting, value, config)


def test_environments_have_a_spec_or_are_refused_in_one_line():
  options = [
    {"max_episode_steps": x} for x in (*_INTS, *_FLOATS, *_TEXTS, None, [], {})
  ]
  asked = [
    *(config for _, _, config in walk(envs.Config())),
    *(envs.Config(env_options=x) for x in options),
    *(envs.Config(f"{x}{y}") for x in ("seedx:", "jax:") for y in _TEXTS),
  ]
  accepted = 0
  for config in asked:
    if config.env == "a:b":  # `envs.spec` would start a process.
      continue
    try:
      envs.spec(config)
      accepted += 1
    except types.ConfigError as error:
      assert "\n" not in str(error)
  assert 2 < accepted < len(asked) / 2
