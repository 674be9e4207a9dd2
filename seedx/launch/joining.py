"""Processes that join a run: the learner tells them what to be.

A process that joins opens the stream `JOIN` and says in its hello::

    {"version": "0.2.0", "role": "actor", "address": "", "experiment": "",
     "options": {}}

`role` may be empty where the run has only one, and `address` is where a server
listens. The learner refuses the process unless it has the same `experiment` and
`options`, which may be empty. The welcome has the role's name and the run's
experiment and options::

    {"version": "0.2.0", "role": "actor", "needs_jax": false,
     "experiment": "seed_vtrace", "options": {"env": "CartPole-v1", ...}}

The stream stays open as long as both live; the process that has joined sends an
empty request each minute. All of it is JSON: nothing that
arrives is unpickled, and no module is imported because a message names it.
"""

import dataclasses
import json
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import seedx
from seedx import envs, types, wire

JOIN = "join"
# How often a joined process looks whether it is to leave.
_LOOK_SECONDS = 0.2
# How often it says that it is there; see `wire.SILENT_SECONDS`.
_SAY_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Config:
  """How a process joins.

  Attributes:
    give_up_seconds: seconds without a learner after which a process that joins
      one exits with status 3; the default leaves time to start it again.
  """

  give_up_seconds: float = types.setting(
    600.0, changes="start", low=0.0, high=types.MAX_SECONDS
  )

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a setting that is out of range."""
    types.check_settings(self)


@dataclasses.dataclass(frozen=True)
class Hello:
  """What a process that joins says.

  Attributes:
    role: that it wants; empty for the only one.
    address: where it listens, HOST:PORT or unix:PATH, if its role does.
    experiment: that the learner must run; empty for any.
    options: that the learner must have, as JSON.
    version: of seedx.
  """

  role: str = ""
  address: str = ""
  experiment: str = ""
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  version: str = seedx.__version__


@dataclasses.dataclass(frozen=True)
class Told:
  """What the learner says.

  Attributes:
    role: of one node, such as `actor` or `server-1`.
    needs_jax: see `nodes.Node`.
    experiment: that runs; empty for a script without one.
    options: the settings of the pipeline's config by their names, as JSON.
    version: of seedx.
  """

  role: str
  needs_jax: bool
  experiment: str
  options: Mapping[str, Any]
  version: str = seedx.__version__


M = TypeVar("M", Hello, Told)


def join(
  address: str,
  hello: Hello,
  play: Callable[[Told, threading.Event], None],
  stop: threading.Event,
  config: Config = Config(),
  security: wire.Security = wire.LOCAL,
) -> None:
  """Joins a run, and again where its learner has been started again.

  Args:
    address: of the learner.
    hello: what to say to it.
    play: `(told, stop)`, does the role's work until that is done or `stop`,
      another event, is set.
    stop: ends all of it.
    config: how long it waits.
    security: how they know each other.

  Raises:
    wire.WireError: the learner refuses.
    wire.GaveUpError: there is none.
  """

  def session(client: wire.Client) -> None:
    ended = threading.Event()
    failures: list[wire.WireError] = []
    stream = client.stream(
      JOIN,
      _nothings_until(stop, ended),
      wire.NOTHING,
      wire.NOTHING,
      dataclasses.asdict(hello),
    )

    def watch() -> None:
      try:
        for _ in stream:
          pass
      except wire.WireError as failure:
        failures.append(failure)
      finally:
        ended.set()

    watcher = threading.Thread(target=watch, name="join", daemon=True)
    watcher.start()
    try:
      told = _told(stream.welcome, hello)
      tell(f"joined {address} as {told.role}")
      play(told, ended)
    finally:
      stream.close()
      watcher.join()
    if failures and not stop.is_set():
      raise failures[0]

  wire.until_done(
    address=address,
    session=session,
    stop=stop,
    role=hello.role or "join",
    give_up_seconds=config.give_up_seconds,
    security=security,
  )
  if not stop.is_set():
    tell("the run is over")


def tell(message: str) -> None:
  """Prints a line, which may have words of a peer."""
  print(types.printable(message), file=sys.stderr, flush=True)


def _nothings_until(
  stop: threading.Event, ended: threading.Event
) -> Iterator[types.Tree]:
  """Requests of a stream that is to stay open."""
  said = time.monotonic()
  while not ended.is_set():
    if stop.wait(_LOOK_SECONDS):
      ended.set()
    elif time.monotonic() > said + _SAY_SECONDS:
      said = time.monotonic()
      yield ()


def _told(welcome: Mapping[str, Any], hello: Hello) -> Told:
  """What a learner said, where it may be done."""
  try:
    told = read(Told, welcome)
    check_version(told.version)
    for name, value in envs.code_in(told.options).items():
      if hello.options.get(name) != value:
        words = value if isinstance(value, str) else json.dumps(value)
        raise wire.does_not_fit(
          f"--{name.replace('_', '-')} {shlex.quote(words)} here too, as it may"
          " run code that the learner names",
          "it there only",
        )
  except wire.Refused as refused:
    raise wire.WireError(refused.code, refused.message) from None
  return told


def read(kind: type[M], found: Mapping[str, Any]) -> M:
  """Makes a message of JSON that a peer sent.

  Raises:
    wire.Refused: a field is missing, or of another type.
  """
  fields = {field.name: field.type for field in dataclasses.fields(kind)}
  for name, hint in fields.items():
    expected: Any = hint if hint in (str, bool) else dict
    if not isinstance(found.get(name), expected):
      raise wire.does_not_fit(
        f"{name} as {expected.__name__}", f"{found.get(name)!r:.80}"
      )
  return kind(**{name: found[name] for name in fields})


def check_version(found: str) -> None:
  """Raises wire.Refused for another version of seedx than this one."""
  if found != seedx.__version__:
    raise wire.does_not_fit(
      f"seedx {seedx.__version__} at both ends", f"{found:.80}"
    )
