"""Environments as pure JAX functions; importing this package imports JAX."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from seedx import types
from seedx.envs import config as env_config
from seedx.envs.functional import games
from seedx.envs.functional.bsuite import Catch, DeepSea, MemoryChain
from seedx.envs.functional.classic_control import (
  Acrobot,
  CartPole,
  MountainCarContinuous,
  Pendulum,
)
from seedx.envs.functional.episodic import (
  Environment,
  Episodic,
  Outcome,
  State,
  init,
  keys,
  last_info,
  step,
)
from seedx.envs.functional.games import ConnectFour, Game, TicTacToe
from seedx.envs.functional.match import Match
from seedx.envs.functional.minatar import Asterix, Breakout
from seedx.envs.functional.pgx_games import PgxGame

__all__ = [
  "ENVIRONMENTS",
  "Acrobot",
  "Asterix",
  "Breakout",
  "CartPole",
  "Catch",
  "ConnectFour",
  "DeepSea",
  "Environment",
  "Episodic",
  "Game",
  "Match",
  "MemoryChain",
  "MountainCarContinuous",
  "Outcome",
  "Pendulum",
  "PgxGame",
  "State",
  "TicTacToe",
  "init",
  "keys",
  "last_info",
  "make",
  "step",
]

# The keys are names without the prefix `seedx:`.
ENVIRONMENTS: Mapping[str, Callable[..., Environment]] = {
  "CartPole-v1": CartPole,
  "Pendulum-v1": Pendulum,
  "MountainCarContinuous-v0": MountainCarContinuous,
  "Acrobot-v1": Acrobot,
  "Catch": Catch,
  "MemoryChain": MemoryChain,
  "DeepSea": DeepSea,
  "Breakout-MinAtar": Breakout,
  "Asterix-MinAtar": Asterix,
  "TicTacToe": functools.partial(Match, TicTacToe()),
  "ConnectFour": functools.partial(Match, ConnectFour()),
  "Othello": functools.partial(Match, PgxGame("othello")),
  "Hex": functools.partial(Match, PgxGame("hex")),
  "Go-9x9": functools.partial(Match, PgxGame("go_9x9")),
  "Chess": functools.partial(Match, PgxGame("chess")),
}


def make(config: env_config.Config | str) -> Environment:
  """Makes an environment of seedx, of a library, or the user's own.

  A name, such as "DeepSea", stands for the environment without options.

  Raises:
    types.ConfigError: the name or an option is unknown, an option is out of its
      range, or the user's factory fails.
  """
  prefix = env_config.SEEDX_PREFIX
  if isinstance(config, str):
    env = config if ":" in config else f"{prefix}{config}"
    config = env_config.Config(env)
  if config.env.startswith(env_config.JAX_PREFIX):
    return _from_factory(config)
  if config.env.startswith(env_config.LIBRARY_PREFIXES):
    return _from_library(config)
  name = config.env.removeprefix(prefix)
  if name not in ENVIRONMENTS or not config.env.startswith(prefix):
    if ":" in config.env and not config.env.startswith(prefix):
      raise types.ConfigError(
        "expected an environment of JAX functions, since anakin steps it on the"
        f" devices, found {config.env}; choose another pipeline, or"
        f" jax:{config.env} if the factory returns JAX functions"
      )
    names = [f"{prefix}{name}" for name in ENVIRONMENTS]
    raise types.ConfigError(
      f"seedx has no environment {config.env!r} of JAX functions."
      f" {env_config.suggestion(config.env, names)}"
    )
  kind = ENVIRONMENTS[name]
  parameters = inspect.signature(kind).parameters
  kinds = {option: x.annotation for option, x in parameters.items()}
  return _made(config, lambda x: kind(**env_config.checked_options(x, kinds)))


def _from_library(config: env_config.Config) -> Environment:
  library, _, name = config.env.partition(":")
  try:
    adapter = importlib.import_module(f"{__name__}.{library}_adapter")
  except ImportError as error:
    raise types.ConfigError(
      f"expected the package {library} for {config.env}, found"
      f" {env_config.in_one_line(error)}; install it with pip install"
      f" 'seedx[{library}]'"
    ) from error
  if name not in adapter.NAMES:
    names = [f"{library}:{x}" for x in adapter.NAMES]
    raise types.ConfigError(
      f"{library} has no environment {config.env!r}."
      f" {env_config.suggestion(config.env, names)}"
    )
  return _made(config, functools.partial(adapter.Adapter, name))


def _from_factory(config: env_config.Config) -> Environment:
  name = config.env.removeprefix(env_config.JAX_PREFIX)
  factory = env_config.load_function(name, "a factory jax:")
  environment = _made(config, lambda x: factory(**x))
  missing = [x for x in _MEMBERS if not hasattr(environment, x)]
  if missing:
    raise types.ConfigError(
      f"{config.env}: expected an environment with {', '.join(_MEMBERS)}, found"
      f" {type(environment).__name__} without {', '.join(missing)}"
    )
  return environment


def _made(
  config: env_config.Config, factory: Callable[[Mapping[str, Any]], Any]
) -> Any:
  try:
    environment = factory(config.env_options)
    if hasattr(environment, "game"):
      games.check(environment.game)
  except types.ConfigError as error:
    raise types.ConfigError(f"{config.env}: {error}") from error
  except Exception as error:  # A factory may raise anything.
    raise types.ConfigError(
      f"{config.env}: {env_config.in_one_line(error)}"
    ) from error
  return environment


_MEMBERS = ("observation", "action", "init", "step")
