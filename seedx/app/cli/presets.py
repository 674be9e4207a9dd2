"""Presets: values of settings for some environments, agents or networks."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import numpy as np
import tree

from seedx import envs, types
from seedx.app.cli import command_line, configs

C = TypeVar("C")

# What `--presets` may name, where an experiment has it.
KINDS = ("auto", "none", "images", "continuous")
Kind = Literal["auto", "none", "images", "continuous"]
Games = Literal["Atari", "MinAtar"]
# What makes an agent's config one for an environment.
_METHODS = {
  "Atari": "for_images",
  "MinAtar": "for_minatar",
  "continuous actions": "for_continuous",
}


@dataclasses.dataclass(frozen=True)
class Preset:
  """A change of some settings of a config.

  Attributes:
    values: values of the settings, by their names.
    measured: whether runs of the experiment's default agent have been measured
      with them.
    games: the games that it is made for, if it is one for images.
  """

  values: Mapping[str, Any]
  measured: bool = True
  games: Games = "Atari"

  def __call__(self, config: C) -> C:
    """Returns a copy with these values."""
    return configs.replaced(config, self.values)


@dataclasses.dataclass(frozen=True)
class Applied:
  """A preset that a config has.

  Attributes:
    name: what it is for, such as "Atari".
    values: the settings that it changed, by their names.
    measured: see `Preset`.
  """

  name: str
  values: Mapping[str, Any]
  measured: bool

  def line(self, config: object) -> str:
    """Returns what it changed as a line; empty where it changed nothing.

    Args:
      config: what a command line made of it; settings that have another value
        there are left out.
    """
    now = configs.values(config)
    kept = [
      f"{name} {command_line.shown(value)}"
      for name, value in self.values.items()
      if now[name] == value
    ]
    if not kept:
      return ""
    mark = "" if self.measured else " (not measured)"
    return f"presets for {self.name}{mark}: {', '.join(kept)}"


def preset(
  *, measured: bool = True, games: Games = "Atari", **values: Any
) -> Preset:
  """Makes a preset of the values of some settings; see `Preset`."""
  return Preset(values, measured, games)


def is_measured(preset: Callable[[Any], Any]) -> bool:
  """Returns whether runs with a preset, or a function as one, were measured."""
  return not isinstance(preset, Preset) or preset.measured


def with_agents(preset: Preset, name: str) -> Callable[[C], C]:
  """Returns a preset that has the agent's own values for the same, too.

  Args:
    preset: of the experiment; where both have a value, it has the last word.
    name: what it is for, a key of `_METHODS`.
  """

  def both(config: Any) -> Any:
    own = getattr(config.agent, _METHODS[name], None)
    if own is not None:
      config = dataclasses.replace(config, agent=own())
    return preset(config)

  return both


def kind(config: envs.Config, images: Preset | None) -> Kind:
  """Returns which presets an environment has by itself.

  Images of other environments than games are not like game frames: their
  rewards may be of many sizes, and one image may show all.

  Args:
    config: the environment.
    images: the experiment's preset for images.

  Raises:
    types.ConfigError: the environment does not exist.
  """
  spec = envs.spec(config)
  if _has_images(spec):
    made_for = images is not None and images.games == envs.games(config)
    return "images" if made_for else "none"
  is_continuous = np.issubdtype(spec.action.dtype, np.floating)
  return "continuous" if is_continuous else "none"


def _has_images(spec: types.EnvironmentSpec) -> bool:
  return any(
    leaf.dtype == np.uint8 and len(leaf.shape) == 3
    for leaf in tree.flatten(spec.observation)
  )
