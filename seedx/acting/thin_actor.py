"""The thin actor: steps environments, and asks the server for actions.

It needs no JAX. EnvPool would import JAX, so the programs of a thin actor
(`seedx.launch`, `seedx.join`) block that import first.
"""

import concurrent.futures
import dataclasses
import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Self, TypeVar

import numpy as np

from seedx import envs, types, wire
from seedx.acting import protocol, sessions

C = TypeVar("C")

# How long the end of a session waits for a step of the environments.
_STEP_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Config(sessions.Config):
  """The thin actors of a run.

  Attributes:
    actor_batch_size: environments per message; the others step while these
      wait. 0 for all, in lock step.
  """

  actor_batch_size: int = 0

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    super().__post_init__()
    if not 0 <= self.actor_batch_size <= self.envs_per_actor:
      raise types.ConfigError(
        f"expected actor_batch_size from 0 to {self.envs_per_actor}, the"
        f" actor's environments, found {self.actor_batch_size}"
      )

  @property
  def rows(self) -> int:
    """Environments in a message."""
    return self.actor_batch_size or self.envs_per_actor


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of one thin actor.

  Attributes:
    address: of the learner.
    env: the environment.
    actors: options of all thin actors.
    retry_seconds: seconds between two tries to reach the learner.
    security: how they know each other.
  """

  address: str
  env: envs.Config
  actors: Config
  retry_seconds: float = 0.5
  security: wire.Security = wire.LOCAL

  @classmethod
  def of(
    cls, address: str, options: Mapping[str, Any], security: wire.Security
  ) -> Self:
    """From the learner's options by their names, as JSON has them."""

    def config(kind: type[C]) -> C:
      fields = [x.name for x in dataclasses.fields(kind)]  # type: ignore
      found = {name: options[name] for name in fields if name in options}
      return kind(
        **{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
      )

    return cls(address, config(envs.Config), config(Config), security=security)


def run(work: Work, stop: threading.Event) -> None:
  """Acts until the server says that it is done, or `stop` is set.

  Raises:
    types.ConfigError: the environment cannot be made.
    wire.WireError: the server refuses this actor.
  """
  spec = envs.spec(work.env)

  def session(client: wire.Client) -> None:
    _Pump(spec, work, stop).run(client)

  wire.until_done(
    *(work.address, session, stop, "actor", work.retry_seconds),
    security=work.security,
  )


class _Pump:
  """One session: observations go up on a thread of gRPC's, actions down."""

  def __init__(
    self, spec: types.EnvironmentSpec, work: Work, stop: threading.Event
  ) -> None:
    self._spec = spec
    self._work = work
    self._num_envs, self._rows = work.actors.envs_per_actor, work.actors.rows
    self._stop = stop
    self._ended = threading.Event()
    # Held while environments step, which must be closed before the process ends
    # and not before they have stepped: EnvPool's threads abort it otherwise.
    self._stepping = threading.Lock()
    self._environment: concurrent.futures.Future[envs.Environment] = (
      concurrent.futures.Future()
    )
    # Messages that the environments can fill: EnvPool must not be asked for
    # rows of environments that wait for their actions.
    self._ready = threading.Semaphore(self._num_envs // self._rows)
    # What was sent up and has had no reply; replies come in the same order.
    self._unanswered: queue.SimpleQueue[np.ndarray] = queue.SimpleQueue()

  def run(self, client: wire.Client) -> None:
    """Acts until the stream ends."""
    stream = client.stream(
      protocol.ACT,
      self._observations(),
      *protocol.act_layouts(self._spec, self._rows),
      hello={"num_envs": self._num_envs},
    )
    environment = None
    try:
      environment = self._make(protocol.first_seed(stream.welcome))
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
      if environment is not None:
        self._close(environment)

  def _make(self, seed: int) -> envs.Environment:
    environment = envs.make(
      self._work.env, self._num_envs, batch_size=self._rows, seed=seed
    )
    environment.reset()
    return environment

  def _close(self, environment: envs.Environment) -> None:
    """Closes them once a step that is in progress has ended."""
    if not self._stepping.acquire(timeout=_STEP_SECONDS):
      return  # An environment is stuck.
    try:
      environment.close()
    finally:
      self._stepping.release()

  def _observations(self) -> Iterator[types.Rows]:
    try:
      environment = self._environment.result()
    except concurrent.futures.CancelledError:
      return
    while self._ready.acquire():
      with self._stepping:
        if self._ended.is_set():
          return
        rows = environment.recv()
      self._unanswered.put(rows.index)
      yield rows
