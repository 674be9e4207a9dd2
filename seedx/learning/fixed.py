"""Experience from a recording, which never changes."""

import zlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from seedx import metrics, types
from seedx.learning import experience, replay_source


class FixedSource(experience.Experience):
  """Batches of windows from a recording.

  Each core has a copy of the recording. A batch depends only on the key and on
  the number of batches before it, so a resumed run continues with the batches
  that it would have had.
  """

  def __init__(
    self,
    core_replay: replay_source.CoreReplay,
    share: types.Share,
    cores: Sequence[jax.Device],
    rng_key: jax.Array,
  ) -> None:
    """Copies the recording to the devices.

    Args:
      core_replay: replay of each core, for one unroll.
      share: the unroll of all episodes.
      cores: the learner devices of this process.
      rng_key: random key of the sampling.

    Raises:
      types.ConfigError: the unroll is shorter than a window.
    """
    self._num_drawn = 0
    self._size, self._checksum = len(share.data.version), 0
    for leaf in jax.tree.leaves(share):
      content = np.ascontiguousarray(leaf).data
      self._checksum = zlib.crc32(content, self._checksum)
    self._draw = jax.jit(core_replay.draw)
    init = jax.jit(core_replay.init)
    add = jax.jit(core_replay.add, donate_argnums=0)
    self._keys, self._states = [], []
    for i, core in enumerate(cores):
      key = jax.random.fold_in(rng_key, i)
      self._keys.append(jax.device_put(key, core))
      share = jax.device_put(share, core)
      self._states.append(add(init(share), share))

  def __call__(
    self, shares: Sequence[types.Share] = ()
  ) -> Iterator[experience.Batch]:
    """Yields the next batch."""
    batch = self.example(shares)
    self._num_drawn += 1
    yield batch

  def example(self, shares: Sequence[types.Share] = ()) -> experience.Batch:
    """Returns the next batch, which stays the next one."""
    index = self._num_drawn
    parts = [
      self._draw(state, key, np.int32(index), np.float32(index))[0]
      for state, key in zip(self._states, self._keys, strict=True)
    ]
    return experience.Batch(parts)

  def resume(self, updates: int, resets: float) -> None:
    """Continues with the batch of an update."""
    self._num_drawn = updates

  def measure(self) -> dict[str, metrics.Value]:
    """Returns the number of time steps of the recording."""
    return {"replay_size": self._size}

  def saved(self) -> types.Tree:
    """Returns a checksum, which a checkpoint stores in place of the data."""
    return {"crc32": np.int64(self._checksum)}

  def restore(self, saved: types.Tree) -> None:
    """Raises types.ConfigError if the checkpoint is of another recording."""
    if int(saved["crc32"]) != self._checksum:
      raise types.ConfigError(
        "expected the recording that the run began with, found another one;"
        " begin a new run, with --init-from to keep its parameters"
      )
