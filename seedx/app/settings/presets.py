"""Presets: values of settings for some environments, agents or networks."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import numpy as np
import tree

from seedx import envs, types
from seedx.app.settings import configs, opponents, wording

C = TypeVar("C")

Games = Literal["Atari", "MinAtar", "MuJoCo"]
# By kind: the purposes of its presets; the default comes first.
PURPOSES: Mapping[str, tuple[str, ...]] = {
  "small": ("small tasks",),
  "images": ("Atari", "MinAtar"),
  "continuous": ("continuous actions", "MuJoCo"),
}
# By purpose of a preset: the method of agents' configs that returns its values.
METHODS = {
  "small tasks": "for_small",
  "Atari": "for_images",
  "MinAtar": "for_minatar",
  "continuous actions": "for_continuous",
  "MuJoCo": "for_continuous",
}
# The suites of small tasks, see `envs.games`.
_SMALL = ("small", "MuJoCo", "MinAtar")


@dataclasses.dataclass(frozen=True)
class Preset:
  """A change of some settings of a config.

  Attributes:
    values: values of the settings, by name.
    measured: whether runs of the experiment's default agent have been measured
      with them.
    games: the environments that the preset is made for: "Atari" or "MinAtar"
      for images, EnvPool's "MuJoCo" for continuous actions. None for Atari, or
      for all environments with continuous actions.
  """

  values: Mapping[str, Any]
  measured: bool = True
  games: Games | None = None

  def purpose(self, kind: str) -> str:
    """Returns the name of its purpose, a key of `METHODS`."""
    return self.games or PURPOSES[kind][0]

  def __call__(self, config: C) -> C:
    return configs.replaced(config, self.values)


@dataclasses.dataclass(frozen=True)
class Changes:
  """The changes that a preset has made to a config.

  Attributes:
    name: name of the preset's purpose, such as "Atari".
    values: new values of the changed settings, by name.
    measured: see `Preset`.
  """

  name: str
  values: Mapping[str, Any]
  measured: bool

  def line(self, config: object) -> str:
    """Lists in one line the changes that `config` still has; empty if none."""
    final = configs.values(config)
    kept = [
      f"{name} {wording.shown(value)}"
      for name, value in self.values.items()
      if final[name] == value
    ]
    if not kept:
      return ""
    mark = "" if self.measured else " (not measured)"
    return f"presets for {self.name}{mark}: {', '.join(kept)}"


def preset(
  *, measured: bool = True, games: Games | None = None, **values: Any
) -> Preset:
  """Makes a preset with values of some settings; see `Preset`."""
  return Preset(values, measured, games)


# The agent's own values for small tasks are the whole preset.
SMALL = preset()


def with_agents(preset: Preset, name: str) -> Callable[[C], C]:
  """Returns a preset that first applies the agent's own values.

  `name` is the name of the preset's purpose, a key of `METHODS`.
  """

  def both(config: Any) -> Any:
    agent_config = getattr(config.agent, METHODS[name], None)
    if agent_config is not None:
      config = dataclasses.replace(config, agent=agent_config())
    return preset(config)

  return both


def kinds(
  config: envs.Config, images: Preset | None, continuous: Preset | None
) -> list[str]:
  """Returns the kinds of an environment, whose presets apply in this order.

  Images select the preset `images` only if it is made for the same games. In
  other environments with images, rewards vary more in size, and a single image
  may show the whole state. A preset `continuous` for MuJoCo has the length of
  runs there, which is too long for small tasks. An environment is `small` if
  rewards like its own were measured with `for_small`; your own is not.

  Raises:
    types.ConfigError: the environment does not exist.
  """
  spec, games = envs.spec(opponents.without_runs(config)), envs.games(config)
  has_images = any(map(types.is_image, tree.flatten(spec.observation)))
  if has_images and images and images.purpose("images") == games:
    return ["images"]
  kinds = ["small"] if games in _SMALL else []
  if has_images or not np.issubdtype(spec.action.dtype, np.floating):
    return kinds
  if continuous and continuous.games in (None, games):
    kinds.append("continuous")
  return kinds
