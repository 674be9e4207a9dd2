"""Environments as pure JAX functions; importing this imports JAX."""

import inspect
from collections.abc import Mapping

from seedx import types
from seedx.envs import config as env_config
from seedx.envs.functional.bsuite import Catch, DeepSea, MemoryChain
from seedx.envs.functional.classic_control import Acrobot, CartPole, Pendulum
from seedx.envs.functional.episodic import (
  Environment,
  Episodic,
  Outcome,
  State,
  init,
  keys,
  step,
)
from seedx.envs.functional.minatar import Asterix, Breakout

__all__ = [
  "ENVIRONMENTS",
  "Acrobot",
  "Asterix",
  "Breakout",
  "CartPole",
  "Catch",
  "DeepSea",
  "Environment",
  "Episodic",
  "MemoryChain",
  "Outcome",
  "Pendulum",
  "State",
  "init",
  "keys",
  "make",
  "step",
]

# By their names without the prefix `seedx:`.
ENVIRONMENTS: Mapping[str, type[Episodic]] = {
  "CartPole-v1": CartPole,
  "Pendulum-v1": Pendulum,
  "Acrobot-v1": Acrobot,
  "Catch": Catch,
  "MemoryChain": MemoryChain,
  "DeepSea": DeepSea,
  "Breakout-MinAtar": Breakout,
  "Asterix-MinAtar": Asterix,
}


def make(config: env_config.Config) -> Environment:
  """The environment of a name such as `seedx:DeepSea`, or the user's own.

  Raises:
    types.ConfigError: there is none of that name, an option is unknown or out
      of its range, or the user's factory fails.
  """
  if config.env.startswith(env_config.JAX_PREFIX):
    return _own(config)
  prefix = env_config.SEEDX_PREFIX
  name = config.env.removeprefix(prefix)
  if name not in ENVIRONMENTS or not config.env.startswith(prefix):
    known = [f"{prefix}{name}" for name in ENVIRONMENTS]
    raise types.ConfigError(
      f"seedx has no environment {config.env!r} of JAX functions."
      f" {env_config.suggestion(config.env, known)}"
    )
  kind, options = ENVIRONMENTS[name], dict(config.env_options)
  known_options = inspect.signature(kind).parameters
  for option, value in options.items():
    if option not in known_options:
      raise types.ConfigError(
        f"{config.env}: unknown option {option!r}. "
        + env_config.suggestion(option, known_options)
      )
    wanted = known_options[option].annotation
    # A whole number is a float, too; but neither is a bool.
    fits = (float, int) if wanted is float else (wanted,)
    if type(value) not in fits:
      raise types.ConfigError(
        f"{config.env}: expected {option} of type {wanted.__name__}, found"
        f" {value!r}"
      )
    options[option] = wanted(value)
  return kind(**options)


def _own(config: env_config.Config) -> Environment:
  name = config.env.removeprefix(env_config.JAX_PREFIX)
  factory = env_config.load_function(name, "a factory jax:")
  try:
    found = factory(**config.env_options)
  except Exception as error:  # It may raise anything.
    raise types.ConfigError(
      f"{config.env}: {env_config.in_one_line(error)}"
    ) from error
  missing = [x for x in _PARTS if not hasattr(found, x)]
  if missing:
    raise types.ConfigError(
      f"{config.env}: expected an environment with {', '.join(_PARTS)}, found"
      f" {type(found).__name__} without {', '.join(missing)}"
    )
  return found


_PARTS = ("observation", "action", "init", "step")
