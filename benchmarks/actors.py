"""Many thin actors in one process; canned messages replace environments.

  python -m benchmarks.actors ADDRESS ACTORS ROWS KIND

`running` starts this program, which loads no JAX. Each actor connects, and
connects again after its stream was lost, as any thin actor does. One thread
repeatedly sends a message of each connected actor, then receives their actions.
The program prints `time.monotonic` when it starts, and whenever the last
missing actor has received its first actions.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

import dm_env
import numpy as np

from seedx import types, wire
from seedx.acting import protocol

# Number of time steps of an episode, after which the messages repeat.
_EPISODE = 64
_SHAPES = {"numbers": ((4,), np.float32), "frames": ((84 * 84,), np.uint8)}
NUMBERS, FRAMES = _SHAPES


def spec(kind: str) -> types.EnvironmentSpec:
  """Returns the specification of an environment with these observations.

  `NUMBERS` are vectors as in CartPole. `FRAMES` are vectors with the size of
  one frame of Atari, so that an MLP computes the actions.
  """
  shape, dtype = _SHAPES[kind]
  return types.EnvironmentSpec(
    observation=dm_env.specs.Array(shape, dtype, "observation"),
    action=dm_env.specs.DiscreteArray(2, dtype=np.int32),
  )


def messages(kind: str, rows: int) -> list[types.Rows]:
  """Returns an actor's messages; after the last, the second comes again.

  First episodes end at different times, later ones every `_EPISODE` steps.
  """
  observation = spec(kind).observation
  row = np.arange(rows, dtype=np.int32)
  canned = []
  for step in range(_EPISODE + 1):
    # No environment ends its first episode in its first two time steps.
    phase = (step + row % (_EPISODE - 2)) % _EPISODE if step else 0 * row
    reward = (phase > 0).astype(np.float32)
    timestep = dm_env.TimeStep(
      step_type=((phase > 0) + 1 * (phase == _EPISODE - 1)).astype(np.uint8),
      reward=reward,
      discount=(phase < _EPISODE - 1).astype(np.float32),
      observation=np.full((rows, *observation.shape), step, observation.dtype),
    )
    ends = phase == _EPISODE - 1
    total = np.where(ends, np.float32(0), np.float32(np.nan))
    canned.append(types.Rows(row, timestep, total))
  return canned


@contextlib.contextmanager
def running(
  address: str, number: int, rows: int, kind: str
) -> Iterator[subprocess.Popen[bytes]]:
  """Runs this program, which also ends if the calling process dies."""
  words = [address, str(number), str(rows), kind]
  process = subprocess.Popen(
    [sys.executable, "-m", "benchmarks.actors", *words],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    bufsize=0,
  )
  try:
    yield process
  finally:
    process.kill()
    process.wait()


class Actors:
  """Actors that connect to one server.

  Attributes:
    times: `time.monotonic` whenever the last missing actor had received its
      first actions.
  """

  def __init__(self, address: str, number: int, rows: int, kind: str) -> None:
    """Starts the threads that connect."""
    self.times: list[float] = []
    self._address = address
    self._number = number
    self._rows = rows
    self._layouts = protocol.act_layouts(spec(kind), rows)
    self._messages = messages(kind, rows)
    self._stop = threading.Event()
    self._changed = threading.Condition()
    self._connected: list[_Connected] = []
    self._threads = [
      threading.Thread(target=self._connect, daemon=True) for _ in range(number)
    ]
    for thread in self._threads:
      thread.start()

  def run(self) -> None:
    """Sends and receives until `stop`."""
    was_complete = False
    while not self._stop.is_set():
      with self._changed:
        self._changed.wait_for(lambda: self._connected or self._stop.is_set())
        actors = list(self._connected)
      for actor in actors:
        actor.send(self._messages)
      left = [actor for actor in actors if not actor.receive()]
      with self._changed:
        self._connected = [x for x in self._connected if x not in left]
        complete = sum(x.step > 0 for x in self._connected) == self._number
      for actor in left:
        actor.over.set()
      if complete and not was_complete:
        self.times.append(time.monotonic())
        print(self.times[-1], flush=True)
      was_complete = complete

  def stop(self) -> None:
    """Ends `run` and all actors; any thread may call it."""
    self._stop.set()
    with self._changed:
      self._changed.notify_all()
      actors = list(self._connected)
    for actor in actors:
      actor.over.set()
    for thread in self._threads:
      thread.join()

  def _connect(self) -> None:
    wire.until_done(self._address, self._session, self._stop, "actor")

  def _session(self, client: wire.Client) -> None:
    hello = {"num_envs": self._rows}
    exchange = client.exchange(protocol.ACT, *self._layouts, hello=hello)
    actor = _Connected(exchange)
    try:
      with self._changed:
        self._connected.append(actor)
        self._changed.notify_all()
      actor.over.wait()
    finally:
      exchange.close()
    if actor.failure is not None:
      raise actor.failure


class _Connected:
  """An actor that has connected.

  Attributes:
    step: number of replies received.
    over: event that is set when the stream has ended.
    failure: error that ended the stream, if any.
  """

  def __init__(self, exchange: wire.Stream) -> None:
    self.step = 0
    self.over = threading.Event()
    self.failure: wire.WireError | None = None
    self._exchange = exchange

  def send(self, canned: list[types.Rows]) -> None:
    """Sends the next message."""
    number = self.step
    if number:
      number = 1 + (number - 1) % (len(canned) - 1)
    self._exchange.send(canned[number])

  def receive(self) -> bool:
    """Receives actions; returns whether the stream continues."""
    try:
      actions = self._exchange.receive()
    except wire.WireError as error:
      self.failure = error
      return False
    self.step += 1
    return actions is not None


def main() -> NoReturn:
  """Runs the actors of the command line until the standard input ends."""
  address, number, rows, kind = sys.argv[1:]
  threading.Thread(target=_exit_with_input, daemon=True).start()
  print(time.monotonic(), flush=True)
  Actors(address, int(number), int(rows), kind).run()
  raise SystemExit


def _exit_with_input() -> NoReturn:
  while os.read(sys.stdin.fileno(), 1):
    pass
  os._exit(0)


if __name__ == "__main__":
  main()
