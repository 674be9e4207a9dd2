"""Recordings: directories with episodes of an environment.

    <directory>/recording.json    environment, spec, and policy that acted
    <directory>/part-<number>     whole episodes, in the format of checkpoints

Each time step is stored once, without anything that belongs to an agent. So any
agent can learn from a recording, with unrolls of any length. The content may be
from another person: reading checks each number against the spec.
"""

import contextlib
import dataclasses
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import dm_env
import jax
import numpy as np

import seedx
from seedx import checkpoint, files, trees, types
from seedx.recordings import specs

_FORMAT = 1
_DESCRIPTION = "recording.json"
_PART = re.compile(r"part-(\d{6})")
# A part is written when its episodes have this many bytes, or are this old.
_PART_BYTES = 2**26
_PART_SECONDS = 60.0
# Limits of files that are read: bytes of a part; characters of a text.
_MAX_PART_BYTES = 2**32
_MAX_TEXT = 2**20
_MAX_WORDS = 4096
# The fields of an episode that have an element for each time step.
_STEPS = ("observation", "action", "reward", "discount")


class Episode(NamedTuple):
  """A whole episode of L time steps, which has L - 1 env steps.

  Attributes:
    observation: nest of `[L, ...]`.
    action: `[L, ...]`, the action taken at each time step; 0 at the last one.
    reward: `[L]` float32, the reward with which each time step arrived; 0 at
      the first one.
    discount: `[L]` float32, likewise; 1 at the first time step. At the last
      one, 0 means that the episode terminated, and 1 that it was truncated.
    seed: seed of the environment.
    episode_return: return of the game that ended with the episode, see
      `types.Rows`; NaN if none did.
  """

  observation: types.Tree
  action: np.ndarray
  reward: np.ndarray
  discount: np.ndarray
  seed: int
  episode_return: float

  @property
  def step_type(self) -> np.ndarray:
    """`[L]` uint8, FIRST, any number of MID, and LAST."""
    kinds = np.full(len(self.reward), dm_env.StepType.MID, np.uint8)
    kinds[0], kinds[-1] = dm_env.StepType.FIRST, dm_env.StepType.LAST
    return kinds


@dataclasses.dataclass(frozen=True)
class Description:
  """The content of `recording.json`.

  Attributes:
    env: settings of the environment's `envs.Config` by name, as JSON.
    spec: spec of the environment.
    policy: the policy that acted, in words.
    seedx: version of seedx that recorded.
  """

  env: Mapping[str, Any]
  spec: types.EnvironmentSpec
  policy: str
  seedx: str = seedx.__version__

  def to_json(self) -> dict[str, Any]:
    """Returns the description as a JSON object."""
    return {
      "format": _FORMAT,
      "seedx": self.seedx,
      "env": dict(self.env),
      "policy": self.policy,
      "spec": specs.to_json(self.spec),
    }

  @classmethod
  def read(cls, folder: files.Folder) -> Self:
    """Reads the description of a recording.

    Raises:
      types.ConfigError: there is no recording, or it cannot be read.
    """
    where = f"{_DESCRIPTION} in {str(folder)!r}"
    try:
      content = folder.read_json(_DESCRIPTION, _MAX_TEXT)
      env, policy, version = (content[x] for x in ("env", "policy", "seedx"))
      words = (policy, version)
      if not all(isinstance(x, str) and len(x) <= _MAX_WORDS for x in words):
        raise ValueError("expected texts as policy and as version of seedx")
      if not isinstance(env, dict):
        raise ValueError(f"expected settings as env, found {env!r:.80}")
      if content["format"] != _FORMAT:
        raise ValueError(f"it was written by seedx {version:.80}; use that one")
      return cls(env, specs.from_json(content["spec"]), policy, version)
    except (FileNotFoundError, NotADirectoryError) as error:
      raise types.ConfigError(
        f"expected the directory of a recording, found no {where}; `seedx"
        " record` makes one"
      ) from error
    except (KeyError, OSError, RecursionError, TypeError, ValueError) as error:
      reason = getattr(error, "strerror", None) or error
      raise types.ConfigError(f"cannot read {where} ({reason})") from error


class Recording:
  """A recording that is read.

  Attributes:
    folder: its directory.
    description: its environment, spec and policy.
    num_parts: number of parts.
  """

  def __init__(self, path: str) -> None:
    """Opens a recording; episodes are read, and checked, when they are used.

    Raises:
      types.ConfigError: there is no recording, it cannot be read, or a part is
        missing.
    """
    self.folder = files.Folder(path)
    self.description = Description.read(self.folder)
    names = map(_PART.fullmatch, self.folder.names())
    numbers = sorted(int(name[1]) for name in names if name)
    self.num_parts = len(numbers)
    if numbers != [*range(self.num_parts)]:
      missing = min({*range(self.num_parts)} - {*numbers})
      raise types.ConfigError(
        f"expected all parts of the recording {str(self.folder)!r}, found none"
        f" with the number {missing}"
      )

  def episodes(self) -> Iterator[Episode]:
    """Yields all episodes in the order in which they ended.

    Raises:
      checkpoint.Damaged: a part was changed.
      types.ConfigError: a part does not fit the spec, or a number in it is out
        of range or not finite.
    """
    where = f"the recording {str(self.folder)!r}"
    for name in map(_name, range(self.num_parts)):
      arrays = checkpoint.read(self.folder, name, None, _MAX_PART_BYTES, where)
      part = f"{name!r} of {where}"
      yield from episodes_of(arrays, self.description.spec, part)


class Writer:
  """A recording that is written, by one process.

  Attributes:
    num_episodes: number of episodes so far.
    env_steps: number of their env steps.
    next_seed: a seed that no episode so far has, nor a larger one.
    returns: returns of all episodes' games, in order.
  """

  def __init__(self, path: str, description: Description) -> None:
    """Makes the directory, or continues the recording that is there.

    Raises:
      types.ConfigError: the directory is not writable or in use, or has a
        recording of another environment or by another policy.
    """
    self._folder = files.open_folder(path)
    self._stack = contextlib.ExitStack()
    try:
      self._stack.enter_context(self._folder.locked())
    except BlockingIOError as error:
      raise types.ConfigError(
        f"another process is recording in {str(self._folder)!r}; wait until it"
        " ends, or choose another directory"
      ) from error
    self.num_episodes = self.env_steps = self.next_seed = 0
    self.returns: list[float] = []
    self._number = 0
    self._new: list[Episode] = []
    self._bytes, self._written = 0, time.monotonic()
    with contextlib.ExitStack() as failing:
      failing.callback(self._stack.close)
      self._begin(description)
      failing.pop_all()

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def add(self, episode: Episode) -> None:
    """Adds an episode, which is written with others.

    Raises:
      types.ConfigError: a part cannot be written.
    """
    self._count(episode)
    self._new.append(episode)
    self._bytes += sum(x.nbytes for x in jax.tree.leaves(episode[:4]))
    seconds = time.monotonic() - self._written
    if self._bytes >= _PART_BYTES or seconds >= _PART_SECONDS:
      self.flush()

  def flush(self) -> None:
    """Writes the episodes that are not on the disk; see `add`."""
    new, self._new, self._bytes = self._new, [], 0
    self._written = time.monotonic()
    if not new:
      return
    path = self._folder / _name(self._number)
    files.write_file(path, checkpoint.to_bytes(nest_of(new)))
    self._number += 1

  def close(self) -> None:
    """Writes all episodes, and ends the recording."""
    with self._stack:
      self.flush()

  def _begin(self, description: Description) -> None:
    if not self._folder.has(_DESCRIPTION):
      # Parts of nothing, which the new ones would replace.
      parts = filter(_PART.fullmatch, self._folder.names())
      files.check_free(self._folder, [*parts])
      text = json.dumps(description.to_json(), indent=2)
      files.write_file(self._folder / _DESCRIPTION, text + "\n")
      return
    past = Recording(str(self._folder))
    new = json.loads(json.dumps(description.to_json()))
    for name, value in past.description.to_json().items():
      if name != "seedx" and value != new[name]:
        raise types.ConfigError(
          f"expected a recording with the same {name} in"
          f" {str(self._folder)!r}, to add episodes to, found another; choose a"
          " new directory"
        )
    for episode in past.episodes():
      self._count(episode)
    self._number = past.num_parts

  def _count(self, episode: Episode) -> None:
    self.num_episodes += 1
    self.env_steps += len(episode.reward) - 1
    self.next_seed = max(self.next_seed, episode.seed + 1)
    self.returns.append(episode.episode_return)


def nest_of(episodes: Sequence[Episode]) -> dict[str, Any]:
  """Returns the content of a part."""
  steps = [dict(zip(_STEPS, x, strict=False)) for x in episodes]
  return {
    "steps": jax.tree.map(lambda *x: np.concatenate(x), *steps),
    "length": np.array([len(x.reward) for x in episodes], np.int64),
    "seed": np.array([x.seed for x in episodes], np.int64),
    "return": np.array([x.episode_return for x in episodes], np.float64),
  }


def episodes_of(
  arrays: Mapping[str, np.ndarray], spec: types.EnvironmentSpec, where: str
) -> list[Episode]:
  """Returns the episodes of a part's arrays by path, all of them checked.

  Raises:
    checkpoint.Damaged: shapes or dtypes do not fit the spec.
    types.ConfigError: a number is out of range or not finite.
  """
  try:
    return _episodes(arrays, spec, where)
  except _WrongError as error:
    raise types.ConfigError(f"{error} in {where}; record it again") from None


class _WrongError(Exception):
  """The error of a number that no recorder writes."""


def _name(number: int) -> str:
  return f"part-{number:06}"


def _episodes(
  arrays: Mapping[str, np.ndarray], spec: types.EnvironmentSpec, where: str
) -> list[Episode]:
  lengths = arrays.get("length", np.zeros(0, np.int64))
  if lengths.ndim != 1 or lengths.dtype != np.int64 or not len(lengths):
    raise _WrongError("expected at least one episode, found none")
  limit = max(x.size for x in arrays.values())
  if not (lengths.min() >= 2 and lengths.max() <= limit):
    raise _WrongError("expected episodes of at least two time steps")
  total = int(lengths.sum())

  nest = checkpoint.like(
    arrays,
    {
      "steps": _shapes(spec, total),
      "length": lengths,
      "seed": jax.ShapeDtypeStruct(lengths.shape, np.int64),
      "return": jax.ShapeDtypeStruct(lengths.shape, np.float64),
    },
    where,
  )
  steps, ends = nest["steps"], np.cumsum(lengths)
  starts = ends - lengths
  _check(steps, starts, ends - 1, spec)
  seeds, returns = nest["seed"], nest["return"]
  if seeds.min() < 0 or np.isinf(returns).any():
    raise _WrongError("expected seeds from 0 and finite returns")
  episodes = []
  for a, b, seed, value in zip(starts, ends, seeds, returns, strict=True):
    part = jax.tree.map(lambda x, a=a, b=b: x[a:b], steps)
    episodes.append(
      Episode(**part, seed=int(seed), episode_return=float(value))
    )
  return episodes


def _shapes(spec: types.EnvironmentSpec, length: int) -> dict[str, Any]:
  """Returns the shapes and dtypes of a number of time steps."""

  def shaped(leaf: dm_env.specs.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((length, *leaf.shape), leaf.dtype)

  number = jax.ShapeDtypeStruct((length,), np.float32)
  return {
    "observation": jax.tree.map(shaped, spec.observation),
    "action": shaped(spec.action),
    "reward": number,
    "discount": number,
  }


def _check(
  steps: dict[str, Any],
  first: np.ndarray,
  last: np.ndarray,
  spec: types.EnvironmentSpec,
) -> None:
  """Checks time steps; `first` and `last` are indices of episodes' ends."""
  path = trees.non_finite(steps)
  if path is not None:
    raise _WrongError(f"expected finite numbers, found another in {path}")
  reward, discount, action = (
    steps[x] for x in ("reward", "discount", "action")
  )
  if discount.min() < 0 or discount.max() > 1:
    raise _WrongError("expected discounts from 0 to 1")
  if reward[first].any() or (discount[first] != 1).any():
    raise _WrongError("expected reward 0 and discount 1 at an episode's start")
  taken = np.ones(len(reward), np.bool_)
  taken[last] = False
  low, high = spec.action.minimum, spec.action.maximum
  if not ((action >= low) & (action <= high))[taken].all():
    raise _WrongError("expected actions within the bounds of the spec")
  leaves = jax.tree.leaves(steps["observation"])
  for (path, leaf), value in zip(
    checkpoint.named(spec.observation), leaves, strict=True
  ):
    if not np.issubdtype(leaf.dtype, np.integer):
      continue  # The bounds of floats are often placeholders.
    low, high = (getattr(leaf, x, value) for x in ("minimum", "maximum"))
    if ((value < low) | (value > high)).any():
      raise _WrongError(
        f"expected observations within the bounds of the spec in {path!r}"
      )
