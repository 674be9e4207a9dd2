"""The spec and the options of EnvPool environments."""

import difflib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import dm_env
import numpy as np

from seedx import types
from seedx.envs import config as env_config
from seedx.envs import env_specs, families

# Options of `envpool.make` that are not fields of a family's config.
_MAKE_OPTIONS = (
  "from_pixels",
  "render_camera_id",
  "render_env_id",
  "render_height",
  "render_mode",
  "render_width",
)
# Sizes and counts, which cannot be 0 unless 0 is their default.
_POSITIVE_OPTIONS = (
  "max_episode_steps",
  "frame_skip",
  "stack_num",
  "noop_max",
  "img_height",
  "img_width",
)
# Options that are arguments of `envs.make`, or would have no effect.
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


def spec(config: env_config.Config) -> types.EnvironmentSpec:
  """See `envs.spec`."""
  pool_spec, _ = pool_spec_and_options(config)
  return environment_spec(config, pool_spec)[0]


def pool_spec_and_options(
  config: env_config.Config,
) -> tuple[Any, dict[str, Any]]:
  """Returns EnvPool's spec, and the options with the defaults of seedx.

  Raises:
    types.ConfigError: the environment or an option is unknown or refused.
  """
  env_id, options = config.env, config.env_options
  if env_id not in families.envpool().list_all_envs():
    raise types.ConfigError(_unknown_env_message(env_id))
  for name in options:
    if name in _REFUSED_OPTIONS:
      raise types.ConfigError(
        f"{env_id}: option {name!r} is not supported: {_REFUSED_OPTIONS[name]}."
      )
  if options:
    _check_options(env_id, options)
  resolved = dict(options)
  pool_spec = call(env_id, families.envpool().make_spec, env_id, **resolved)
  if "stack_num" in pool_spec.config._fields and "stack_num" not in options:
    resolved["stack_num"] = 1
    pool_spec = call(env_id, families.envpool().make_spec, env_id, **resolved)
  return pool_spec, resolved


def make_pool(env_id: str, **options: Any) -> Any:
  """Makes environments by `envpool.make`.

  Raises:
    types.ConfigError: EnvPool refuses an option.
  """
  make = families.envpool().make
  pool = call(env_id, make, env_id, env_type="gymnasium", **options)
  with warnings.catch_warnings():
    # The first access warns of EnvPool's float64 bounds.
    warnings.filterwarnings("ignore", message=".*precision lowered.*")
    _ = pool.observation_space
  return pool


def environment_spec(
  config: env_config.Config, pool_spec: Any
) -> tuple[types.EnvironmentSpec, tuple[str, ...]]:
  """Translates EnvPool's spec.

  Returns:
    The spec, and the keys of `info` whose entries join the observation.

  Raises:
    types.ConfigError: the environment is not supported, or lacks an entry that
      the config names.
  """
  action, native = action_specs(config.env, pool_spec)
  observation, info_keys = _observation_spec(config, action, pool_spec)
  spec = env_specs.environment_spec(
    config,
    observation,
    action,
    native,
    pool_spec.config.frame_skip if is_atari(pool_spec) else 1,
  )
  return spec, info_keys


def is_atari(pool_spec: Any) -> bool:
  """Returns whether `info` has raw rewards and ends of games, as for Atari."""
  return type(pool_spec).__name__ == "AtariEnvSpec"


def observation_array_specs(pool_spec: Any) -> dict[str, Any]:
  """Returns EnvPool's specs of an observation's arrays, by their paths."""
  return {
    key: value
    for key, value in pool_spec.state_array_spec.items()
    if key.split(":")[0] == "obs"
  }


def action_specs(
  env_id: str, pool_spec: Any
) -> tuple[dm_env.specs.BoundedArray, dm_env.specs.BoundedArray]:
  """Returns the specs of the agent's and of the environment's actions.

  Choices are integers. The agent's array has no second axis.

  Raises:
    types.ConfigError: the environment takes several arrays, integers that do
      not count from 0, or floats without bounds.
  """
  specs = pool_spec.action_array_spec
  names = set(specs) - {"env_id", "players.env_id"}
  players = pool_spec.config.max_num_players
  if players != 1 or len(names) != 1:
    raise types.ConfigError(
      f"{env_id} has {players} players and the actions "
      f"{', '.join(sorted(names))}. Supported: one player with one array of"
      " actions; let a function of yours return a Gymnasium environment that"
      " has these (--env MODULE:FACTORY)"
    )
  array_spec = action_array_spec(pool_spec)
  shape, dtype = _shape(array_spec), np.dtype(array_spec.dtype)
  low, high = (
    np.broadcast_to(x, shape) for x in (array_spec.minimum, array_spec.maximum)
  )
  # ViZDoom's combined actions are discrete although they are float64.
  if dtype.kind == "f" and array_spec.is_discrete:
    dtype = np.dtype(np.int64)
  is_float = dtype.kind == "f"
  limit = (
    np.finfo(np.float32).max if is_float else env_specs.MAX_DISCRETE_VALUES
  )
  # Bounds beyond are placeholders: ViZDoom's buttons are on or off.
  if np.any(np.abs([low, high]) >= limit) or (not is_float and low.any()):
    raise types.ConfigError(
      f"{env_id} takes actions of shape {shape} and dtype {dtype}, with bounds"
      f" from {array_spec.minimum} to {array_spec.maximum}. Supported: discrete"
      " actions that count from 0, or floats between finite bounds; for"
      " ViZDoom, use --env-options use_combined_action=true"
    )
  native = dm_env.specs.BoundedArray(shape, dtype, low, high, "action")
  if is_float:
    return env_specs.numbers(low.ravel(), high.ravel()), native
  return env_specs.choices(high.ravel() if shape else high), native


def action_array_spec(pool_spec: Any) -> Any:
  """Returns EnvPool's spec of the action, the last one in its list."""
  return list(pool_spec.action_array_spec.values())[-1]


def call(
  env_id: str, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
  """Calls an EnvPool function; raises its errors as `types.ConfigError`."""
  try:
    return function(*args, **kwargs)
  except (
    AssertionError,
    ImportError,  # A system library is missing.
    RuntimeError,
    TypeError,
    ValueError,
  ) as error:
    raise types.ConfigError(f"EnvPool cannot make {env_id}: {error}") from error


def _unknown_env_message(env_id: str) -> str:
  by_lower_case = {
    name.lower(): name for name in families.envpool().list_all_envs()
  }
  close = difflib.get_close_matches(env_id.lower(), by_lower_case, n=5)
  matches = [by_lower_case[name] for name in close]
  # Suggests Pong-v5 for Gym's names PongNoFrameskip-v4 and ALE/Pong-v5.
  for lower, name in by_lower_case.items():
    stem = lower.rpartition("-")[0]
    if len(stem) > 3 and stem in env_id.lower() and name not in matches:
      matches.append(name)
  advice = (
    f"Did you mean {', '.join(matches[:8])}?"
    if matches
    else "envpool.list_all_envs() lists all."
  )
  return (
    f"EnvPool has no environment {env_id!r}. {advice} Gymnasium's are"
    f" gymnasium:make with the option id={env_id}, yours MODULE:FACTORY"
  )


def _check_options(env_id: str, options: Mapping[str, Any]) -> None:
  """Checks options' names and integers, since EnvPool would accept -1 steps."""
  variant = {key: options[key] for key in ("from_pixels",) if key in options}
  config = call(env_id, families.envpool().make_spec, env_id, **variant).config
  valid = {*config._fields, *_MAKE_OPTIONS}
  for name in options:
    if name not in valid:
      raise types.ConfigError(
        f"{env_id}: unknown option {name!r}. "
        + env_config.suggestion(name, sorted(valid - set(_REFUSED_OPTIONS)))
      )
  for name, value in options.items():
    default = getattr(config, name, None)
    if type(default) is not int:
      continue
    if not isinstance(value, int | np.integer):
      is_whole = isinstance(value, float) and value.is_integer()
      remedy = f"; write {int(value)}" if is_whole else ""
      raise types.ConfigError(
        f"expected {env_id}'s {name} as a whole number, found {value!r:.80}"
        f"{remedy}"
      )
    if default >= 0:
      low = 1 if default and name in _POSITIVE_OPTIONS else 0
      types.check_range(f"{env_id}'s {name}", int(value), low, 2**31 - 1)


def _observation_spec(
  config: env_config.Config,
  action: dm_env.specs.BoundedArray,
  pool_spec: Any,
) -> tuple[types.Tree, tuple[str, ...]]:
  leaves = observation_array_specs(pool_spec)
  observation: types.Tree = {}
  for path, value in leaves.items():
    if len(leaves) == 1:  # If there is only one array, EnvPool omits its name.
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
  numbers = [
    key
    for key, value in info.items()
    if _shape(value) == () and np.dtype(value.dtype).kind in "fiub"
  ]
  env_specs.check_log_info(config, sorted(numbers))
  return env_specs.joined_spec(config, observation, action, info, _leaf_spec)


def _leaf_spec(name: str, array_spec: Any) -> dm_env.specs.Array:
  return env_specs.leaf_spec(
    name,
    _shape(array_spec),
    np.dtype(array_spec.dtype),
    array_spec.minimum,
    array_spec.maximum,
  )


def _shape(array_spec: Any) -> tuple[int, ...]:
  """Returns the shape without the axis of players, whose size is -1."""
  return tuple(size for size in array_spec.shape if size != -1)
