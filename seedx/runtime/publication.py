"""Acting parameters that a learner publishes on the devices that act."""

import collections
import dataclasses
import threading
from collections.abc import Sequence

import jax

from seedx import sharding, types


class Publication:
  """The newest acting parameters on each device that acts.

  An update may still be computing the newest parameters. Until the update has
  ended, `newest` returns older ones, so that acting does not wait for learning.
  """

  def __init__(self, devices: Sequence[jax.Device]) -> None:
    self._devices = tuple(dict.fromkeys(devices))
    self._lock = threading.Lock()
    # The first version is computed; updates may still compute the others.
    self._versions: collections.deque[_Version] = collections.deque()

  def put(self, acting: types.Tree, version: int, wait: bool) -> None:
    """Publishes acting parameters; if `wait`, waits until they are computed.

    No later update may donate the parameters: on a device that already has
    them, they are not copied.
    """
    on_devices = {x: sharding.put(acting, x) for x in self._devices}
    if wait:
      jax.block_until_ready(list(on_devices.values()))
    with self._lock:
      self._versions.append(_Version(on_devices, version))
      self._drop_older()

  def newest(self, device: jax.Device | None = None) -> tuple[types.Tree, int]:
    """Returns the newest computed parameters on a device, and their version.

    A `device` of None is the first device.
    """
    with self._lock:
      self._drop_older()
      newest = self._versions[0]
    return newest.on_devices[device or self._devices[0]], newest.version

  def _drop_older(self) -> None:
    while len(self._versions) > 1 and self._versions[1].is_computed():
      self._versions.popleft()


@dataclasses.dataclass(frozen=True, eq=False)
class _Version:
  """Acting parameters on each device, and their version."""

  on_devices: dict[jax.Device, types.Tree]
  version: int

  def is_computed(self) -> bool:
    return is_ready(list(self.on_devices.values()))


def is_ready(nest: types.Tree) -> bool:
  """Returns whether these arrays can be read without waiting."""
  return all(leaf.is_ready() for leaf in jax.tree.leaves(nest))
