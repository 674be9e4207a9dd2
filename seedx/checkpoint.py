"""Checkpoints of a run: nests of arrays on disk, written with Orbax.

A checkpoint exists as a whole or not at all, even if the process is killed
while it writes. Another process may read at the same time.
"""

import itertools
import os
import pathlib
import re
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from seedx import types

_SCORE = "score"
# Checkpoints are moved there, then deleted: no reader finds half of one.
_REMOVED = "removed"
_TRIES = 100
# What a checkpoint takes besides its arrays, at the most.
_MARGIN_BYTES = 2**20


class Checkpoints:
  """The checkpoints in a directory, by the env steps that they were made at.

  The newest `keep` and the best are kept. Only one thread may use it.

  Attributes:
    directory: an absolute path.
  """

  def __init__(
    self, directory: str | os.PathLike[str], keep: int | None = None
  ) -> None:
    """Opens a directory; the first `save` makes it if it does not exist.

    Args:
      directory: for the checkpoints.
      keep: how many of the newest a `save` keeps; None for all.
    """
    self.directory = pathlib.Path(directory).absolute()
    self._keep = keep
    self._opened: ocp.CheckpointManager | None = None

  def save(
    self, env_steps: int, items: Mapping[str, types.Tree], score: float
  ) -> None:
    """Writes a checkpoint, unless one with the same `env_steps` exists.

    Args:
      env_steps: since the start of the run.
      items: nests of arrays by name; each can be restored on its own.
      score: larger is better; -inf if unknown.

    Raises:
      OSError: the checkpoint cannot be written.
    """
    if env_steps in self.steps():
      return
    arrays = jax.tree.map(np.asarray, dict(items))
    on_host = {
      name: ocp.args.StandardSave(nest)  # type: ignore[call-arg]
      for name, nest in arrays.items()
    }
    try:
      self._check_room(arrays)
      self._manager(create=True).save(
        env_steps,
        args=ocp.args.Composite(**on_host),
        metrics={_SCORE: score},
        force=True,
      )
    except (OSError, ValueError) as error:  # Orbax raises a ValueError, too.
      raise OSError(
        f"cannot write checkpoint {env_steps} in {str(self.directory)!r}"
        f" ({_reason(error)})"
      ) from error
    finally:
      # No other process writes: they are of a save that failed, or was killed.
      unfinished = self.directory.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*")
      for left in [self.directory / _REMOVED, *unfinished]:
        shutil.rmtree(left, ignore_errors=True)

  def steps(self) -> list[int]:
    """The env steps of all checkpoints, ascending.

    Raises:
      types.ConfigError: a checkpoint is damaged.
    """
    if not self.directory.is_dir():
      return []
    for tries in itertools.count(1):
      try:
        manager = self._manager()
        manager.reload()
        return sorted(manager.all_steps())
      except FileNotFoundError:  # Another process has just removed one.
        if tries == _TRIES:
          raise
      except ValueError as error:
        raise types.ConfigError(
          f"expected complete checkpoints in {str(self.directory)!r}, found one"
          f" that is damaged ({error}); remove it"
        ) from error
    raise AssertionError("unreachable")

  def best(self) -> int | None:
    """The env steps of the checkpoint with the highest score.

    The newest of several; None if there is no checkpoint.
    """
    scores = []
    for step in self.steps():
      metrics = self._manager().metrics(step)
      if metrics is not None:  # Another process may have removed it.
        scores.append((metrics[_SCORE], step))
    return max(scores)[1] if scores else None

  def restore(self, env_steps: int, name: str, like: types.Tree) -> types.Tree:
    """Reads one nest of a checkpoint.

    Args:
      env_steps: the checkpoint's.
      name: the nest's, as given to `save`.
      like: a nest with the same structure, shapes and dtypes, of arrays or of
        `jax.ShapeDtypeStruct`.

    Returns:
      A nest of NumPy arrays.

    Raises:
      types.ConfigError: the checkpoint or nest does not exist, or has another
        structure or shapes.
    """
    where = f"checkpoint {env_steps} in {self.directory}"
    wanted = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), like
    )
    try:
      found = self._manager().restore(
        env_steps,
        args=ocp.args.Composite(**{name: ocp.args.StandardRestore(wanted)}),  # type: ignore[call-arg]
      )[name]
    except Exception as error:  # Orbax raises a KeyError, ValueError, ...
      first = next(iter(str(error).splitlines()), "")
      raise types.ConfigError(
        f"expected {name!r} with this program's structure in {where}, written"
        " with the same options by the same version, found another structure:"
        f" {first}"
      ) from error
    pairs = zip(
      jax.tree_util.tree_leaves_with_path(wanted),
      jax.tree.leaves(found),
      strict=True,
    )
    for (path, leaf), other in pairs:
      if leaf.shape != other.shape:
        raise types.ConfigError(
          f"expected {jax.tree_util.keystr(path)} of shape {leaf.shape} in"
          f" {where}, found {other.shape}: the run had other options"
        )
    return found

  def close(self) -> None:
    """Closes the directory."""
    if self._opened is not None:
      self._opened.close()
      self._opened = None

  def _check_room(self, arrays: types.Tree) -> None:
    """Raises OSError on a full disk; what Orbax says of it fills pages."""
    self.directory.mkdir(parents=True, exist_ok=True)
    needed = _MARGIN_BYTES + sum(x.nbytes for x in jax.tree.leaves(arrays))
    free = shutil.disk_usage(self.directory).free
    if free < needed:
      raise OSError(f"{needed:,} bytes are needed, {free:,} are free")

  def _manager(self, create: bool = False) -> ocp.CheckpointManager:
    if self._opened is None:
      policies = ocp.checkpoint_managers
      kept: Any = None
      if self._keep is not None:
        kept = policies.AnyPreservationPolicy(
          [
            policies.LatestN(self._keep),
            policies.BestN(
              get_metric_fn=_score,
              n=1,
              keep_checkpoints_without_metrics=False,
            ),
          ]
        )
      self._opened = ocp.CheckpointManager(
        self.directory,
        options=ocp.CheckpointManagerOptions(
          create=create,
          best_fn=_score,
          enable_async_checkpointing=False,
          preservation_policy=kept,
          todelete_subdir=_REMOVED,
        ),
      )
    return self._opened


def _reason(error: Exception) -> str:
  """The operating system's words in an error of Orbax's, if it has any."""
  found = re.search(r"os_error_code='(\d+)'", str(error))
  if found:
    return os.strerror(int(found[1]))
  first = next(iter(str(error).splitlines()), type(error).__name__)
  return getattr(error, "strerror", None) or first


def _score(metrics: Any) -> float:
  return metrics[_SCORE]
