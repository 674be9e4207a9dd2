"""Runs a learner process: start, stop, check, log, save, restore.

A `Pipeline` is a config that describes a run; its `learn(context)` returns a
`Process`, what is to run in the learner's. `run` does the rest, for all
pipelines.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, Self, runtime_checkable

import jax
import numpy as np

from seedx import envs, launch, metrics, types, wire
from seedx.agents import base
from seedx.runtime import counters, hangs
from seedx.runtime import hosts as hosts_lib
from seedx.runtime import seeds as seeds_lib

# A program that is being compiled cannot be stopped; all else ends at once.
_STOP_SECONDS = 60.0
# How often the main thread looks whether the work is done.
_LOOK_SECONDS = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """The options of every run; each pipeline's config is one, see `Pipeline`.

  Attributes:
    total_steps: env steps to train for, including those before a resume.
    seed: random seed of environments, initial parameters and sampling.
    log_seconds: seconds between two lines of metrics.
    hang_seconds: seconds without an env step and without an update after which
      the console names what each thread waits for; compile time does not count.
  """

  total_steps: int = 2_000_000
  seed: int = 0
  log_seconds: float = 0.5
  hang_seconds: float = 120.0

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    types.check_ranges(
      self,
      total_steps=(1, 2**63 - 1),
      seed=(0, 2**30 - 1),  # Others would share environments or random keys.
      log_seconds=(0.0, types.MOST_SECONDS),
      hang_seconds=(1.0, types.MOST_SECONDS),
    )

  def with_sockets(self, folder: str) -> Self:
    """Returns the config with sockets in a folder where it has no address."""
    del folder  # It has no address to give.
    return self

  def nodes(self) -> list[launch.Node]:
    """Returns no nodes: there is one process."""
    return []


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig(Config):
  """The options of a run whose learner serves other processes.

  Attributes:
    address: where the learner listens, HOST:PORT or unix:PATH; needed with
      --role.
    security: how its processes know each other.
    launching: what starts the other processes.
  """

  address: str = ""
  security: wire.Security = wire.LOCAL
  launching: launch.Config = launch.Config()

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    super().__post_init__()
    if self.address:
      wire.check_address(self.address)

  def make_server(self, max_streams: int) -> wire.Server:
    """The learner's server, which does not listen yet; see `wire.Server`.

    Raises:
      types.ConfigError: it would be open to other machines.
    """
    return wire.Server(self.address, max_streams, security=self.security)

  def with_sockets(self, folder: str) -> Self:
    """The config with a socket in a folder where no address was given."""
    address = self.address or f"unix:{folder}/learner"
    return dataclasses.replace(self, address=address)


class Keys(NamedTuple):
  """The random keys of a process.

  Attributes:
    learner: the same on all learner hosts.
    replay: this host's.
    acting: this host's.
  """

  learner: jax.Array
  replay: jax.Array
  acting: jax.Array


@dataclasses.dataclass(frozen=True)
class Context:
  """What a pipeline's `learn` is given beside its config.

  Attributes:
    stop: set when the run should end; every wait ends with it, or when
      `Process.stopping` is called.
    hosts: the learner hosts of the run; they end together.
  """

  stop: threading.Event = dataclasses.field(default_factory=threading.Event)
  hosts: hosts_lib.Hosts = dataclasses.field(default_factory=hosts_lib.Hosts)

  @property
  def over(self) -> threading.Event:
    """Set when the process may end: with other hosts, not before they do."""
    return self.stop if self.hosts.count == 1 else self.hosts.over

  def keys(self, seed: int) -> Keys:
    """The random keys of this process in a run with a seed."""
    learner, replay, acting = jax.random.split(jax.random.key(seed), 3)
    return Keys(learner, self.hosts.own_key(replay), self.hosts.own_key(acting))

  def acted(
    self, spec: types.EnvironmentSpec, total_steps: int
  ) -> counters.Acted:
    """Makes the counts of experience, over all hosts.

    Args:
      spec: of the environment.
      total_steps: env steps after which all hosts stop.
    """
    return self.hosts.acted(spec.frames_per_step, total_steps)

  def seeds(self, seed: int) -> seeds_lib.Seeds:
    """Makes the seeds of this process's environments, in a run with a seed."""
    return self.hosts.counted(seeds_lib.Seeds(seed, self.hosts.index))


class Part(Protocol):
  """A part of a process that checkpoints save; any thread may save it."""

  def saved(self) -> types.Tree:
    """Its state in a checkpoint, a nest of arrays.

    Raises:
      wire.WireError: UNAVAILABLE, a server cannot be reached now; try again.
    """

  def restore(self, saved: types.Tree) -> None:
    """Continues from a saved state; called before the process runs."""


class Replay(Protocol):
  """The replays of a process; any thread may save them."""

  @property
  def num_bytes(self) -> int:
    """Of what a checkpoint would keep, about; 0 where it is not known yet."""

  def paused(self) -> contextlib.AbstractContextManager[None]:
    """Neither they nor the parts of the process change within it."""

  def saved(self) -> Callable[[], types.Tree]:
    """Takes their state, `paused`.

    Returns:
      A function that says the state as a nest of arrays, on any thread; it may
      wait.
    """

  def restore(self, saved: Mapping[str, np.ndarray]) -> None:
    """Continues from a saved state; called before the process runs.

    Args:
      saved: its arrays by their paths, see `checkpoint.Checkpoints.restore`.
    """


@dataclasses.dataclass(frozen=True)
class Process:
  """What runs in a pipeline's own process.

  Attributes:
    acted: counts of env steps and episodes.
    parts: what a checkpoint saves, by name; `acted` is one of them. A part
      whose state is in other processes also has `form()`, its shapes.
    replay: that the run learns from; None if there is none. A checkpoint saves
      it by itself, because it may be too large.
    policy: maps saved parts to acting parameters, see `base.Agent.acting`.
    measures: functions whose results make a line of metrics.
    done: whether the run has reached its end; unused where there are `steps`.
    threads: functions that run on threads of their own, by name.
    steps: an iterator of the main thread's work, which ends with the run; if
      None, the main thread waits for the others.
    server: listens as long as the process runs.
    addresses: where processes of other roles listen, by role.
    stopping: called soon after `Context.stop` is set, perhaps many times;
      closes the channels at which threads wait.
    ending: called at the end while the server still listens.
    close: called at the end after the server has stopped; ends other waits, and
      frees resources.
  """

  acted: counters.Acted
  parts: Mapping[str, Part]
  policy: Callable[[types.Tree], types.Tree]
  measures: Sequence[Callable[[], metrics.Line]]
  replay: Replay | None = None
  done: Callable[[], bool] = lambda: False
  threads: Mapping[str, Callable[[], None]] = dataclasses.field(
    default_factory=dict
  )
  steps: Callable[[], Iterator[None]] | None = None
  server: wire.Server | None = None
  addresses: Mapping[str, launch.Addresses] = dataclasses.field(
    default_factory=dict
  )
  stopping: Callable[[], None] = lambda: None
  ending: Callable[[], None] = lambda: None
  close: Callable[[], None] = lambda: None

  def saved(self) -> types.Tree:
    """The whole checkpoint; any thread may call it; see `Part.saved`."""
    return {name: part.saved() for name, part in self.parts.items()}

  @staticmethod
  def clock(saved: types.Tree) -> int:
    """How far a saved process was, which names its checkpoint: env steps."""
    return int(saved["acted"]["env_steps"])

  def restore(self, load: Callable[[types.Tree], types.Tree]) -> None:
    """Continues from a checkpoint, before `run`; the replay has its own.

    Args:
      load: maps a nest of the shapes of `saved` to the saved one.
    """
    saved = load(
      {
        name: getattr(part, "form", part.saved)()
        for name, part in self.parts.items()
      }
    )
    for name, part in self.parts.items():
      part.restore(saved[name])

  def measure(self) -> dict[str, metrics.Value]:
    """A line of metrics."""
    line: dict[str, metrics.Value] = {}
    for measure in self.measures:
      line |= measure()
    return line


@runtime_checkable
class Pipeline(Protocol):
  """A pipeline: a `Config` whose methods describe a run, and start nothing.

  Attributes:
    env: config of the environment.
    agent: config of the agent that acts and learns.
    total_steps: see `Config`.
    seed: see `Config`.
    log_seconds: see `Config`.
    hang_seconds: see `Config`.
  """

  @property
  def env(self) -> envs.Config: ...
  @property
  def agent(self) -> base.Config: ...
  @property
  def total_steps(self) -> int: ...
  @property
  def seed(self) -> int: ...
  @property
  def log_seconds(self) -> float: ...
  @property
  def hang_seconds(self) -> float: ...

  def with_sockets(self, folder: str) -> Self:
    """Returns the config with sockets in a folder where it has no address."""

  def nodes(self) -> list[launch.Node]:
    """Returns what runs in other processes, anywhere that reaches this one."""

  def learn(self, context: Context) -> Process:
    """Returns what runs in this process.

    Raises:
      types.ConfigError: the environment or a device does not exist, or the
        agent cannot learn so.
    """


def run(
  process: Process,
  context: Context,
  sinks: Sequence[metrics.Sink] = (),
  log_seconds: float = 0.5,
  check: Callable[[], None] = lambda: None,
  watch: hangs.Watch | None = None,
) -> dict[str, metrics.Value]:
  """Runs a process until its work is done, a stop, or a failure.

  Args:
    process: what runs.
    context: that it was made in.
    sinks: take the lines of metrics; the caller closes them.
    log_seconds: between two lines.
    check: is called before each line, and may raise.
    watch: notices that it hangs.

  Returns:
    The last line of metrics.

  Raises:
    types.ConfigError: the server's address is in use.
    Exception: whatever a thread failed with.
  """
  team = ThreadGroup(context.stop, context.hosts)
  watch = watch or hangs.Watch()

  def write(line: metrics.Line) -> dict[str, metrics.Value]:
    noted = watch.noted(line)
    for sink in sinks:
      sink.write(noted)
    return noted

  own = {threading.get_ident(): "main"}
  watch.begin(
    lambda: process.acted.env_steps, lambda: own | team.identifiers(), write
  )
  if process.server is not None:
    process.server.start()
  try:
    for name, target in process.threads.items():
      team.start(name, target)
    steps = process.steps or (lambda: _looks(process, context, log_seconds))
    written = time.monotonic()
    for _ in steps():
      if time.monotonic() - written >= log_seconds:
        check()
        write(process.measure())
        written = time.monotonic()
      if context.stop.is_set():  # With other hosts, perhaps not yet over.
        process.stopping()
      if context.over.is_set():
        break
  except BaseException:
    context.hosts.failed = True
    raise
  finally:
    context.stop.set()
    process.stopping()
    process.ending()
    if process.server is not None:
      process.server.stop()
    process.close()
    try:
      team.join(_STOP_SECONDS)
    finally:
      watch.end()
      last = write(process.measure())
  return last


class ThreadGroup:
  """Threads that stop together: one that fails stops them all.

  Attributes:
    stop: set when the threads should end; every wait of theirs must watch it.
  """

  def __init__(
    self,
    stop: threading.Event | None = None,
    others: hosts_lib.Hosts | None = None,
  ) -> None:
    """Makes a group of no thread yet.

    Args:
      stop: with which it ends.
      others: learner hosts that stop where a thread here fails.
    """
    self.stop = stop or threading.Event()
    self._others = others or hosts_lib.Hosts()
    self._threads: list[threading.Thread] = []
    self._failures: list[BaseException] = []

  def start(self, name: str, target: Callable[[], None]) -> None:
    """Starts a thread; an exception of `target` is kept, and stops all."""

    def run() -> None:
      try:
        target()
      except BaseException as failure:
        self._failures.append(failure)
        self._others.failed = True
        self.stop.set()

    thread = threading.Thread(target=run, name=name, daemon=True)
    self._threads.append(thread)
    thread.start()

  def identifiers(self) -> dict[int, str]:
    """The names of the threads by their identifiers."""
    return {x.ident: x.name for x in self._threads if x.ident is not None}

  def join(self, timeout_seconds: float) -> None:
    """Stops all threads and waits for each.

    Raises:
      BaseException: the first exception that a thread ended with.
      TimeoutError: a thread goes on for longer than `timeout_seconds`.
    """
    self.stop.set()
    for thread in self._threads:
      thread.join(timeout_seconds)
    if self._failures:
      raise self._failures[0]
    stuck = [thread.name for thread in self._threads if thread.is_alive()]
    if stuck:
      raise TimeoutError(
        f"expected threads to end in {timeout_seconds} s, still running:"
        f" {', '.join(stuck)}"
      )


def _looks(
  process: Process, context: Context, log_seconds: float
) -> Iterator[None]:
  """Yields now and then until the others have done the work."""
  while not process.done():
    context.over.wait(min(log_seconds, _LOOK_SECONDS))
    yield
