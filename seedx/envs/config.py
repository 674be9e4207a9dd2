"""Which environment to make, as data that can be sent to another process."""

import dataclasses
import difflib
import importlib
import pathlib
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from seedx import types

Transform = Callable[[types.Tree], types.Tree]

# Earlier names of modules, which saved configs may have.
_ALIASES = {"experiments.transforms": "seedx.envs.transforms"}
DEFAULT_ACTION_MASK = "action_mask"
SEEDX_PREFIX, JAX_PREFIX = "seedx:", "jax:"
# Names of what comes with seedx begin so.
_OF_SEEDX = (SEEDX_PREFIX, *(f"{x}:" for x in (*_ALIASES, *_ALIASES.values())))
_OWN = pathlib.Path(__file__).parent.parent
# Options of EnvPool's tasks whose values are words of a known set. Others, such
# as `xml_file` and ViZDoom's `game_args`, make a simulator read files.
_WORDS = frozenset(
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
  )
)


@dataclasses.dataclass(frozen=True)
class Config:
  """An environment, and how its observations are changed.

  The environment is one of EnvPool's, one of seedx's (`seedx:CartPole-v1`, see
  `functional`) or your own. Your own is made by a factory, a function of yours
  that returns a Gymnasium `Env` or a `dm_env.Environment`; or, after `jax:`, a
  `functional.Environment`.
  The factory is called once for each environment, in a separate process. If it
  has a parameter `seed`, it is given the environment's seed; a factory of a
  `dm_env.Environment` must have one. Images of bytes become `[C, H, W]` after
  the `observation_transform`, if any.

  Attributes:
    env: EnvPool's name of the environment, seedx:NAME for one of seedx's, or
      MODULE:FACTORY for your own, in a module of the current directory or an
      installed one; jax:MODULE:FACTORY for your own of JAX functions.
    env_options: EnvPool's or the task's own options, or your factory's keyword
      arguments. EnvPool's `stack_num` is 1 by default: the network stacks
      frames.
    info_keys: entries of EnvPool's or Gymnasium's `info` to add to the
      observation, which becomes a dict, `{"observation": ..., key: ...}`.
    action_mask: the entry of the observation or of `info` that is nonzero for
      each legal discrete action. By default `action_mask`, if that entry exists
      and has one number for each action, else all actions are legal. An entry
      of another name must exist. Of several choices, the mask is of each,
      `[choices, values]`, or joint, with a number for each combination; with a
      joint mask the agent sees the combinations as so many actions.
    observation_transform: MODULE:FUNCTION of yours that maps observations `[B,
      ...]` to those that the agent sees, in NumPy.
  """

  env: str = types.setting("CartPole-v1", labels=False)
  env_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  info_keys: Sequence[str] = ()
  action_mask: str = DEFAULT_ACTION_MASK
  observation_transform: str = ""


def is_own(config: Config) -> bool:
  """Whether the user's factory makes the environment, in a process."""
  return ":" in config.env and not is_functional(config)


def is_functional(config: Config) -> bool:
  """Whether the environment is one of JAX functions, see `functional`."""
  return config.env.startswith((SEEDX_PREFIX, JAX_PREFIX))


def games(config: Config) -> str:
  """Returns whose games an environment is one of: "Atari", "MinAtar" or "".

  They are EnvPool's Atari and seedx's MinAtar.
  """
  if is_functional(config):
    own = re.fullmatch(f"{SEEDX_PREFIX}.+-MinAtar", config.env)
    return "MinAtar" if own else ""
  registration: Any = importlib.import_module("envpool.registration")
  known = registration.registry.specs.get(config.env, ("", "", {}))
  return "Atari" if known[1] == "AtariEnvSpec" else ""


def code_in(options: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings of a `Config` that make its user run others' code.

  A setting that another wrote, in a file or at the other end of a connection,
  is to be used only where the user has named the same code.

  Args:
    options: any settings by their names, as JSON.

  Returns:
    Those that name a module which does not come with seedx; all that its
    factory is called with, since it may name code in turn, as `gymnasium:make`
    does; and options that may make a simulator read files.
  """
  found = {
    name: options[name]
    for name in ("env", "observation_transform")
    if ":" in str(options.get(name, ""))
    and not str(options[name]).startswith(_OF_SEEDX)
  }
  given = options.get("env_options")
  if given and ("env" in found or not _are_plain(given)):
    found["env_options"] = given
  return found


def _are_plain(options: Any) -> bool:
  """Whether options of an environment name neither code nor files."""
  return isinstance(options, Mapping) and all(
    _is_plain(name, value) for name, value in options.items()
  )


def _is_plain(name: str, value: Any) -> bool:
  if isinstance(value, str):
    return name in _WORDS and bool(re.fullmatch(r"[\w ,+-]*", value))
  if isinstance(value, Mapping):
    return all(_is_plain(name, x) for x in value.values())
  if isinstance(value, list | tuple):
    return all(_is_plain(name, x) for x in value)
  return value is None or isinstance(value, bool | int | float)


def returns_are_sums(config: Config) -> bool:
  """Whether `types.Rows.episode_return` is the sum of an episode's rewards.

  EnvPool's Atari may clip rewards, and end an episode with each life.
  """
  options = config.env_options
  changed = options.get("reward_clip") or options.get("episodic_life")
  return ":" in config.env or not changed


def load_transform(config: Config) -> Transform | None:
  """The observation transform; None if the config has none.

  Raises:
    types.ConfigError: it cannot be imported, or is not callable.
  """
  name = config.observation_transform
  return load_function(name, "an observation transform") if name else None


def load_function(name: str, what: str) -> Callable[..., Any]:
  """Imports a function; modules of the current directory come first.

  Args:
    name: `package.module:function`.
    what: what the function is, for messages.

  Raises:
    types.ConfigError: it cannot be imported, or is not callable.
  """
  expected = f"expected {what} package.module:function, found {name!r}"
  module, colon, function = name.partition(":")
  module = _ALIASES.get(module, module)
  if not colon:
    raise types.ConfigError(f"{expected}, which has no colon")
  if module == "__main__":
    raise types.ConfigError(
      f"{expected}: a program cannot be imported, only a module can"
    )
  current_directory = str(pathlib.Path.cwd())
  if sys.path[0] != current_directory:
    sys.path.insert(0, current_directory)
  try:
    found = getattr(importlib.import_module(module), function)
  except Exception as error:  # A module may raise anything.
    raise types.ConfigError(f"{expected}: {in_one_line(error)}") from error
  if not callable(found):
    raise types.ConfigError(f"{expected}, which is not callable: {found!r}")
  return found


def pickled(value: Any) -> bytes:
  """Pickles a config, or what contains one, for another process.

  Raises:
    types.ConfigError: it cannot be pickled.
  """
  try:
    return pickle.dumps(value)
  except (pickle.PicklingError, AttributeError, TypeError) as error:
    raise types.ConfigError(
      f"expected options that can be pickled for another process: {error}"
    ) from error


def in_one_line(error: BaseException) -> str:
  """An exception's type, message and line of code, if this is the user's."""
  text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(" :")
  frames = traceback.extract_tb(error.__traceback__)
  if not frames or isinstance(error, ImportError):
    return text
  path = pathlib.Path(frames[-1].filename)
  if path.is_relative_to(_OWN):
    return text
  return f"{text} ({path.name}, line {frames[-1].lineno})"


def suggestion(name: str, known: Iterable[str]) -> str:
  """Known names for a message about an unknown one, similar ones first."""
  known = list(known)
  close = difflib.get_close_matches(name, known, n=3)
  start = f"Did you mean {' or '.join(close)}? " if close else ""
  return f"{start}Known: {', '.join(known) or 'none'}."
