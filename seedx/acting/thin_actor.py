"""The thin actor: steps environments, and receives actions from the learner.

A learner that does not act itself sends the addresses of processes that do.

A thin actor works without JAX. EnvPool would import JAX, so `seedx.launch` and
`seedx.join` block that import in a thin actor's process.
"""

import collections
import contextlib
import dataclasses
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np

from seedx import envs, types, wire
from seedx.acting import protocol

C = TypeVar("C")

# Statuses of a process that has gone, or that is full.
_BUSY = (wire.StatusCode.UNAVAILABLE, wire.StatusCode.RESOURCE_EXHAUSTED)
# Seconds that the end of a session waits for a step of the environments.
_STEP_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Config(protocol.Actors):
  """The thin actors of a run.

  Attributes:
    actor_batch_size: number of environments in a message; the others step while
      these wait for actions. 0 for all environments, in lock step.
  """

  actor_batch_size: int = 0

  def __post_init__(self) -> None:
    super().__post_init__()
    if not 0 <= self.actor_batch_size <= self.envs_per_actor:
      raise types.ConfigError(
        f"expected actor_batch_size from 0 to {self.envs_per_actor}, the"
        f" actor's environments, found {self.actor_batch_size}"
      )

  @property
  def rows(self) -> int:
    """Number of environments in a message."""
    return self.actor_batch_size or self.envs_per_actor


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of one thin actor.

  Attributes:
    address: address of the learner.
    env: the environment.
    actors: settings of all thin actors.
    retry_seconds: seconds between two attempts to connect to the learner.
    security: TLS and token of the connection.
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
    """Makes a `Work` from the learner's settings, as JSON returns them."""

    def config(kind: type[C]) -> C:
      fields = [x.name for x in dataclasses.fields(kind)]  # type: ignore
      values = {name: options[name] for name in fields if name in options}
      return kind(
        **{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
      )

    return cls(address, config(envs.Config), config(Config), security=security)


def run(work: Work, stop: threading.Event) -> None:
  """Acts until the run is over or `stop` is set.

  Raises:
    types.ConfigError: the environment cannot be made.
    wire.WireError: the server refuses this actor.
  """
  spec = envs.spec(work.env)

  def session(client: wire.Client) -> None:
    while not stop.is_set():
      opened = _Session(spec, work, stop, client)
      addresses = protocol.addresses(opened.welcome)
      if not addresses:
        opened.run()
        return
      opened.close()
      act_at_one_of(addresses, opened.welcome)
      # Its work is over, but perhaps not that of the learner.
      stop.wait(work.retry_seconds)

  def act_at_one_of(
    addresses: Sequence[str], welcome: Mapping[str, Any]
  ) -> None:
    """Acts for the first process that has room; raises if there is none."""
    for number, address in enumerate(addresses, 1):
      try:
        with wire.Client(address, work.security) as client:
          _Session(spec, work, stop, client, welcome).run()
        return
      except wire.WireError as error:
        if error.code is wire.StatusCode.CANCELLED:
          return
        if error.code not in _BUSY or number == len(addresses):
          raise

  wire.until_done(
    address=work.address,
    session=session,
    stop=stop,
    role="actor",
    retry_seconds=work.retry_seconds,
    security=work.security,
  )


class _Session:
  """A connection to the learner, with environments stepped on a thread.

  So neither the end of a run nor Ctrl-C waits long for an environment that
  hangs in a step.
  """

  def __init__(
    self,
    spec: types.EnvironmentSpec,
    work: Work,
    stop: threading.Event,
    client: wire.Client,
    of_learner: Mapping[str, Any] | None = None,
  ) -> None:
    """Opens a stream; `of_learner` is its welcome if another process acts."""
    self._work = work
    self._stop = stop
    self._num_envs, self._rows = work.actors.envs_per_actor, work.actors.rows
    hello = {"num_envs": self._num_envs}
    if of_learner:
      hello["first_seed"] = protocol.first_seed(of_learner)
    self._exchange = client.exchange(
      protocol.ACT, *protocol.act_layouts(spec, self._rows), hello=hello
    )
    self.welcome = of_learner or self._exchange.welcome
    # Indices of sent rows; their actions arrive in the same order.
    self._unanswered: collections.deque[np.ndarray] = collections.deque()
    self._failure: BaseException | None = None

  def close(self) -> None:
    """Ends the stream of a session that does not run."""
    self._exchange.close()

  def run(self) -> None:
    """Acts until the stream ends."""
    thread = threading.Thread(target=self._step_all, daemon=True)
    thread.start()
    try:
      self._exchange.over.wait()
    finally:
      self._exchange.close()
      # A process aborts if it exits while an environment steps.
      thread.join(_STEP_SECONDS)
    if self._failure is not None:
      raise self._failure
    if thread.is_alive():  # It has not seen why the stream ended.
      for _ in self._exchange:
        pass

  def _step_all(self) -> None:
    try:
      with contextlib.closing(self._make()) as environment:
        self._act(environment)
    except BaseException as failure:
      self._failure = failure
    finally:
      self._exchange.close()

  def _make(self) -> envs.Environment:
    welcome = self.welcome
    environment = envs.make(
      protocol.env_at(self._work.env, welcome),
      self._num_envs,
      batch_size=self._rows,
      seed=protocol.first_seed(welcome),
    )
    environment.reset()
    return environment

  def _act(self, environment: envs.Environment) -> None:
    # EnvPool must not be asked for rows of environments that wait for actions.
    batches = self._num_envs // self._rows
    if batches == 1:
      self._send(environment)
      while not self._stop.is_set() and self._receive(environment):
        self._send(environment)
      return
    # True for each batch of environments that step; False at the end.
    stepping: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def receive_all() -> None:
      try:
        while self._receive(environment):
          stepping.put(True)
      except BaseException as failure:
        self._failure = failure
      finally:
        stepping.put(False)

    for _ in range(batches):
      stepping.put(True)
    # Without this thread, environments whose actions have arrived would wait
    # until the others have stepped.
    thread = threading.Thread(target=receive_all, daemon=True)
    thread.start()
    try:
      while not self._stop.is_set() and stepping.get():
        self._send(environment, receives=False)
    finally:
      self._exchange.close()
      thread.join()

  def _send(self, environment: envs.Environment, receives: bool = True) -> None:
    rows = environment.recv()
    self._unanswered.append(rows.index)
    self._exchange.send(rows, receives)

  def _receive(self, environment: envs.Environment) -> bool:
    """Sends the next actions to their environments; False if there are none."""
    actions = self._exchange.receive()
    if actions is None:
      return False
    environment.send(self._unanswered.popleft(), actions)
    return True
