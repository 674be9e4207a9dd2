"""Where the processes of a role listen, which others have to reach."""

import re
import threading
from collections.abc import Sequence
from typing import Any

from seedx import types, wire


def is_address(found: Any) -> bool:
  """Whether what a peer says is HOST:PORT or unix:PATH."""
  return (
    isinstance(found, str)
    and found.isprintable()
    and re.fullmatch(r"unix:.+|[^/]+:[0-9]{1,5}", found) is not None
  )


class Addresses:
  """Where the processes of one role listen; any thread may call it."""

  def __init__(
    self,
    count: int,
    known: Sequence[str] = (),
    security: wire.Security = wire.LOCAL,
  ) -> None:
    """Knows all of them, or none.

    Args:
      count: how many there are.
      known: their addresses; if none, those that join say theirs.
      security: of this process, by which it reaches them.

    Raises:
      types.ConfigError: it may not reach one.
    """
    for address in known:
      security.of_client(address)
    self._security = security
    self._fixed = bool(known)
    self._addresses = list(known) or [""] * count
    self._held = [False] * count
    self._lock = threading.Lock()

  def __len__(self) -> int:
    """How many there are."""
    return len(self._addresses)

  def take(self, address: str) -> int:
    """Gives a process that joins its number.

    Raises:
      wire.Refused: it does not say where it listens, or what is no address; it
        listens elsewhere than is known; or all numbers are taken.
    """
    with self._lock:
      if not address:
        raise wire.does_not_fit("where it listens (--listen)", "nothing")
      if not is_address(address):
        raise wire.does_not_fit("HOST:PORT or unix:PATH", f"{address!r:.80}")
      try:
        self._security.of_client(address)
      except types.ConfigError as error:
        raise wire.does_not_fit(
          "an address that the learner may reach", f"{address} ({error})"
        ) from error
      if self._fixed and address not in self._addresses:
        raise wire.does_not_fit(f"one of {', '.join(self._addresses)}", address)
      free = [k for k, held in enumerate(self._held) if not held]
      # One that comes back goes on with its number.
      same = [k for k in free if self._addresses[k] == address]
      fits = same if self._fixed else same or free
      if not fits:
        raise wire.Refused(
          wire.StatusCode.RESOURCE_EXHAUSTED,
          f"expected at most {len(self._held)} processes of this role, each"
          f" at an address of its own, found one more at {address}",
        )
      number = fits[0]
      self._addresses[number], self._held[number] = address, True
      return number

  def give_back(self, number: int) -> None:
    """Frees the number of a process that has left."""
    with self._lock:
      self._held[number] = False

  def all(self) -> list[str]:
    """The addresses in order.

    Raises:
      wire.Refused: UNAVAILABLE, not all are known yet.
    """
    with self._lock:
      known = [address for address in self._addresses if address]
    if len(known) < len(self._addresses):
      raise wire.Refused(
        wire.StatusCode.UNAVAILABLE,
        f"waiting for servers: {len(known)} of {len(self._addresses)} have"
        " joined",
      )
    return known
