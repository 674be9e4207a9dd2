"""Which environment is meant, as data that a remote actor can be sent."""

import dataclasses
import importlib
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dm_env.specs
import numpy as np
import tree

from seedx import trees, types

Transform = Callable[[types.Tree], types.Tree]

DEFAULT_ACTION_MASK = "action_mask"
_NARROWED_DTYPES = {
  np.dtype(np.float64): np.dtype(np.float32),
  np.dtype(np.int64): np.dtype(np.int32),
}


@dataclasses.dataclass(frozen=True)
class Config:
  """An environment, and what is done to its observations.

  Attributes:
    env_id: any of `envpool.list_all_envs()`.
    options: of EnvPool for this environment. `stack_num`, where a family has
      it, is 1 if not given: frames are stacked by the network.
    info_keys: entries of EnvPool's `info` that join the observation, which
      becomes the dict `{"observation": ..., key: ...}`; a dict gets them added.
    action_mask: the entry of the observation, or else of `info`, that says
      which of the discrete actions are legal. Where there is no `action_mask`
      of the actions' shape, all of them are; another name must be there.
    transform: `package.module:function`, of a function that maps observations
      `[B, ...]` to those that the agent sees, in NumPy.
  """

  env_id: str
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  info_keys: Sequence[str] = ()
  action_mask: str = DEFAULT_ACTION_MASK
  transform: str = ""


def narrowed(dtype: np.dtype) -> np.dtype:
  """The dtype in which values of `dtype` leave this package."""
  return _NARROWED_DTYPES.get(dtype, dtype)


def load_transform(name: str) -> Transform:
  """The function of a `package.module:function`; modules here come first.

  Raises:
    types.ConfigError: there is no such function.
  """
  module, colon, function = name.partition(":")
  here = str(pathlib.Path.cwd())
  if sys.path[0] != here:
    sys.path.insert(0, here)
  try:
    if not colon:
      raise AttributeError("the name has no colon")
    return getattr(importlib.import_module(module), function)
  except (AttributeError, ImportError, TypeError, ValueError) as error:
    raise types.ConfigError(
      f"expected an observation transform package.module:function, found"
      f" {name!r}: {error}"
    ) from error


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
