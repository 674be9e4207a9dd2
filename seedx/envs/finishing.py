"""Rows of environments as agents see them: joined, transformed, checked."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NoReturn

import dm_env
import numpy as np
import tree

from seedx import trees, types
from seedx.envs import config as env_config
from seedx.envs import env_specs


def check_numbers(
  num_envs: int, batch_size: int | None, num_threads: int, seed: int
) -> int:
  """Checks the arguments of `make`; returns the batch size.

  Raises:
    types.ConfigError: a number is out of range.
  """
  batch_size = num_envs if batch_size is None else batch_size
  types.check_range("num_envs", num_envs, 1, 2**31 - 1)
  types.check_range("batch_size", batch_size, 1, num_envs)
  types.check_range("num_threads", num_threads, 1, 2**31 - 1)
  types.check_range("seed", seed, 0, 2**31 - num_envs)
  return batch_size


NO_FIRST = (
  "expected a FIRST step at the beginning and after each LAST, found another"
)


def failure(name: str, k: int, seed: int, reason: str) -> str:
  """Returns the message for a failure of environment k, seeded `seed + k`."""
  return (
    f"environment {k} of {name}, with the seed {seed + k}, failed: {reason}"
  )


@dataclasses.dataclass(frozen=True)
class Finisher:
  """Turns raw time steps into what the agent sees.

  Attributes:
    config: the environments' config.
    seed: seed of environment 0; environment k has the seed `seed + k`.
    spec: the spec that the agent sees.
    transform: the observation transform; None for no change.
    restart_seeds: replacements of `seed`, by index of a restarted environment.
  """

  config: env_config.Config
  seed: int
  spec: types.EnvironmentSpec
  transform: env_config.Transform | None
  restart_seeds: Mapping[int, int] = dataclasses.field(default_factory=dict)

  def __call__(
    self, index: np.ndarray, last: np.ndarray, timestep: dm_env.TimeStep
  ) -> dm_env.TimeStep:
    """Transforms observations; checks them, their action mask and rewards.

    Args:
      index: `[B]` indices of the environments.
      last: `[B]` bool, whether the episode has ended. If so, a mask without a
        legal action becomes one where all are legal.
      timestep: `[B, ...]`, with entries of `info` in the observation.

    Raises:
      RuntimeError: an observation or a reward is NaN or infinite.
      ValueError: no action is legal although the episode continues, or an
        integer from the transform does not fit into the dtype of its spec.
    """
    observation = timestep.observation
    if self.transform is not None:
      observation = tree.map_structure(
        _as_spec, self.spec.observation, self.transform(observation)
      )
    leaves = tree.flatten(observation)
    if _not_finite(timestep.reward) or any(map(_not_finite, leaves)):
      self._refuse(index, timestep, observation)
    if [leaf.shape[1:] for leaf in leaves] != self._shapes:
      observation = tree.map_structure(
        lambda spec, leaf: np.ascontiguousarray(env_specs.seen(spec, leaf)),
        self.spec.observation,
        observation,
      )
    if self.spec.action_mask is not None:
      observation = self._with_legal(observation, index, last)
    return timestep._replace(observation=observation)

  @functools.cached_property
  def _shapes(self) -> list[tuple[int, ...]]:
    return [spec.shape for spec in tree.flatten(self.spec.observation)]

  def _refuse(
    self, index: np.ndarray, timestep: dm_env.TimeStep, observation: types.Tree
  ) -> NoReturn:
    named = trees.named_leaves(
      {
        "observation": timestep.observation,
        "reward": timestep.reward,
        "transformed observation": observation,
      }
    )
    name, leaf = next(item for item in named if _not_finite(item[1]))
    wrong = ~np.isfinite(leaf.reshape(len(index), -1))
    row = int(wrong.any(axis=1).argmax())
    value = leaf.reshape(len(index), -1)[row][wrong[row]][0]
    reason = f"expected finite numbers, found {value} in its {name}"
    if name.startswith("transformed"):
      reason += (
        f", which the observation transform {self.config.observation_transform}"
        " has made from finite numbers"
      )
    raise RuntimeError(
      self._failure(int(index[row]), reason)
      + types.see("numbers-that-are-not-finite")
    )

  def _failure(self, k: int, reason: str) -> str:
    seed = self.restart_seeds.get(k, self.seed)
    return failure(self.config.env, k, seed, reason)

  def _with_legal(
    self, observation: types.Tree, index: np.ndarray, last: np.ndarray
  ) -> types.Tree:
    """Makes all actions legal where none is, or raises an error."""
    key = self.spec.action_mask
    assert key is not None
    mask = observation[key]
    none_legal = ~np.any(mask, axis=-1)
    # Among several choices, one without a legal value is no error.
    stuck = none_legal.reshape(len(index), -1).all(axis=1) & ~last
    if np.any(stuck):
      raise ValueError(
        self._failure(
          int(index[stuck][0]),
          f"expected a legal action in the mask {key!r} while its episode"
          " continues, found none: end the episode where no action is legal, or"
          " set action_mask to another entry",
        )
      )
    if not np.any(none_legal):
      return observation
    mask = mask.copy()
    mask[none_legal] = 1
    return observation | {key: mask}


def unravelled(
  spec: dm_env.specs.BoundedArray, action: Any, numpy: Any = np
) -> Any:
  """Converts indices of combinations, `[B]`, to choices, `[B, A]`.

  Other actions are not changed. The indices stand for combinations of choices
  if a mask covers all of these, see `environment_spec`.

  Args:
    spec: spec of the agent's actions, before a mask joined choices.
    action: `[B, ...]`, NumPy's or JAX's.
    numpy: module of the array, `numpy` or `jax.numpy`.
  """
  if action.ndim > len(spec.shape):
    return action
  return numpy.stack(
    numpy.unravel_index(action, env_specs.num_values(spec)), axis=-1
  )


def checked_action(
  spec: dm_env.specs.BoundedArray,
  separate: dm_env.specs.BoundedArray,
  index: np.ndarray,
  action: np.ndarray,
) -> np.ndarray:
  """Checks the agent's actions, and converts indices of combinations.

  Args:
    spec: spec of the agent's actions.
    separate: spec before a mask joined the choices, see `environment_spec`.
    index: `[B]` indices of the environments.
    action: `[B, *action_shape]`.

  Raises:
    ValueError: the shape is wrong, or a discrete action is out of range.
  """
  expected = (len(index), *spec.shape)
  if np.shape(action) != expected:
    raise ValueError(
      f"expected actions of shape {expected}, found {np.shape(action)}"
    )
  action = np.asarray(action, spec.dtype)
  choices, maximum = action, spec.maximum
  if isinstance(spec, types.HybridArray):
    choices, maximum = action[:, : spec.num_choices], spec.choices.maximum
  is_discrete = spec.dtype.kind == "i" or choices is not action
  # NaN is not in the range, either.
  if is_discrete and not np.all((choices >= 0) & (choices <= maximum)):
    raise ValueError(
      f"expected actions from 0 to {maximum}, found "
      f"{choices.min()} to {choices.max()}"
    )
  return unravelled(separate, action)


def checked_frame(frame: Any, name: str) -> np.ndarray:
  """Checks a rendered frame, `[H, W, 3]` uint8, and returns a copy.

  Raises:
    types.ConfigError: the frame is something else.
  """
  actual = type(frame).__name__
  if isinstance(frame, np.ndarray):
    if frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[-1] == 3:
      return frame.copy()
    actual = f"{frame.dtype} of shape {frame.shape}"
  raise types.ConfigError(
    f"{name} cannot be rendered: expected a frame [H, W, 3] of uint8, found"
    f" {actual}"
  )


def _not_finite(array: np.ndarray) -> bool:
  return array.dtype.kind == "f" and not np.isfinite(array).all()


def _as_spec(spec: dm_env.specs.Array, leaf: Any) -> np.ndarray:
  array = np.asarray(leaf)
  env_specs.check_fits("the transformed observation", array, spec.dtype)
  return array.astype(spec.dtype, copy=False)
