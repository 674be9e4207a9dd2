"""The thin actor: steps environments, and asks the server for actions.

It needs no JAX. EnvPool would import JAX, so the programs of a thin actor
(`seedx.launch`, `seedx.join`) block that import first.
"""

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, Self, TypeVar

import numpy as np

from seedx import envs, types, wire
from seedx.acting import protocol

C = TypeVar("C")

# How long the end of a session waits for a step of the environments.
_STEP_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Config(protocol.Actors):
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
    _Session(spec, work, stop, client).run()

  wire.until_done(
    address=work.address,
    session=session,
    stop=stop,
    role="actor",
    retry_seconds=work.retry_seconds,
    security=work.security,
  )


class _Session:
  """Steps environments on a thread of its own.

  The end of the run, and Ctrl-C, do not wait for one that is stuck in a step.
  """

  def __init__(
    self,
    spec: types.EnvironmentSpec,
    work: Work,
    stop: threading.Event,
    client: wire.Client,
  ) -> None:
    self._work = work
    self._stop = stop
    self._num_envs, self._rows = work.actors.envs_per_actor, work.actors.rows
    self._exchange = client.exchange(
      protocol.ACT,
      *protocol.act_layouts(spec, self._rows),
      hello={"num_envs": self._num_envs},
    )
    self._failure: BaseException | None = None

  def run(self) -> None:
    """Acts until the stream ends."""
    thread = threading.Thread(target=self._step_all, daemon=True)
    thread.start()
    try:
      self._exchange.over.wait()
    finally:
      self._exchange.close()
      # A process that exits while an environment steps aborts.
      thread.join(_STEP_SECONDS)
    if self._failure is not None:
      raise self._failure

  def _step_all(self) -> None:
    try:
      with contextlib.closing(self._make()) as environment:
        self._act(environment)
    except BaseException as failure:
      self._failure = failure
    finally:
      self._exchange.close()

  def _make(self) -> envs.Environment:
    seed = protocol.first_seed(self._exchange.welcome)
    environment = envs.make(
      self._work.env, self._num_envs, batch_size=self._rows, seed=seed
    )
    environment.reset()
    return environment

  def _act(self, environment: envs.Environment) -> None:
    # What was sent up and has had no reply; replies come in the same order.
    unanswered: collections.deque[np.ndarray] = collections.deque()

    def send() -> None:
      rows = environment.recv()
      unanswered.append(rows.index)
      self._exchange.send(rows)

    # EnvPool must not be asked for rows of environments that wait for their
    # actions.
    for _ in range(self._num_envs // self._rows):
      send()
    while not self._stop.is_set():
      actions = self._exchange.receive()
      if actions is None:
        return
      environment.send(unanswered.popleft(), actions)
      send()
