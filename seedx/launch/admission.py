"""The learner's side of joining: what a process becomes, where it listens."""

import contextlib
import dataclasses
import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from seedx import types, wire
from seedx.launch import joining
from seedx.launch import nodes as nodes_lib
from seedx.wire import server as server_lib

_MORE = 16
# Messages about processes that were refused; a peer may send any number.
_MOST_MESSAGES = 100


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


class Roles:
  """The learner's side: says what each process that joins is to be."""

  def __init__(
    self,
    running: Sequence[nodes_lib.Node],
    experiment: str,
    options: Mapping[str, Any],
    addresses: Mapping[str, Addresses],
  ) -> None:
    """Nobody has joined yet.

    Args:
      running: the nodes that can be joined.
      experiment: that runs; empty for a script without one.
      options: the settings of the pipeline's config, as JSON.
      addresses: by their roles, where those listen that do.
    """
    self._nodes = {node.role: node for node in running}
    self._experiment = experiment
    self._options = options
    self._addresses = addresses
    self._said: set[str] = set()

  def bind(self, server: server_lib.Server) -> None:
    """Binds `JOIN`, with room for some more, who wait or are told why not."""
    count = sum(node.count for node in self._nodes.values())
    server.bind_stream(
      joining.JOIN,
      self.open,
      wire.NOTHING,
      wire.NOTHING,
      max_streams=2 * count + _MORE,
    )

  def open(self, hello: Mapping[str, Any]) -> server_lib.Session:
    """Tells a process what to be.

    Raises:
      wire.Refused: it does not fit to this run.
    """
    try:
      return self._open(joining.read(joining.Hello, hello))
    except wire.Refused as refused:
      if refused.code is wire.StatusCode.FAILED_PRECONDITION:
        self._say(f"refused a process that wanted to join: {refused.message}")
      raise

  def _open(self, hello: joining.Hello) -> server_lib.Session:
    joining.check_version(hello.version)
    known = list(dict.fromkeys(map(nodes_lib.kind, self._nodes)))
    role = hello.role or (known[0] if len(known) == 1 else "none")
    if role not in known:
      raise wire.does_not_fit(f"--role {' or '.join(known)}", role)
    if hello.experiment and hello.experiment != self._experiment:
      raise wire.does_not_fit(
        f"the learner's experiment {self._experiment or '(a script)'}",
        hello.experiment,
      )
    for name, value in hello.options.items():
      if name not in self._options:
        raise wire.does_not_fit("options of the learner", name)
      if value != self._options[name]:
        raise wire.does_not_fit(
          f"the learner's {name} {json.dumps(self._options[name])}",
          f"{json.dumps(value):.200}",
        )
    close = contextlib.ExitStack()
    if role in self._addresses:
      number = self._addresses[role].take(hello.address)
      close.callback(self._addresses[role].give_back, number)
      role = f"{role}-{number}"
    needs_jax = self._nodes[role].needs_jax
    told = joining.Told(role, needs_jax, self._experiment, self._options)
    return server_lib.FunctionSession(
      lambda nothing: nothing, dataclasses.asdict(told), close.close
    )

  def _say(self, message: str) -> None:
    if message not in self._said and len(self._said) < _MOST_MESSAGES:
      self._said.add(message)
      joining.tell(message)
