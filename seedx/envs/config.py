"""The choice of an environment, as data that can be sent to other processes."""

import dataclasses
import difflib
import functools
import pathlib
import pickle
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seedx import types
from seedx.envs import families

Transform = Callable[[types.Tree], types.Tree]

DEFAULT_ACTION_MASK = "action_mask"
SEEDX_PREFIX, JAX_PREFIX = "seedx:", "jax:"
# Prefixes of libraries that have adapters in `functional`.
LIBRARY_PREFIXES = ("brax:", "craftax:", "gymnax:")
# Prefixes of the names of environments and transforms without a user's code.
_PREFIXES = (SEEDX_PREFIX, *LIBRARY_PREFIXES, "seedx.envs.transforms:")
# EnvPool's packages of small tasks.
_SMALL_PACKAGES = ("envpool.classic_control", "envpool.box2d")
_PACKAGE = pathlib.Path(__file__).parent.parent
# Options whose values are words of a fixed set. Other text options, such as
# `xml_file` and ViZDoom's `game_args`, make a simulator read files; a word has
# no slash or colon, so no `opponent` with one is a word.
_WORD_OPTIONS = frozenset(
  (
    "task",
    "task_name",
    "env_name",
    "scenario",
    "rules",
    "map_id",
    "adroit_task",
    "hand_task",
    "maze_map",
    "reward_type",
    "target_position",
    "target_rotation",
    "tasks_to_complete",
    "touch_get_obs",
    "touch_visualisation",
    "sudoku_database",
    "obj_type",
    "obstacle_type",
    "first_color",
    "second_color",
    "select_by",
    "action_kinds",
    "instr_kinds",
    "wfc_preset",
    "opponent",
    "seat",
  )
)


@dataclasses.dataclass(frozen=True)
class Config:
  """The choice of an environment, and of changes to its observations.

  The environment is one of EnvPool's, one of seedx's (`seedx:CartPole-v1`, see
  `functional`), one of gymnax, Craftax or Brax (`gymnax:CartPole-v1`), or your
  own. A factory that you name makes your own: a function
  that returns a Gymnasium `Env` or a `dm_env.Environment`. The factory is
  called once for each environment, in a separate process. Its parameter `seed`
  receives the environment's seed, and is optional with Gymnasium only. A
  factory named with the prefix `jax:` returns a `functional.Environment`, and
  is called in this process, without a seed. Images of bytes become `[C, H, W]`,
  after the `observation_transform` if there is one.

  Attributes:
    env: name of an EnvPool environment; seedx:NAME for one of seedx's,
      gymnax:NAME, craftax:NAME or brax:NAME for a library's; or
      MODULE:FACTORY for your own, jax:MODULE:FACTORY if it consists of JAX
      functions. MODULE is in the current directory or installed. In Python,
      the factory itself, a function or a class; its name is kept.
    env_options: options of the EnvPool environment or the seedx task,
      parameters of a library's environment, or keyword arguments of your
      factory. EnvPool's `stack_num` is 1 by default,
      because the network stacks frames. An option `env_steps` of your factory
      receives the env steps of the run when environments are made.
    info_keys: entries of EnvPool's or Gymnasium's `info` to add to the
      observation, which becomes a dict, `{"observation": ..., key: ...}`.
    action_mask: the entry of the observation or of `info` that is nonzero for
      each legal discrete action. If the default entry is missing or does not
      fit the actions, all are legal. Any other entry must exist. With
      several choices, the mask is `[choices, values]`, or joint: an entry for
      each combination, which is then one action of the agent.
    observation_transform: MODULE:FUNCTION of yours that maps observations `[B,
      ...]` to what the agent sees, in NumPy. In Python, the function itself.
    log_info: numbers in the last `info` of each episode, whose means are the
      metrics info_NAME, such as is_success; A/B is entry B of entry A. NaN does
      not count.
  """

  env: str = types.setting("CartPole-v1", labels=False)
  env_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  info_keys: Sequence[str] = ()
  action_mask: str = DEFAULT_ACTION_MASK
  observation_transform: str = ""
  log_info: Sequence[str] = types.setting((), labels=False)

  if TYPE_CHECKING:

    def __init__(
      self,
      env: str | Callable[..., Any] = "CartPole-v1",
      env_options: Mapping[str, Any] = ...,
      info_keys: Sequence[str] = (),
      action_mask: str = DEFAULT_ACTION_MASK,
      observation_transform: str | Transform = "",
      log_info: Sequence[str] = (),
    ) -> None: ...

  def __post_init__(self) -> None:
    """Replaces functions by their names.

    Raises:
      types.ConfigError: a function has no name for other processes.
    """
    env: Any = self.env
    transform: Any = self.observation_transform
    if isinstance(env, functools.partial) and not env.args:
      options = {**env.keywords, **self.env_options}
      object.__setattr__(self, "env_options", options)
      env = env.func
    is_name = isinstance(env, str)
    is_functional = (
      env.startswith(JAX_PREFIX) if is_name else _makes_functional(env)
    )
    prefix = JAX_PREFIX if is_functional else ""
    env = prefix + _name(env.removeprefix(prefix) if is_name else env)
    object.__setattr__(self, "env", env)
    object.__setattr__(self, "observation_transform", _name(transform))

  def __getstate__(self) -> dict[str, Any]:
    """Adds the functions that other processes cannot import."""
    from seedx.envs import functions  # A thin actor pickles no config.

    names = self.env.removeprefix(JAX_PREFIX), self.observation_transform
    return {**vars(self), "": (functions.pickled(names), functions.PROCESS)}

  def __setstate__(self, state: dict[str, Any]) -> None:
    """Keeps these functions for this process."""
    brought, process = state.pop("")
    if brought:
      from seedx.envs import functions

      functions.bring(brought, process)
    vars(self).update(state)


def at(config: Config, env_steps: int) -> Config:
  """Returns the config for environments that are made after `env_steps`.

  An option of the name `env_steps`, if there is one, becomes the number of env
  steps of the run so far, so that an environment can change during a run.
  """
  if "env_steps" not in config.env_options:
    return config
  options = {**config.env_options, "env_steps": env_steps}
  return dataclasses.replace(config, env_options=options)


def is_own(config: Config) -> bool:
  """Returns whether the user's factory makes the environment."""
  return ":" in config.env and not is_functional(config)


def is_functional(config: Config) -> bool:
  """Returns whether the environment consists of JAX functions."""
  prefixes = SEEDX_PREFIX, JAX_PREFIX, *LIBRARY_PREFIXES
  return config.env.startswith(prefixes)


def games(config: Config) -> str:
  """Returns an environment's suite.

  Returns:
    EnvPool's "Atari" or "MuJoCo", seedx's and gymnax's "MinAtar"; "small" for
    their other tasks and for EnvPool's classic control, Box2D and Catch; "" for
    all others, such as your own.
  """
  if config.env.startswith((SEEDX_PREFIX, "gymnax:")):
    return "MinAtar" if config.env.endswith("-MinAtar") else "small"
  if ":" in config.env:  # Your own needs no EnvPool.
    return ""
  registry = families.envpool().registration.registry
  package, name, _ = registry.specs.get(config.env, ("", "", {}))
  if package.startswith("envpool.mujoco."):
    return "MuJoCo"
  if package in _SMALL_PACKAGES or name == "CatchEnvSpec":
    return "small"
  return "Atari" if name == "AtariEnvSpec" else ""


def code_in(options: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings of a `Config` that run code from outside seedx.

  Such settings from a file or a connection may be used only if the user has
  named the same code.

  Args:
    options: any settings by their names, as JSON.

  Returns:
    Settings that name a module outside seedx. If `env` is among them, so are
      `env_options` and `evaluate_env_options`: a factory's options may name
      code, as those of `gymnasium:make` do. They are also among them if an
      option may make a simulator read files, or names a run as an opponent.
  """
  code = {
    name: options[name]
    for name in ("env", "observation_transform")
    if ":" in str(options.get(name, ""))
    and not str(options[name]).startswith(_PREFIXES)
  }
  names_env = "env" in code
  for name in ("env_options", "evaluate_env_options"):
    env_options = options.get(name)
    if env_options and (names_env or not _are_plain(env_options)):
      code[name] = env_options
  return code


def _are_plain(options: Any) -> bool:
  return isinstance(options, Mapping) and all(
    _is_plain(name, value) for name, value in options.items()
  )


def _is_plain(name: str, value: Any) -> bool:
  if isinstance(value, str):
    return name in _WORD_OPTIONS and bool(re.fullmatch(r"[\w ,+-]*", value))
  if isinstance(value, Mapping):
    return all(_is_plain(name, x) for x in value.values())
  if isinstance(value, list | tuple):
    return all(_is_plain(name, x) for x in value)
  return value is None or isinstance(value, bool | int | float)


def returns_are_sums(config: Config) -> bool:
  """Returns whether `types.Rows.episode_return` is the sum of the rewards.

  The two differ if EnvPool's Atari clips rewards or ends episodes with lives.
  """
  options = config.env_options
  changed = options.get("reward_clip") or options.get("episodic_life")
  return ":" in config.env or not changed


def load_transform(config: Config) -> Transform | None:
  """Imports the observation transform; None if the config has none."""
  name = config.observation_transform
  return load_function(name, "an observation transform") if name else None


def load_function(name: str, role: str) -> Callable[..., Any]:
  """Imports a function; modules of the current directory come first.

  Args:
    name: `package.module:function`.
    role: noun for the function in messages, such as "a transform".

  Raises:
    types.ConfigError: the function cannot be imported, or is not callable.
  """
  expected = f"expected {role} package.module:function, found {name!r}"
  if ":" not in name:
    raise types.ConfigError(f"{expected}, which has no colon")
  from seedx.envs import functions

  try:
    loaded = functions.load(name)
  except Exception as error:  # A module may raise anything.
    refusal = isinstance(error, types.ConfigError)
    reason = str(error) if refusal else in_one_line(error)
    raise types.ConfigError(f"{expected}: {reason}") from error
  if not callable(loaded):
    raise types.ConfigError(f"{expected}, which is not callable: {loaded!r}")
  return loaded


def pickled(value: Any) -> bytes:
  """Pickles a config, or a value that contains one, for another process.

  Raises:
    types.ConfigError: the value cannot be pickled.
  """
  try:
    return pickle.dumps(value)
  except (pickle.PicklingError, AttributeError, TypeError) as error:
    raise types.ConfigError(
      f"expected options that can be pickled for another process: {error}"
    ) from error


def _makes_functional(factory: Any) -> bool:
  names = "init", "step"
  return isinstance(factory, type) and all(hasattr(factory, x) for x in names)


def _name(function: Any) -> str:
  """Returns the name of a function, which may be given by a name."""
  if isinstance(function, str) and not function.startswith("__main__:"):
    return function
  from seedx.envs import functions  # A thin actor's config has only names.

  is_name = isinstance(function, str)
  return functions.canonical(
    function if is_name else functions.name_of(function)
  )


def in_one_line(error: BaseException) -> str:
  """Formats an exception: type, message, and its line if outside of seedx."""
  text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(" :")
  frames = traceback.extract_tb(error.__traceback__)
  if not frames or isinstance(error, ImportError):
    return text
  path = pathlib.Path(frames[-1].filename)
  if path.is_relative_to(_PACKAGE):
    return text
  return f"{text} ({path.name}, line {frames[-1].lineno})"


def checked_options(
  options: Mapping[str, Any], kinds: Mapping[str, type]
) -> dict[str, Any]:
  """Returns options as values of their types; an int is valid as a float.

  Args:
    options: values by name.
    kinds: types of all options that exist, by name.

  Raises:
    types.ConfigError: an option is unknown or has another type.
  """
  checked = {}
  for name, value in options.items():
    if name not in kinds:
      raise types.ConfigError(
        f"unknown option {name!r}. {suggestion(name, kinds)}"
      )
    kind = kinds[name]
    # A bool is valid only as a bool.
    if type(value) not in ((float, int) if kind is float else (kind,)):
      raise types.ConfigError(
        f"expected {name} of type {kind.__name__}, found {value!r}"
      )
    checked[name] = kind(value)
  return checked


def suggestion(name: str, valid: Iterable[str]) -> str:
  """Returns the end of a message about an unknown name: the valid names."""
  valid = list(valid)
  close = difflib.get_close_matches(name, valid, n=3)
  start = f"Did you mean {' or '.join(close)}? " if close else ""
  return f"{start}Known: {', '.join(valid) or 'none'}."
