"""Parameters in use: immutable snapshots, each with its version."""

import threading
from collections.abc import Sequence

import jax

from seedx import types


class Snapshots:
  """The newest acting parameters on each inference device.

  The learner publishes; inference threads read. What is published must not be
  donated to a later update: `device_put` to the same device only aliases it.
  """

  def __init__(self, devices: Sequence[jax.Device]) -> None:
    """Holds nothing yet; `publish` before `latest`."""
    self._devices = tuple(dict.fromkeys(devices))
    self._lock = threading.Lock()
    self._latest: dict[jax.Device, types.Tree] = {}
    self._version = 0

  def publish(self, acting: types.Tree, version: int) -> None:
    """Makes `acting` what inference uses from its next step on."""
    latest = {
      device: jax.device_put(acting, device) for device in self._devices
    }
    with self._lock:
      self._latest, self._version = latest, version

  def latest(self, device: jax.Device) -> tuple[types.Tree, int]:
    """The newest parameters on a device, and their version."""
    with self._lock:
      return self._latest[device], self._version
