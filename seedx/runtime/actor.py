"""The thin actor: steps environments, and asks the server what to do.

Run as a program (`python -m seedx.runtime.actor CONFIG_JSON`) it keeps JAX out
of its process, which EnvPool would otherwise import: half the memory, and a
second less to start.
"""

import sys

if __name__ == "__main__":
  sys.modules["jax"] = None  # type: ignore[assignment]

import concurrent.futures
import dataclasses
import json
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator

import grpc
import numpy as np

from seedx import envs, types, wire
from seedx.runtime import protocol

# The server is not there yet, has no place yet, or went away: try again.
_PATIENCE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
# A learner that is started together with its actors needs this long.
_QUIET_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Config:
  """One actor.

  Attributes:
    address: of the inference server.
    env: which environment.
    num_envs: environments of this actor.
    batch_size: of them in a message; `num_envs` steps them all in lock step.
    num_threads: threads that step them.
    retry_seconds: between two tries to reach the server.
  """

  address: str
  env: envs.Config
  num_envs: int
  batch_size: int
  num_threads: int = 1
  retry_seconds: float = 0.5


def run(config: Config, stop: threading.Event) -> None:
  """Acts until the server says that it is done, or `stop` is set.

  Raises:
    types.ConfigError: the environment cannot be made.
    wire.WireError: the server refuses this actor.
  """
  spec = envs.spec(config.env)
  said, started = "", time.monotonic()
  while not stop.is_set():
    try:
      with wire.Client(config.address) as client:
        _Pump(spec, config, stop).run(client)
      return
    except wire.WireError as error:
      if error.code not in _PATIENCE:
        raise
      if error.message != said and time.monotonic() > started + _QUIET_SECONDS:
        said = error.message
        print(f"actor: waiting for {config.address}: {said}", file=sys.stderr)
      stop.wait(config.retry_seconds)


class _Pump:
  """One lease: observations go up on a thread of gRPC's, actions come down."""

  def __init__(
    self, spec: types.EnvironmentSpec, config: Config, stop: threading.Event
  ) -> None:
    self._spec = spec
    self._config = config
    self._stop = stop
    self._ended = threading.Event()
    self._environment: concurrent.futures.Future[envs.EnvPoolEnvironment] = (
      concurrent.futures.Future()
    )
    # Messages that the environments can fill: EnvPool must not be asked for
    # rows of environments that wait for their actions.
    self._ready = threading.Semaphore(config.num_envs // config.batch_size)
    # What was sent up and has had no reply; replies come in the same order.
    self._unanswered: queue.SimpleQueue[np.ndarray] = queue.SimpleQueue()

  def run(self, client: wire.Client) -> None:
    """Acts until the stream ends."""
    config = self._config
    stream = client.stream(
      protocol.ACT,
      self._observations(),
      inputs=protocol.rows_layout(self._spec, config.batch_size),
      outputs=protocol.actions_layout(self._spec, config.batch_size),
      hello={"num_envs": config.num_envs},
    )
    try:
      environment = self._make(int(stream.welcome["first_seed"]))
      self._environment.set_result(environment)
      for actions in stream:
        environment.send(self._unanswered.get(), actions)
        self._ready.release()
        if self._stop.is_set():
          break
    finally:
      self._ended.set()
      self._ready.release()
      self._environment.cancel()
      stream.cancel()

  def _make(self, seed: int) -> envs.EnvPoolEnvironment:
    environment = envs.EnvPoolEnvironment(
      self._config.env,
      self._config.num_envs,
      batch_size=self._config.batch_size,
      seed=seed,
      num_threads=self._config.num_threads,
    )
    environment.reset()
    return environment

  def _observations(self) -> Iterator[types.Rows]:
    try:
      environment = self._environment.result()
    except concurrent.futures.CancelledError:
      return
    while self._ready.acquire() and not self._ended.is_set():
      rows = environment.recv()
      self._unanswered.put(rows.index)
      yield rows


def _leave_with_parent() -> None:
  """Ends this process when its parent, who holds our stdin, is gone."""

  def wait() -> None:
    while os.read(0, 1):
      pass
    os._exit(0)

  threading.Thread(target=wait, daemon=True).start()


def _main() -> int:
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent decides.
  _leave_with_parent()
  config = json.loads(sys.argv[1])
  config["env"] = envs.Config(**config["env"])
  try:
    run(Config(**config), threading.Event())
  except (types.ConfigError, wire.WireError) as error:
    print(f"error: actor: {error}", file=sys.stderr, flush=True)
    return 2
  return 0


if __name__ == "__main__":
  os._exit(_main())
