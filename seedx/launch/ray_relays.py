"""Relays on the machines of a Ray cluster, for the actors that run on them.

All functions need Ray.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

from seedx import wire
from seedx.wire import relay

_LOOK_SECONDS = 0.05
_END_SECONDS = 2.0
# The directory for sockets if the path of the usual one is too long.
_SHORT = "/tmp"


class Relays:
  """One relay on each machine that the cluster has now.

  Actors on other machines connect to the learner themselves. Ray starts a relay
  that dies again, and its clients then connect again.

  Attributes:
    by_node: the relays, by the ID of their machine; see `address_on`.
  """

  def __init__(
    self, address: str, security: wire.Security, num_actors: int
  ) -> None:
    """Starts the relays.

    Args:
      address: address of the learner.
      security: TLS and token of the run.
      num_actors: number of actors of the run.
    """
    import ray

    on_node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    name, make = f"seedx-{secrets.token_hex(8)}", ray.remote(_Relay)
    self.by_node: Mapping[str, Any] = {
      node["NodeID"]: make.options(
        num_cpus=0,
        max_restarts=-1,
        # `address` waits, `close` does not.
        max_concurrency=num_actors + 1,
        scheduling_strategy=on_node(node["NodeID"], soft=False),
      ).remote(f"{name}-{node['NodeID'][:8]}", address, security, num_actors)
      for node in ray.nodes()
      if node["Alive"]
    }

  def close(self) -> None:
    """Ends the relays."""
    import ray

    closing = [each.close.remote() for each in self.by_node.values()]
    ray.wait(closing, num_returns=len(closing), timeout=_END_SECONDS)
    for each in self.by_node.values():
      ray.kill(each)


def address_here(by_node: Mapping[str, Any]) -> str:
  """Returns the address of this machine's relay; "" if there is none."""
  import ray

  here = by_node.get(ray.get_runtime_context().get_node_id())
  with contextlib.suppress(ray.exceptions.RayError):
    return ray.get(here.address.remote()) if here is not None else ""
  return ""


class _Relay:
  """A relay in a process of its own: Ray calls it an actor."""

  def __init__(
    self, name: str, address: str, security: wire.Security, num_actors: int
  ) -> None:
    parent = tempfile.gettempdir()
    self._folder = os.path.join(parent, name)
    if not wire.has_room(self._folder):
      self._folder = os.path.join(_SHORT, name)
    os.makedirs(self._folder, 0o700, exist_ok=True)
    self._path = os.path.join(self._folder, "learner")
    self._relay = relay.Relay(f"unix:{self._path}", num_actors)
    self._stop = threading.Event()
    arguments = address, security
    threading.Thread(target=self._run, args=arguments, daemon=True).start()

  def address(self) -> str:
    """Returns the address at which the relay listens, once it does."""
    while not os.path.exists(self._path):
      time.sleep(_LOOK_SECONDS)
    return f"unix:{self._path}"

  def close(self) -> None:
    """Ends the calls of all actors, and removes the socket."""
    self._stop.set()
    self._relay.close()
    shutil.rmtree(self._folder, ignore_errors=True)

  def _run(self, address: str, security: wire.Security) -> None:
    try:
      wire.until_done(
        address,
        lambda client: self._relay.run(client, self._stop),
        self._stop,
        "relay",
        security=security,
      )
    except BaseException:
      # The actors then connect to the learner, and report the same error.
      shutil.rmtree(self._folder, ignore_errors=True)
      os._exit(1)
