"""Trained runs as opponents in games, `--env-options opponent=run:DIR`.

Environments cannot read runs, but a config may name a function that makes an
opponent. Here, a run becomes the name of the function that loads it.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from seedx import envs

# The option of an environment that names its opponents.
OPTION = "opponent"
_RUN = "run:"
# Functions that load a run as an opponent, by whether its code is trusted.
_LOADERS = {
  False: "seedx.app.opponent:run:",
  True: "seedx.app.opponent:trusted_run:",
}


def resolved(env: envs.Config, trust: bool = False) -> envs.Config:
  """Returns an environment whose opponents `run:DIR` any process can load.

  With `trust`, the code that the runs name may run.
  """

  def load(run: str) -> str:
    path = os.path.abspath(os.path.expanduser(run))
    return f"{_LOADERS[trust]}{path}"

  return _replaced(env, load)


def check(env: envs.Config) -> None:
  """Checks that the runs that are opponents can be loaded.

  Raises:
    types.ConfigError: one of them cannot, see `app.opponent`.
  """
  if in_words(env.env_options) != env.env_options:
    envs.spec(env)


def without_runs(env: envs.Config) -> envs.Config:
  """Returns an environment with the same spec, for which no run is loaded."""
  return _replaced(env, lambda run: "random")


def against(env: envs.Config, opponent: str) -> envs.Config:
  """Returns an environment with another opponent, if it has one.

  `opponent` may be empty for the same one.
  """
  return dataclasses.replace(
    env, env_options=options_against(env.env_options, opponent)
  )


def options_against(options: Any, opponent: str) -> Any:
  """Returns an environment's options with another opponent, as `against`."""
  if not opponent or not isinstance(options, Mapping) or OPTION not in options:
    return options
  return {**options, OPTION: opponent}


def in_words(options: Mapping[str, Any]) -> dict[str, Any]:
  """Returns an environment's options as a user writes them."""
  words = dict(options)
  if isinstance(words.get(OPTION), str):
    for loader in _LOADERS.values():
      words[OPTION] = words[OPTION].replace(loader, _RUN)
  return words


def split(text: str) -> tuple[str, str]:
  """Returns directory and checkpoint of `DIR` or `DIR@CHECKPOINT`.

  An existing directory may have an @ in its name.
  """
  directory, at, checkpoint = text.rpartition("@")
  if not at or "/" in checkpoint or os.path.isdir(text):
    return text, "latest"
  return directory, checkpoint


def _replaced(env: envs.Config, load: Callable[[str], str]) -> envs.Config:
  name = env.env_options.get(OPTION)
  if not envs.is_functional(env) or _RUN not in str(name):
    return env
  from seedx.envs.functional import opponents  # It imports JAX.

  names = [
    load(x.removeprefix(_RUN)) if x.startswith(_RUN) else x
    for x in opponents.members(str(name))
  ]
  return against(env, "+".join(names))
