"""Calls the user's factory, and adapts the environment that it returns."""

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import dm_env

from seedx import types
from seedx.envs import config as env_config
from seedx.envs.processes import single, single_dm_env


def make(
  config: env_config.Config, seed: int, render: bool = False
) -> single.Single:
  """Makes one environment, and resets it with its seed.

  Args:
    config: which environment.
    seed: of this environment.
    render: whether `render` will be called.

  Raises:
    types.ConfigError: the factory, the environment or its reset cannot be used;
      the message is one line.
  """
  name = config.env
  factory = env_config.load_function(name, "an environment factory")
  parameters = _parameters(factory)
  arguments = _arguments(config, parameters, seed, render)
  env = single.attempt(name, "the factory", factory, **arguments)
  if isinstance(env, dm_env.Environment):
    if "seed" not in parameters:
      raise types.ConfigError(
        f"{name}: expected a factory with a parameter named seed, without which"
        " a dm_env.Environment cannot be seeded, found the parameters"
        f" ({', '.join(parameters)})"
      )
    return single_dm_env.Single(config, env)
  # A factory that returns a Gymnasium environment has imported Gymnasium.
  gymnasium = sys.modules.get("gymnasium")
  if gymnasium is not None and isinstance(env, gymnasium.Env):
    # Without Gymnasium, processes of dm_env start 0.1 seconds sooner.
    from seedx.envs.processes import single_gymnasium

    return single_gymnasium.Single(config, env, seed)
  kind = type(env)
  raise types.ConfigError(
    f"{name}: expected the factory to return a gymnasium.Env or a"
    f" dm_env.Environment, found {kind.__module__}.{kind.__qualname__}"
  )


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
  try:
    return inspect.signature(factory).parameters
  except (TypeError, ValueError):  # Some functions written in C have none.
    return {}


def _arguments(
  config: env_config.Config,
  parameters: Mapping[str, inspect.Parameter],
  seed: int,
  render: bool,
) -> dict[str, Any]:
  """The keyword arguments of the factory."""
  name = config.env
  arguments = dict(config.env_options)
  if "seed" in arguments:
    raise types.ConfigError(
      f"{name}: option 'seed' is not supported: pass the argument seed;"
      " environment k gets seed + k."
    )
  takes_any = any(x.kind is x.VAR_KEYWORD for x in parameters.values())
  known = [
    key
    for key, x in parameters.items()
    if x.kind in (x.POSITIONAL_OR_KEYWORD, x.KEYWORD_ONLY)
  ]
  for key in arguments:
    if parameters and key not in known and not takes_any:
      raise types.ConfigError(
        f"{name}: unknown option {key!r}. "
        + env_config.suggestion(key, sorted({*known} - {"seed"}))
      )
  if "seed" in known:
    arguments["seed"] = seed
  if render and ("render_mode" in known or takes_any):
    arguments["render_mode"] = "rgb_array"
  return arguments
