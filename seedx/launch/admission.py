"""The learner's side of joining: assigns roles, and keeps addresses."""

import contextlib
import dataclasses
import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from seedx import types, wire
from seedx.launch import joining, topology
from seedx.wire import serving

# Additional streams, for processes that wait or are refused.
_MORE_STREAMS = 16
# Maximum number of reported refusals, since a peer may cause any number.
_MAX_MESSAGES = 100


def is_address(value: Any) -> bool:
  """Returns whether a peer's value is HOST:PORT or unix:PATH."""
  return (
    isinstance(value, str)
    and value.isprintable()
    and re.fullmatch(r"unix:.+|[^/]+:[0-9]{1,5}", value) is not None
  )


class Addresses:
  """The addresses of the processes of one role; thread-safe."""

  def __init__(
    self,
    count: int,
    fixed: Sequence[str] = (),
    security: wire.Security = wire.LOCAL,
  ) -> None:
    """Makes a list of fixed addresses, or an empty one for `take` to fill.

    Raises:
      types.ConfigError: see `wire.Security.of_client`.
    """
    for address in fixed:
      security.of_client(address)
    self._security = security
    self._fixed = bool(fixed)
    self._addresses = list(fixed) or [""] * count
    self._held = [False] * count
    self._lock = threading.Lock()

  def __len__(self) -> int:
    return len(self._addresses)

  def take(self, address: str) -> int:
    """Takes a free number for a joining process that listens at `address`.

    Raises:
      wire.Refusal: the address is missing, malformed, insecure, or not among
        the fixed ones; or all numbers are taken.
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
      # A process that joins again keeps its number.
      same = [k for k in free if self._addresses[k] == address]
      fits = same if self._fixed else same or free
      if not fits:
        raise wire.Refusal(
          wire.StatusCode.RESOURCE_EXHAUSTED,
          f"expected at most {len(self._held)} processes of this role, each"
          f" at an address of its own, found another one at {address}",
        )
      number = fits[0]
      self._addresses[number], self._held[number] = address, True
      return number

  def give_back(self, number: int) -> None:
    """Frees the number of a process that has left."""
    with self._lock:
      self._held[number] = False

  def at(self, number: int) -> str:
    """Returns the address of a process; "" if it has not joined yet."""
    with self._lock:
      return self._addresses[number]

  def all(self) -> list[str]:
    """Returns the addresses in order.

    Raises:
      wire.Refusal: UNAVAILABLE, not all processes have joined yet.
    """
    with self._lock:
      addresses = [address for address in self._addresses if address]
    if len(addresses) < len(self._addresses):
      raise wire.Refusal(
        wire.StatusCode.UNAVAILABLE,
        f"waiting for servers: {len(addresses)} of {len(self._addresses)} have"
        " joined",
      )
    return addresses


class Roles:
  """The roles that the learner assigns to processes that join."""

  def __init__(
    self,
    all_nodes: Sequence[topology.Node],
    experiment: str,
    options: Mapping[str, Any],
    addresses: Mapping[str, topology.Addresses],
  ) -> None:
    """Starts without joined processes.

    Args:
      all_nodes: nodes that processes can become.
      experiment: experiment that runs; empty for a script.
      options: settings of the pipeline's config, as JSON.
      addresses: addresses of the processes that listen, by role.
    """
    self._nodes = {node.role: node for node in all_nodes}
    self._experiment = experiment
    self._options = options
    self._addresses = addresses
    self._reported: set[str] = set()

  def bind(self, server: serving.Server) -> None:
    """Binds `JOIN`, with more streams than there are processes to join."""
    count = sum(node.count for node in self._nodes.values())
    server.bind_stream(
      joining.JOIN,
      self.open,
      wire.NOTHING,
      wire.NOTHING,
      max_streams=2 * count + _MORE_STREAMS,
    )

  def open(self, hello: Mapping[str, Any]) -> serving.Session:
    """Assigns a role to a process that joins.

    Raises:
      wire.Refusal: the process does not fit this run.
    """
    try:
      return self._open(joining.read(joining.Hello, hello))
    except wire.Refusal as refused:
      if refused.code is wire.StatusCode.FAILED_PRECONDITION:
        self._report(
          f"refused a process that wanted to join: {refused.message}"
        )
      raise

  def _open(self, hello: joining.Hello) -> serving.Session:
    joining.check_version(hello.version)
    roles = list(dict.fromkeys(map(topology.kind, self._nodes)))
    role = hello.role or (roles[0] if len(roles) == 1 else "none")
    if role not in roles:
      raise wire.does_not_fit(f"--role {' or '.join(roles)}", role)
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
    welcome = joining.Welcome(role, needs_jax, self._experiment, self._options)
    return serving.FunctionSession(
      lambda nothing: nothing, dataclasses.asdict(welcome), close.close
    )

  def _report(self, message: str) -> None:
    if message not in self._reported and len(self._reported) < _MAX_MESSAGES:
      self._reported.add(message)
      joining.print_line(message)
