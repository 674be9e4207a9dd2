"""Which environment is meant, as data that a remote actor can be sent."""

import dataclasses
import difflib
import importlib
import pathlib
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import dm_env.specs
import numpy as np
import tree

from seedx import trees, types

Transform = Callable[[types.Tree], types.Tree]

# Modules by the names that they had before.
_ALIASES = {"experiments.transforms": "seedx.envs.transforms"}
DEFAULT_ACTION_MASK = "action_mask"
_NARROWED_DTYPES = {
  np.dtype(np.float64): np.dtype(np.float32),
  np.dtype(np.int64): np.dtype(np.int32),
  np.dtype(np.uint64): np.dtype(np.uint32),
}


@dataclasses.dataclass(frozen=True)
class Config:
  """An environment, and what is done to its observations.

  A factory of the user's returns a Gymnasium `Env` or a `dm_env.Environment`.
  It is called in processes of its own, once for each environment. A `seed`
  that it takes is the environment's; where it returns a `dm_env.Environment`
  it has to take one. Networks take images as `[C, H, W]` bytes; an
  `observation_transform` can turn others.

  Attributes:
    env: EnvPool's name of the environment, or MODULE:FACTORY for one of yours,
      in a module of the current directory or any that is installed.
    env_options: EnvPool's own options, or your factory's keyword arguments.
      EnvPool's `stack_num` is 1 if not given: the network stacks frames.
    info_keys: entries of `info`, EnvPool's or Gymnasium's, that join the
      observation, which becomes a dict, `{"observation": ..., key: ...}`.
    action_mask: the entry of the observation, or else of `info`, that says
      which of the discrete actions are legal. Where there is no `action_mask`
      of the actions' shape, all of them are; another name must be there.
    observation_transform: MODULE:FUNCTION of yours, from observations `[B,
      ...]` to those that the agent sees, in NumPy.
  """

  env: str = "CartPole-v1"
  env_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  info_keys: Sequence[str] = ()
  action_mask: str = DEFAULT_ACTION_MASK
  observation_transform: str = ""


def narrowed(dtype: np.dtype) -> np.dtype:
  """The dtype in which values of `dtype` leave this package."""
  return _NARROWED_DTYPES.get(dtype, dtype)


def is_own(config: Config) -> bool:
  """Whether a factory of the user's makes the environment, not EnvPool."""
  return ":" in config.env


def load_transform(name: str) -> Transform:
  """The function of a `package.module:function`; modules here come first.

  Raises:
    types.ConfigError: there is no such function.
  """
  return _load(name, "an observation transform")


def load_factory(name: str) -> Callable[..., Any]:
  """What a `package.module:factory` names; modules here come first.

  Raises:
    types.ConfigError: there is nothing of that name that can be called.
  """
  factory = _load(name, "an environment factory")
  if not callable(factory):
    raise types.ConfigError(
      "expected an environment factory package.module:function, found"
      f" {name!r}, which is not callable: {factory!r}"
    )
  return factory


def pickled(work: Any) -> bytes:
  """A config, or what has one, for another process.

  Raises:
    types.ConfigError: it cannot be pickled.
  """
  try:
    return pickle.dumps(work)
  except (pickle.PicklingError, AttributeError, TypeError) as error:
    raise types.ConfigError(
      f"expected options that can be pickled for a process of its own: {error}"
    ) from error


def in_one_line(error: BaseException) -> str:
  """What an exception is and says, and where it was raised."""
  said = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(" :")
  frames = traceback.extract_tb(error.__traceback__)
  if not frames or isinstance(error, ImportError):
    return said
  place = frames[-1]
  return f"{said} ({pathlib.Path(place.filename).name}, line {place.lineno})"


def suggestion(name: str, known: Iterable[str]) -> str:
  """What an unknown name may have been meant to be."""
  known = list(known)
  close = difflib.get_close_matches(name, known, n=3)
  start = f"Did you mean {' or '.join(close)}? " if close else ""
  return f"{start}Known: {', '.join(known) or 'none'}."


def transformed(
  observation: types.Tree, transform: Transform, name: str
) -> types.Tree:
  """The specs of what a transform makes of observations.

  Args:
    observation: a nest of specs.
    transform: maps `[B, ...]` to `[B, ...]`.
    name: of the transform, for messages.

  Raises:
    types.ConfigError: it fails on an example, or loses the batch axis.
  """
  example = trees.zeros(observation, (2,))
  try:
    results = tree.map_structure(np.asarray, transform(example))
  except Exception as error:
    raise types.ConfigError(
      f"the observation transform {name} fails on {observation}: {error!r}"
    ) from error
  before = {
    id(leaf): spec
    for leaf, spec in zip(
      tree.flatten(example), tree.flatten(observation), strict=True
    )
  }

  def spec(leaf: np.ndarray) -> dm_env.specs.Array:
    if leaf.shape[:1] != (2,):
      raise types.ConfigError(
        f"expected the observation transform {name} to keep the batch axis of"
        f" size 2, found shape {leaf.shape}"
      )
    # A part that the transform passes on stays discrete, or bounded.
    return before.get(id(leaf)) or dm_env.specs.Array(
      leaf.shape[1:], narrowed(leaf.dtype)
    )

  return tree.map_structure(spec, results)


def _load(name: str, what: str) -> Any:
  module, colon, function = name.partition(":")
  module = _ALIASES.get(module, module)
  here = str(pathlib.Path.cwd())
  if sys.path[0] != here:
    sys.path.insert(0, here)
  try:
    if not colon:
      raise AttributeError("the name has no colon")
    if module == "__main__":
      raise AttributeError("a program cannot be imported, only a module can")
    return getattr(importlib.import_module(module), function)
  except Exception as error:  # A module may raise anything.
    raise types.ConfigError(
      f"expected {what} package.module:function, found {name!r}:"
      f" {in_one_line(error)}"
    ) from error
