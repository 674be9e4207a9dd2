"""Acting parameters that a learner publishes, and devices act with."""

import collections
import dataclasses
import threading
from collections.abc import Sequence

import jax

from seedx import sharding, types
from seedx.learning import pending


class Published:
  """The newest acting parameters on each device that acts.

  An update may still be computing what is put here. `newest` returns older
  parameters until then, because acting with the new ones would wait for it.
  """

  def __init__(self, devices: Sequence[jax.Device]) -> None:
    """Makes a place without parameters.

    Args:
      devices: that act.
    """
    self._devices = tuple(dict.fromkeys(devices))
    self._lock = threading.Lock()
    # The first is computed, others may not be.
    self._versions: collections.deque[_Version] = collections.deque()

  def put(self, acting: types.Tree, version: int, wait: bool) -> None:
    """Copies acting parameters to the devices.

    No later update may donate them: `sharding.put` to the same device does
    not copy them.

    Args:
      acting: the parameters.
      version: number of updates behind them.
      wait: until they are computed.
    """
    on_devices = {x: sharding.put(acting, x) for x in self._devices}
    if wait:
      jax.block_until_ready(list(on_devices.values()))
    with self._lock:
      self._versions.append(_Version(on_devices, version))
      self._forget_older()

  def newest(self, device: jax.Device | None = None) -> tuple[types.Tree, int]:
    """Returns the newest computed parameters, and their version.

    Args:
      device: where to have them; the first if None.
    """
    with self._lock:
      self._forget_older()
      newest = self._versions[0]
    return newest.on_devices[device or self._devices[0]], newest.version

  def _forget_older(self) -> None:
    """Leaves the newest computed parameters, and those after them."""
    while len(self._versions) > 1 and self._versions[1].is_computed():
      self._versions.popleft()


@dataclasses.dataclass(frozen=True, eq=False)
class _Version:
  """Acting parameters on each device, and their version."""

  on_devices: dict[jax.Device, types.Tree]
  version: int

  def is_computed(self) -> bool:
    """Whether acting would not have to wait for them."""
    return pending.is_ready(list(self.on_devices.values()))
