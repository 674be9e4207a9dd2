"""Checkpoints of a run: nests of arrays on disk, written with Orbax.

It knows nothing of agents: what is in a nest is for others to say. A checkpoint
is there as a whole or not at all, also where the process is killed meanwhile,
and another process may read while this one writes.
"""

import itertools
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from seedx import types

_SCORE = "score"
# Those that go are moved there first: a reader finds them whole or not at all.
_REMOVED = "removed"
_TRIES = 100


class Checkpoints:
  """The checkpoints in a directory, each with the env steps it was made at.

  The newest `keep` of them are kept, and the best. One thread may use it.

  Attributes:
    directory: where they are.
  """

  def __init__(
    self, directory: str | os.PathLike[str], keep: int | None = None
  ) -> None:
    """Looks for what there is; makes no directory before the first `save`.

    Args:
      directory: where they are.
      keep: how many of the newest are kept at a `save`; None for all.
    """
    self.directory = pathlib.Path(directory).absolute()
    self._keep = keep
    self._opened: ocp.CheckpointManager | None = None

  def save(
    self, env_steps: int, items: Mapping[str, types.Tree], score: float
  ) -> None:
    """Writes a checkpoint, unless there is one of as many env steps.

    Args:
      env_steps: since the start of the run.
      items: nests of arrays by name; each can be restored by itself.
      score: the larger, the better; -inf where nothing is known.

    Raises:
      OSError: it cannot be written.
    """
    if env_steps in self.steps():
      return
    on_host = {
      name: ocp.args.StandardSave(jax.tree.map(np.asarray, nest))  # type: ignore[call-arg]
      for name, nest in items.items()
    }
    self._manager(create=True).save(
      env_steps,
      args=ocp.args.Composite(**on_host),
      metrics={_SCORE: score},
      force=True,
    )
    # Nobody else writes: what is unfinished is of a process that was killed.
    unfinished = self.directory.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*")
    for left in [self.directory / _REMOVED, *unfinished]:
      shutil.rmtree(left, ignore_errors=True)

  def steps(self) -> list[int]:
    """The env steps of the checkpoints that there are, ascending.

    Raises:
      types.ConfigError: one of them is damaged.
    """
    if not self.directory.is_dir():
      return []
    for tries in itertools.count(1):
      try:
        manager = self._manager()
        manager.reload()
        return sorted(manager.all_steps())
      except FileNotFoundError:  # Another process has removed one meanwhile.
        if tries == _TRIES:
          raise
      except ValueError as error:
        raise types.ConfigError(
          f"expected whole checkpoints in {str(self.directory)!r}, found one"
          f" that is damaged ({error}); remove it"
        ) from error
    raise AssertionError("unreachable")

  def best(self) -> int | None:
    """The env steps of the one with the highest score, of several the newest.

    None where there is no checkpoint.
    """
    scores = []
    for step in self.steps():
      metrics = self._manager().metrics(step)
      if metrics is not None:  # Another process may have removed it.
        scores.append((metrics[_SCORE], step))
    return max(scores)[1] if scores else None

  def restore(self, env_steps: int, name: str, like: types.Tree) -> types.Tree:
    """Reads an item of a checkpoint.

    Args:
      env_steps: which checkpoint.
      name: of the item.
      like: a nest of its form, of arrays or of `jax.ShapeDtypeStruct`.

    Returns:
      A nest of NumPy arrays.

    Raises:
      types.ConfigError: there is no such checkpoint or item, or it is of
        another form.
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
        f"expected {name!r} of this program's form in {where}, written with the"
        f" same options by the same version, found another: {first}"
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
          f" {where}, found {other.shape}: it was written with other options"
        )
    return found

  def close(self) -> None:
    """Lets go of the directory."""
    if self._opened is not None:
      self._opened.close()
      self._opened = None

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


def _score(metrics: Any) -> float:
  return metrics[_SCORE]
