"""The thin actor: steps environments, and asks the server what to do.

It needs no JAX. A process of its own blocks it (`seedx.launch`), since EnvPool
would import it.
"""

import concurrent.futures
import dataclasses
import queue
import threading
from collections.abc import Iterator

import numpy as np

from seedx import envs, types, wire
from seedx.runtime import protocol, reconnect


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

  def session(client: wire.Client) -> None:
    _Pump(spec, config, stop).run(client)

  reconnect.until_done(
    config.address, session, stop, "actor", config.retry_seconds
  )


class _Pump:
  """One lease: observations go up on a thread of gRPC's, actions come down."""

  def __init__(
    self, spec: types.EnvironmentSpec, config: Config, stop: threading.Event
  ) -> None:
    self._spec = spec
    self._config = config
    self._stop = stop
    self._ended = threading.Event()
    self._environment: concurrent.futures.Future[envs.Environment] = (
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

  def _make(self, seed: int) -> envs.Environment:
    environment = envs.make(
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
