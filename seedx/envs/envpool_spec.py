"""The spec of an EnvPool environment, and the options that it takes."""

import difflib
import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import dm_env
import numpy as np

from seedx import types
from seedx.envs import config as env_config
from seedx.envs import observations

# Options that `envpool.make` takes besides the fields of a family's config.
_MAKE_OPTIONS = (
  "from_pixels",
  "render_camera_id",
  "render_env_id",
  "render_height",
  "render_mode",
  "render_width",
)
# Options of which 0 would be none at all.
_AT_LEAST_ONE = (
  "max_episode_steps",
  "frame_skip",
  "stack_num",
  "noop_max",
  "img_height",
  "img_width",
)
# Options that are arguments here, or would have no effect.
_REFUSED_OPTIONS = {
  "num_envs": "pass the argument num_envs",
  "batch_size": "pass the argument batch_size",
  "num_threads": "pass the argument num_threads",
  "seed": "pass the argument seed",
  "env_seed": "pass the argument seed; environment k gets seed + k",
  "gym_reset_return_info": "leave it out",
  "zero_discount_on_life_loss": (
    "EnvPool's gymnasium mode does not report it; use episodic_life"
  ),
}


def envpool() -> Any:
  """EnvPool, imported where it is first used.

  The processes of own environments import this package too. Without EnvPool,
  which imports JAX, they start in a third of a second instead of three.
  """
  return importlib.import_module("envpool")


def spec(config: env_config.Config) -> types.EnvironmentSpec:
  """See `envs.spec`."""
  pool_spec, _ = pool_spec_and_options(config)
  return environment_spec(config, pool_spec)[0]


def pool_spec_and_options(
  config: env_config.Config,
) -> tuple[Any, dict[str, Any]]:
  """EnvPool's own spec, and the options with the defaults of this package.

  Raises:
    types.ConfigError: the environment or an option is unknown or refused.
  """
  env_id, options = config.env, config.env_options
  if env_id not in envpool().list_all_envs():
    raise types.ConfigError(_unknown_env_message(env_id))
  for name in options:
    if name in _REFUSED_OPTIONS:
      raise types.ConfigError(
        f"{env_id}: option {name!r} is not supported: {_REFUSED_OPTIONS[name]}."
      )
  if options:
    _check_options(env_id, options)
  resolved = dict(options)
  pool_spec = call(env_id, envpool().make_spec, env_id, **resolved)
  if "stack_num" in pool_spec.config._fields and "stack_num" not in options:
    resolved["stack_num"] = 1
    pool_spec = call(env_id, envpool().make_spec, env_id, **resolved)
  return pool_spec, resolved


def make_pool(env_id: str, **options: Any) -> Any:
  """EnvPool's own environments, as `envpool.make` makes them.

  Args:
    env_id: name of the environment.
    **options: options of `envpool.make`.

  Raises:
    types.ConfigError: EnvPool refuses an option.
  """
  make = envpool().make
  pool = call(env_id, make, env_id, env_type="gymnasium", **options)
  with warnings.catch_warnings():
    # Made on first use, when Gymnasium warns of EnvPool's float64 bounds.
    warnings.filterwarnings("ignore", message=".*precision lowered.*")
    _ = pool.observation_space
  return pool


def environment_spec(
  config: env_config.Config, pool_spec: Any
) -> tuple[types.EnvironmentSpec, tuple[str, ...]]:
  """Translates EnvPool's spec.

  Returns:
    The spec, and the keys of the entries of `info` that join the observation.

  Raises:
    types.ConfigError: it is not supported, or does not have what the config
      asks for.
  """
  observation, info_keys = _observation_spec(config, pool_spec)
  spec = observations.environment_spec(
    config,
    observation,
    action_spec(config.env, pool_spec),
    pool_spec.config.frame_skip if is_atari(pool_spec) else 1,
  )
  return spec, info_keys


def is_atari(pool_spec: Any) -> bool:
  """Whether `info` has the raw reward and the end of the whole game."""
  return type(pool_spec).__name__ == "AtariEnvSpec"


def observation_array_specs(pool_spec: Any) -> dict[str, Any]:
  """EnvPool's specs of the parts of an observation, by their paths."""
  return {
    key: value
    for key, value in pool_spec.state_array_spec.items()
    if key.split(":")[0] == "obs"
  }


def action_spec(env_id: str, pool_spec: Any) -> dm_env.specs.BoundedArray:
  """The environment's actions, as in `types.EnvironmentSpec`.

  Raises:
    types.ConfigError: they are not supported.
  """
  supported = (
    "Supported is one player, with discrete actions that count from 0, one or "
    "a vector of them, or with a continuous action of rank 1 and finite bounds."
  )
  specs = pool_spec.action_array_spec
  names = set(specs) - {"env_id", "players.env_id"}
  players = pool_spec.config.max_num_players
  if players != 1 or len(names) != 1:
    raise types.ConfigError(
      f"{env_id} has {players} players and the actions "
      f"{', '.join(sorted(names))}. {supported}"
    )
  array_spec = action_array_spec(pool_spec)
  shape, dtype = _shape(array_spec), np.dtype(array_spec.dtype)
  low, high = (
    np.broadcast_to(x, shape) for x in (array_spec.minimum, array_spec.maximum)
  )
  # VizDoom's combined actions are discrete, but float64.
  is_discrete = dtype.kind in "iu" or array_spec.is_discrete
  spec = observations.action_spec(dtype, low, high, is_discrete)
  if spec is None or (is_discrete and np.any(low != 0)):
    raise types.ConfigError(
      f"{env_id} takes actions of shape {shape}, dtype {dtype} and bounds "
      f"{array_spec.minimum} to {array_spec.maximum}. {supported}"
    )
  return spec


def action_array_spec(pool_spec: Any) -> Any:
  """EnvPool's spec of the action; only the last if there are several."""
  return list(pool_spec.action_array_spec.values())[-1]


def call(
  env_id: str, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
  """Calls EnvPool; raises its errors as `types.ConfigError`."""
  try:
    return function(*args, **kwargs)
  except (
    AssertionError,
    ImportError,  # A missing system library, with advice.
    RuntimeError,
    TypeError,
    ValueError,
  ) as error:
    raise types.ConfigError(f"EnvPool cannot make {env_id}: {error}") from error


def _unknown_env_message(env_id: str) -> str:
  by_lower_case = {name.lower(): name for name in envpool().list_all_envs()}
  close = difflib.get_close_matches(env_id.lower(), by_lower_case, n=5)
  matches = [by_lower_case[name] for name in close]
  # Gym's older names have more in them: PongNoFrameskip-v4, ALE/Pong-v5.
  for lower, name in by_lower_case.items():
    stem = lower.rpartition("-")[0]
    if len(stem) > 3 and stem in env_id.lower() and name not in matches:
      matches.append(name)
  advice = (
    f"Did you mean {', '.join(matches[:8])}?"
    if matches
    else "envpool.list_all_envs() lists all."
  )
  return f"EnvPool has no environment {env_id!r}. {advice}"


def _check_options(env_id: str, options: Mapping[str, Any]) -> None:
  """Checks names, and whole numbers, of which EnvPool takes any: -1 steps."""
  variant = {key: options[key] for key in ("from_pixels",) if key in options}
  config = call(env_id, envpool().make_spec, env_id, **variant).config
  known = {*config._fields, *_MAKE_OPTIONS}
  for name in options:
    if name not in known:
      raise types.ConfigError(
        f"{env_id}: unknown option {name!r}. "
        + env_config.suggestion(name, sorted(known - set(_REFUSED_OPTIONS)))
      )
  for name, value in options.items():
    usual = getattr(config, name, None)
    if type(usual) is not int:
      continue
    if not isinstance(value, int | np.integer):
      raise types.ConfigError(
        f"expected {env_id}'s {name} as a whole number, found {value!r:.80}"
      )
    if usual >= 0:
      least = 1 if usual and name in _AT_LEAST_ONE else 0
      types.check_range(f"{env_id}'s {name}", int(value), least, 2**31 - 1)


def _observation_spec(
  config: env_config.Config, pool_spec: Any
) -> tuple[types.Tree, tuple[str, ...]]:
  leaves = observation_array_specs(pool_spec)
  observation: types.Tree = {}
  for path, value in leaves.items():
    if len(leaves) == 1:  # EnvPool returns a single array without its name.
      observation = _leaf_spec("observation", value)
      break
    *parents, name = path.replace(":", ".").split(".")[1:]
    node = observation
    for parent in parents:
      node = node.setdefault(parent, {})
    node[name] = _leaf_spec(name, value)
  specs = pool_spec.state_array_spec
  info = {"elapsed_step": specs["elapsed_step"]} | {
    key.removeprefix("info:"): value
    for key, value in specs.items()
    if key.startswith("info:") and "players." not in key
  }
  return observations.joined_spec(config, observation, info, _leaf_spec)


def _leaf_spec(name: str, array_spec: Any) -> dm_env.specs.Array:
  return observations.leaf_spec(
    name,
    _shape(array_spec),
    np.dtype(array_spec.dtype),
    array_spec.minimum,
    array_spec.maximum,
  )


def _shape(array_spec: Any) -> tuple[int, ...]:
  """The shape without the axis of players, whose size EnvPool gives as -1."""
  return tuple(size for size in array_spec.shape if size != -1)
