"""Processes that join a run, and to which the learner assigns roles.

A process that joins opens the stream `JOIN` with a `Hello`. If it fits the run,
the learner answers with a `Welcome`.

The stream stays open as long as both processes live; the process that joined
sends an empty request each minute. All messages are JSON: nothing that arrives
is unpickled, and no module is imported because a message names it.
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
from seedx import envs, signals, types, wire

JOIN = "join"
# Exit status of a process without a learner.
_GAVE_UP = 3
_LOOK_SECONDS = 0.2
# The period of a joined process's signs of life; see `wire.SILENT_SECONDS`.
_SIGN_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Config:
  """The options of a process that joins.

  Attributes:
    give_up_seconds: seconds without a learner after which a joining process
      exits with status 3; the default leaves time to restart the learner.
  """

  give_up_seconds: float = types.setting(
    600.0, changes="start", low=0.0, high=types.MAX_SECONDS
  )

  def __post_init__(self) -> None:
    types.check_settings(self)


@dataclasses.dataclass(frozen=True)
class Hello:
  """The request of a process that joins.

  Attributes:
    role: requested role; empty if the run has only one.
    address: address at which it listens, HOST:PORT or unix:PATH; empty for a
      role that does not listen.
    experiment: experiment that the learner must run; empty for any.
    options: settings that the learner must have, as JSON.
    version: version of seedx.
  """

  role: str = ""
  address: str = ""
  experiment: str = ""
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  version: str = seedx.__version__


@dataclasses.dataclass(frozen=True)
class Welcome:
  """The role that the learner assigns, and the run that it belongs to.

  Attributes:
    role: role of one node, such as `actor` or `server-1`.
    needs_jax: see `topology.Node`.
    experiment: experiment that runs; empty for a script.
    options: settings of the pipeline's config by their names, as JSON.
    version: version of seedx.
  """

  role: str
  needs_jax: bool
  experiment: str
  options: Mapping[str, Any]
  version: str = seedx.__version__


M = TypeVar("M", Hello, Welcome)


def join(
  address: str,
  hello: Hello,
  play: Callable[[Welcome, threading.Event], None],
  stop: threading.Event,
  config: Config = Config(),
  security: wire.Security = wire.LOCAL,
) -> None:
  """Joins a run, and joins again whenever its learner has restarted.

  Args:
    address: the learner's address.
    hello: the request.
    play: function `(welcome, ended)` that does the assigned role's work until
      it is done or the event `ended` is set.
    stop: event that ends the work and the waits.
    config: the time to wait for a learner.
    security: authentication between the processes.

  Raises:
    wire.WireError: the learner refuses the process.
    wire.GaveUpError: there was no learner for too long.
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
      assignment = _accepted(stream.welcome, hello)
      print_line(f"joined {address} as {assignment.role}")
      play(assignment, ended)
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
    print_line("the run is over")


def run(
  address: str,
  hello: Hello,
  play: Callable[[Welcome, threading.Event], None],
  config: Config,
  security: wire.Security,
) -> int:
  """Joins a run until it is over or a signal comes; returns the exit status.

  `play` does the work of the role; see `join`. Errors are printed.
  """
  stop = threading.Event()
  try:
    if warning := security.of_client(address).warning:
      print(warning, file=sys.stderr, flush=True)
    # The learner, which such a warning has reached too, may need this process
    # to save.
    with signals.stopping(stop, ignored=signals.WARNINGS) as ending:
      join(address, hello, play, stop, config, security)
  except (types.ConfigError, wire.WireError) as error:
    reason = types.printable(getattr(error, "message", str(error)))
    print(f"error: cannot join {address}: {reason}", file=sys.stderr)
    return _GAVE_UP if isinstance(error, wire.GaveUpError) else 2
  return ending.status


def print_line(message: str) -> None:
  """Prints a line to the console; a peer's text in it is made printable."""
  print(types.printable(message), file=sys.stderr, flush=True)


def _nothings_until(
  stop: threading.Event, ended: threading.Event
) -> Iterator[types.Tree]:
  """Yields a request now and then, so that the stream stays open."""
  sent = time.monotonic()
  while not ended.is_set():
    if stop.wait(_LOOK_SECONDS):
      ended.set()
    elif time.monotonic() > sent + _SIGN_SECONDS:
      sent = time.monotonic()
      yield ()


def _accepted(welcome: Mapping[str, Any], hello: Hello) -> Welcome:
  """Parses the welcome; WireError if it is wrong or names untrusted code."""
  try:
    assignment = read(Welcome, welcome)
    check_version(assignment.version)
    for name, value in envs.code_in(assignment.options).items():
      if hello.options.get(name) != value:
        text = value if isinstance(value, str) else json.dumps(value)
        raise wire.does_not_fit(
          f"--{name.replace('_', '-')} {shlex.quote(text)} here too, because it"
          " may run code that the learner names",
          "it there only",
        )
  except wire.Refusal as refused:
    raise wire.WireError(refused.code, refused.message) from None
  return assignment


def read(kind: type[M], content: Mapping[str, Any]) -> M:
  """Makes a message from the JSON that a peer sent.

  Raises:
    wire.Refusal: a field is missing or has a wrong type.
  """
  fields = {field.name: field.type for field in dataclasses.fields(kind)}
  for name, hint in fields.items():
    expected: Any = hint if hint in (str, bool) else dict
    if not isinstance(content.get(name), expected):
      raise wire.does_not_fit(
        f"{name} as {expected.__name__}", f"{content.get(name)!r:.80}"
      )
  return kind(**{name: content[name] for name in fields})


def check_version(version: str) -> None:
  """Raises wire.Refusal unless a peer's version of seedx is this one."""
  if version != seedx.__version__:
    raise wire.does_not_fit(
      f"seedx {seedx.__version__} at both ends", f"{version:.80}"
    )
