"""The workers' replays in Gorila's checkpoints.

A worker's replay crosses as `checkpoint.to_bytes` writes it, in pieces. While a
checkpoint is under way, the replies to reports have its number. A worker that
sees a new one opens the stream `KEEP` with a hello of `{"key": k, "number": n,
"bytes": b}`, and sends its replay. A worker that comes opens the stream `TAKE`
with `{"key": k}`: the welcome is `{"bytes": b}`, 0 where no replay was restored
or all are taken, and the replies are the pieces. The key is in the welcome of
the stream of reports: only workers have a place there.
"""

import contextlib
import itertools
import math
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from seedx import checkpoint, types, wire

KEEP = "keep_replay"
TAKE = "take_replay"
_PIECE_BYTES = 2**20
PIECE = wire.Layout.of(np.zeros((), np.uint8), _PIECE_BYTES)
# How long a checkpoint waits for the workers, and the last one of a run.
_WAIT_SECONDS = 30.0
_LAST_SECONDS = 5.0


class Replays:
  """The replays of all workers: a `process.Replay`.

  Attributes:
    key: what workers say, and others cannot know.
    num_bytes: of all replays together.
    wanted: the number of the checkpoint that waits for replays; 0 if none does.
  """

  def __init__(
    self, num_workers: int, replay_bytes: int, connected: Callable[[], int]
  ) -> None:
    """Has none yet.

    Args:
      num_workers: workers of the run.
      replay_bytes: of a worker's replay.
      connected: says how many workers there are now.
    """
    self.key = secrets.token_hex()
    self.num_bytes = num_workers * replay_bytes
    self.wanted = 0
    # Beside the replay, a worker sends little: a batch, an index.
    self._most_bytes = 2 * replay_bytes + 2**24
    self._connected = connected
    self._left_out = False
    self._changed = threading.Condition()
    self._numbers = itertools.count(1)
    self._kept: list[Mapping[str, np.ndarray]] = []
    self._restored: list[Mapping[str, np.ndarray]] = []
    # What the workers had when the run ended.
    self._last: types.Tree | None = None

  def bind(self, server: wire.Server) -> None:
    """Binds what workers call."""
    server.bind_stream(KEEP, self._keep, PIECE, wire.NOTHING)
    server.bind_stream(TAKE, self._take, wire.NOTHING, PIECE)

  def leave_out(self) -> None:
    """Never asks for them: they are too large for a checkpoint."""
    self._left_out = True

  def paused(self) -> contextlib.AbstractContextManager[None]:
    """Does nothing: no worker waits for another, nor for a checkpoint."""
    return contextlib.nullcontext()

  def saved(self) -> Callable[[], types.Tree]:
    """Asks the workers; the result waits for them."""
    last = self._last
    if last is not None:
      return lambda: last
    with self._changed:
      self._kept = []
      self.wanted = next(self._numbers)
    return lambda: self._collected(_WAIT_SECONDS)

  def fetch_last(self) -> None:
    """Fetches what is saved from now on: workers leave with the learner."""
    if not self._left_out:
      self.saved()
      self._last = self._collected(_LAST_SECONDS)

  def restore(self, saved: Mapping[str, np.ndarray]) -> None:
    """Takes what the next workers are given."""
    workers: dict[str, dict[str, np.ndarray]] = {}
    for name, array in saved.items():
      worker, _, path = name.partition("/")
      workers.setdefault(worker, {})[path] = array
    self._restored = list(workers.values())

  def _collected(self, timeout_seconds: float) -> types.Tree:
    """The replays of the workers that have sent theirs, and those not taken."""
    deadline = time.monotonic() + timeout_seconds
    with self._changed:
      while len(self._kept) < self._connected():
        if time.monotonic() >= deadline:
          print(
            f"the checkpoint has the replays of {len(self._kept)} workers, not"
            f" of {self._connected()}: the others sent none in"
            f" {timeout_seconds:g} s",
            file=sys.stderr,
          )
          break
        self._changed.wait(0.1)
      self.wanted = 0
      found = [*self._kept, *self._restored]
      self._kept = []
    return {str(k): replay for k, replay in enumerate(found)}

  def _keep(self, hello: Mapping[str, Any]) -> wire.Session:
    """A worker that sends its replay."""
    self._check_key(hello)
    number, size = hello.get("number"), hello.get("bytes")
    if type(size) is not int or not 0 < size <= self._most_bytes:
      raise wire.Refused(
        wire.StatusCode.INVALID_ARGUMENT,
        f"expected from 1 to {self._most_bytes} bytes in the hello, found"
        f" {size!r:.80}",
      )
    content, missing = np.empty(size, np.uint8), size

    def add(piece: np.ndarray) -> tuple[()]:
      nonlocal missing
      if len(piece) > missing:
        raise wire.Refused(
          wire.StatusCode.INVALID_ARGUMENT,
          f"expected {size} bytes as the hello says, found more",
        )
      start = size - missing
      content[start : start + len(piece)] = piece
      missing -= len(piece)
      if not missing:
        self._add(number, content)
      return ()

    return wire.FunctionSession(add)

  def _add(self, number: Any, content: np.ndarray) -> None:
    try:
      found = checkpoint.from_bytes(content)
    except checkpoint.Damaged as error:
      raise wire.Refused(
        wire.StatusCode.INVALID_ARGUMENT, f"expected a replay, found {error}"
      ) from error
    wire.check_finite("replays", found)
    with self._changed:
      if number == self.wanted and len(self._kept) < self._connected():
        self._kept.append(found)
        self._changed.notify_all()

  def _take(self, hello: Mapping[str, Any]) -> wire.Session:
    """A worker that asks for a replay."""
    self._check_key(hello)
    with self._changed:
      replay = self._restored.pop(0) if self._restored else None
    content = np.zeros(0, np.uint8)
    if replay is not None:
      content = np.frombuffer(checkpoint.to_bytes(replay), np.uint8)
    pieces = _pieces(content)
    left = math.ceil(len(content) / _PIECE_BYTES)

    def give(nothing: types.Tree) -> np.ndarray:
      nonlocal left
      del nothing
      if not left:
        raise wire.Refused(
          wire.StatusCode.INVALID_ARGUMENT,
          "expected no request after the last piece, found one",
        )
      left -= 1
      return next(pieces)

    def close() -> None:
      if replay is not None and left > 0:  # Another may take it.
        with self._changed:
          self._restored.append(replay)

    return wire.FunctionSession(give, {"bytes": len(content)}, close)

  def _check_key(self, hello: Mapping[str, Any]) -> None:
    # What JSON says may be no UTF-8.
    found = str(hello.get("key")).encode(errors="replace")
    if not secrets.compare_digest(found, self.key.encode()):
      raise wire.does_not_fit("the key that workers are told", "another")


def keep(
  client: wire.Client, key: str, number: int, replay: types.Tree
) -> None:
  """Sends a worker's replay to the checkpoint of a number.

  Raises:
    wire.WireError: the coordinator refuses it, or is not there.
  """
  content = np.frombuffer(checkpoint.to_bytes(replay), np.uint8)
  replies = client.stream(
    KEEP,
    _pieces(content),
    PIECE,
    wire.NOTHING,
    {"key": key, "number": number, "bytes": len(content)},
  )
  for _ in replies:
    pass


def take(client: wire.Client, key: str) -> dict[str, np.ndarray]:
  """A replay to go on with; empty where there is none.

  Raises:
    wire.WireError: the coordinator is not there, or stops.
  """
  hello = {"key": key}
  exchange = wire.Exchange(client, TAKE, wire.NOTHING, PIECE, hello)
  try:
    content = np.empty(int(exchange.welcome["bytes"]), np.uint8)
    start = 0
    while start < len(content):
      piece = exchange(())
      if piece is None:
        raise wire.WireError(wire.StatusCode.UNAVAILABLE, "the run is over")
      content[start : start + len(piece)] = piece
      start += len(piece)
    return checkpoint.from_bytes(content) if len(content) else {}
  finally:
    exchange.close()


def _pieces(content: np.ndarray) -> Iterator[np.ndarray]:
  for start in range(0, len(content), _PIECE_BYTES):
    yield content[start : start + _PIECE_BYTES]
