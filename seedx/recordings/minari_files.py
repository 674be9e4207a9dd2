"""Minari's data sets as recordings, and recordings as Minari's data sets.

Younis et al. 2024, https://minari.farama.org. Nothing is downloaded.
"""

import functools
import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import dm_env.specs
import gymnasium
import numpy as np
import tree

from seedx import checkpoint, types
from seedx.envs import actions, env_specs
from seedx.envs import config as env_config
from seedx.envs.processes import single, single_gymnasium
from seedx.recordings import storage

_T = TypeVar("_T")
# seedx's name of any environment of Gymnasium.
_GYMNASIUM = "gymnasium:make"
_PREFIX = "minari:"


def opened(path: str) -> "storage.Recording | Dataset":
  """Opens a recording: a directory, or a Minari data set `minari:NAME`.

  Raises:
    types.ConfigError: see `storage.Recording` and `Dataset`.
  """
  if path.startswith(_PREFIX):
    return Dataset(path.removeprefix(_PREFIX))
  return storage.Recording(path)


class Dataset:
  """A Minari data set on this machine; see `storage.Recording`.

  Attributes:
    folder: its directory.
    description: its environment, spec and policy. The environment is that of
      Gymnasium, with its id; or none, if the data set has none.
  """

  def __init__(self, name: str) -> None:
    """Opens a data set.

    Raises:
      types.ConfigError: Minari is not installed, the data set is not on this
        machine or cannot be read, or has actions that are not one array.
    """
    self._name = f"{_PREFIX}{name}"
    self._data = self._attempt(lambda: _minari().load_dataset(name))
    self.folder = pathlib.Path(self._data.spec.data_path)
    spec, env = self._data.spec.env_spec, {}
    if spec is not None:
      env = {"env": _GYMNASIUM, "env_options": {"id": spec.id, **spec.kwargs}}
    observation_space = single_gymnasium.without_text(
      self._name, self._data.observation_space
    )
    self._leaves = single.leaves(
      observation_space, functools.partial(single_gymnasium.leaf, self._name)
    )
    space = self._data.action_space
    native = single_gymnasium.action(self._name, space)
    action = actions.Actions(self._name, native)
    is_plain = getattr(native, "shape", None) == action.spec.shape
    if not is_plain or np.any(getattr(space, "start", 0)):
      raise types.ConfigError(
        f"expected actions in {self._name} that are a vector of numbers or one"
        f" choice from 0, found {space}"
      )
    self.description = storage.Description(
      env,
      env_specs.environment_spec(
        env_config.Config(_GYMNASIUM),
        tree.map_structure(lambda leaf: leaf.spec, self._leaves),
        action.spec,
        action.native,
      ),
      str(self._data.storage.metadata.get("algorithm_name", "")),
    )

  def episodes(self) -> Iterator[storage.Episode]:
    """Yields all episodes; see `storage.Recording.episodes`."""
    spec = self.description.spec
    for index in range(self._data.total_episodes):
      read = functools.partial(self._episode, index)
      nest = storage.nest_of([self._attempt(read)])
      where = f"episode {index} of {self._name}"
      yield from storage.episodes_of(dict(checkpoint.named(nest)), spec, where)

  def _episode(self, index: int) -> storage.Episode:
    (data,) = self._data.iterate_episodes([index])
    spec, length = self.description.spec, len(data.rewards)

    def seen(leaf: single.Leaf, spec: dm_env.specs.Array, x: Any) -> np.ndarray:
      x = np.asarray(x) - (0 if leaf.offset is None else leaf.offset)
      env_specs.check_fits(self._name, x, leaf.spec.dtype)
      seen: np.ndarray = env_specs.seen(spec, x.astype(leaf.spec.dtype))
      return seen[: length + 1]

    action = np.asarray(data.actions).astype(spec.action.dtype)
    if spec.action.dtype.kind == "f":
      action = np.clip(action, spec.action.minimum, spec.action.maximum)
    discount = np.ones(length + 1, np.float32)
    discount[-1] = not data.terminations[-1]
    observation = tree.map_structure_up_to(
      self._leaves, seen, self._leaves, spec.observation, data.observations
    )
    return storage.Episode(
      observation,
      np.concatenate([action, np.zeros_like(action[:1])]),
      np.concatenate([[0.0], data.rewards]).astype(np.float32),
      discount,
      seed=int(data.id),
      episode_return=float(np.sum(data.rewards)),
    )

  def _attempt(self, function: Callable[[], _T]) -> _T:
    try:
      return function()
    except types.ConfigError:
      raise
    except FileNotFoundError as error:
      raise types.ConfigError(
        f"expected {self._name} on this machine, found none; `minari download`"
        " fetches a data set"
      ) from error
    except Exception as error:  # Minari and HDF5 raise many kinds.
      reason = env_config.in_one_line(error)
      raise types.ConfigError(f"cannot read {self._name} ({reason})") from error


def write(recording: storage.Recording, name: str) -> None:
  """Writes a recording as a Minari data set.

  Raises:
    types.ConfigError: Minari is not installed, or cannot write it.
  """
  minari, described = _minari(), recording.description
  from minari.data_collector import EpisodeBuffer

  options = dict(described.env.get("env_options", {}))
  is_gymnasium = described.env["env"] == _GYMNASIUM
  buffers = []
  for k, episode in enumerate(recording.episodes()):
    is_last = np.arange(1, len(episode.reward)) == len(episode.reward) - 1
    ended = episode.discount[-1] == 0
    buffers.append(
      EpisodeBuffer(
        id=k,
        seed=episode.seed,
        observations=episode.observation,
        actions=episode.action[:-1],
        rewards=episode.reward[1:],
        terminations=is_last & ended,
        truncations=is_last & ~ended,
      )
    )
  try:
    with warnings.catch_warnings():  # It asks for an author, among others.
      warnings.simplefilter("ignore", UserWarning)
      minari.create_dataset_from_buffers(
        name,
        buffers,
        env=gymnasium.spec(options["id"]) if is_gymnasium else None,
        observation_space=_space(described.spec.observation),
        action_space=_space(described.spec.action),
        algorithm_name=described.policy,
        description=f"{described.env['env']}, recorded by seedx",
        jpeg_encoding=False,
      )
  except Exception as error:
    reason = env_config.in_one_line(error)
    raise types.ConfigError(
      f"cannot write the Minari data set {name!r} ({reason})"
    ) from error


def _minari() -> Any:
  try:
    import minari
  except ImportError as error:
    raise types.ConfigError(
      f"expected Minari, found that it cannot be imported ({error}); install"
      ' it with pip install "seedx[offline]"'
    ) from error
  return minari


def _space(spec: Any) -> gymnasium.Space:
  """Returns the space of a spec, or of a nest of them."""
  if isinstance(spec, dict):
    return gymnasium.spaces.Dict({key: _space(x) for key, x in spec.items()})
  if isinstance(spec, tuple | list):
    return gymnasium.spaces.Tuple([_space(x) for x in spec])
  if isinstance(spec, dm_env.specs.DiscreteArray):
    return gymnasium.spaces.Discrete(int(spec.num_values))
  range_ = (-np.inf, np.inf)
  if spec.dtype.kind in "iu":
    range_ = (np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max)
  low, high = (
    np.broadcast_to(np.asarray(x, spec.dtype), spec.shape)
    for x in (
      getattr(spec, "minimum", range_[0]),
      getattr(spec, "maximum", range_[1]),
    )
  )
  return gymnasium.spaces.Box(low, high, spec.shape, spec.dtype)
