"""The interface of pipelines: a `Config`, and the `Process` that it makes.

A pipeline's `Config` describes a run and starts nothing. The config's
`learn(context)` returns a `Process`: what runs in the learner's process.
`running.run` runs the `Process`, in the same way for all pipelines.
"""

import abc
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

import jax

from seedx import envs, metrics, types, wire
from seedx.agents import base
from seedx.launch import config as launch_config
from seedx.launch import topology
from seedx.runtime import clocks, counters, process_parts, seeding
from seedx.runtime import hosts as hosts_lib
from seedx.wire import serving

# Names in a checkpoint of the agent's state and its counts.
_AGENT, _COUNTS = "agent", "learner"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(abc.ABC):
  """Base class of pipelines, with the options of every run.

  Attributes:
    total_steps: number of env steps to train for, including those before a
      resume; of updates in a run without environments.
    seed: random seed of environments, initial parameters and sampling.
    log_seconds: seconds between two lines of metrics.
    hang_seconds: seconds without an env step or an update after which the
      console reports where each thread waits; compile time does not count.
    env: the environment.
    agent: the agent that acts and learns.
  """

  total_steps: int = types.setting(
    2_000_000, changes="resume", alike=True, low=1, high=2**63 - 1
  )
  # Larger seeds would share environments or random keys with smaller ones.
  seed: int = types.setting(0, labels=False, low=0, high=2**30 - 1)
  log_seconds: float = types.setting(
    0.5, changes="resume", labels=False, low=0.0, high=types.MAX_SECONDS
  )
  hang_seconds: float = types.setting(
    120.0, changes="resume", labels=False, low=1.0, high=types.MAX_SECONDS
  )
  env: envs.Config = envs.Config()
  agent: base.Config

  def __post_init__(self) -> None:
    types.check_settings(self)

  def with_sockets(self, folder: str) -> Self:
    """Returns the config with a socket in `folder` for each missing address."""
    del folder  # Only a `ServerConfig` has an address.
    return self

  def nodes(self) -> list[topology.Node]:
    """Returns the roles of other processes, on this or other machines."""
    return []

  @abc.abstractmethod
  def learn(self, context: "Context") -> "Process":
    """Returns the learner's process, which the caller runs.

    Raises:
      types.ConfigError: the environment or a device does not exist, or the
        agent does not fit the pipeline.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig(Config):
  """The options of a run whose learner serves other processes.

  Attributes:
    address: address of the learner, HOST:PORT or unix:PATH; needed with --role.
    security: authentication between the processes of the run.
    launching: launcher of the other processes.
  """

  address: str = types.setting("", changes="process", labels=False)
  security: wire.Security = wire.LOCAL
  launching: launch_config.Config = launch_config.Config()

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.address:
      wire.check_address(self.address)

  def make_server(self, max_streams: int) -> serving.Server:
    """Makes the learner's server, which does not listen yet.

    Raises:
      types.ConfigError: see `serving.Server`.
    """
    return serving.Server(self.address, max_streams, security=self.security)

  def with_sockets(self, folder: str) -> Self:
    """Returns the config with a socket in a folder if it has no address."""
    address = self.address or f"unix:{folder}/learner"
    return dataclasses.replace(self, address=address)


class Keys(NamedTuple):
  """The random keys of a process.

  Attributes:
    learner: key that is the same on all learner hosts.
    replay: key of this host's replay.
    acting: key of this host's actions.
  """

  learner: jax.Array
  replay: jax.Array
  acting: jax.Array


@dataclasses.dataclass(frozen=True)
class Context:
  """The surroundings of a process: stop event, other hosts and clock.

  Attributes:
    stop: event that ends the run. Every wait ends with it, or when
      `Process.stopping` is called.
    hosts: the learner hosts of the run, which end together.
    wall_clock: clock of the run; it starts with the context by default.
  """

  stop: threading.Event = dataclasses.field(default_factory=threading.Event)
  hosts: hosts_lib.Hosts = dataclasses.field(default_factory=hosts_lib.Hosts)
  wall_clock: clocks.WallClock = dataclasses.field(
    default_factory=clocks.WallClock
  )

  @property
  def over(self) -> threading.Event:
    """The event after which the process may end; hosts end together."""
    return self.stop if self.hosts.count == 1 else self.hosts.over

  def keys(self, seed: int) -> Keys:
    """Returns the random keys of this process, from the seed of the run."""
    learner, replay, acting = jax.random.split(jax.random.key(seed), 3)
    return Keys(learner, self.hosts.own_key(replay), self.hosts.own_key(acting))

  def acted(
    self, spec: types.EnvironmentSpec, total_steps: int
  ) -> counters.ActingCounts:
    """Makes the counts of experience over all hosts."""
    return self.hosts.acted(
      spec.frames_per_step, total_steps, self.wall_clock, spec.log_info
    )

  def seeds(self, seed: int) -> seeding.Seeds:
    """Makes the seeds of this host's environments, from the run's seed."""
    return self.hosts.counted(seeding.Seeds(seed, self.hosts.index))


@dataclasses.dataclass(frozen=True)
class Process:
  """The parts of a learner's process, and what its threads run.

  Attributes:
    acted: counts of env steps and episodes.
    parts: parts that a checkpoint saves, by name. They are `acted`, `agent`,
      which saves a `process_parts.PartState`, and others. A part whose state
      is in other processes also has `form()`, which returns its shapes.
    begin: takes parameters and statistics that replace the initial ones, see
      `base.begin`; called before the process runs. None if unsupported.
    replay: replay that the run learns from; None if there is none. The replay
      is saved separately, because it may be too large.
    refill: called after a resume whose replay starts empty, with the env steps
      so far; moves schedules past the updates that are not made until the
      replay is filled again.
    policy: maps saved parts to acting parameters, see `base.Agent.acting`.
    measures: sources of the metrics of a line, in order.
    own_clock: clock of the run; None for env steps.
    done: returns whether the run has reached its end; None for the clock's.
      Unused if there are `steps`.
    threads: functions that run on threads of their own, by name.
    steps: makes the iterator of the main thread's work, which ends with the
      run; None if the main thread only waits for the other threads.
    server: server that listens while the process runs.
    addresses: addresses of the processes of other roles, by role.
    stopping: closes the channels at which threads wait. Called soon after
      `Context.stop` is set, perhaps many times.
    ending: called at the end, while the server still listens.
    close: called after the server has stopped; ends other waits, and frees
      resources.
  """

  acted: counters.ActingCounts
  parts: Mapping[str, process_parts.Part]
  policy: Callable[[types.Tree], types.Tree]
  measures: Sequence[process_parts.Meter]
  begin: Callable[[types.Tree, types.Tree], None] | None = None
  replay: process_parts.Replay | None = None
  refill: Callable[[int], None] = lambda env_steps: None
  own_clock: clocks.Clock | None = None
  done: Callable[[], bool] | None = None
  threads: Mapping[str, Callable[[], None]] = dataclasses.field(
    default_factory=dict
  )
  steps: Callable[[], Iterator[None]] | None = None
  server: serving.Server | None = None
  addresses: Mapping[str, topology.Addresses] = dataclasses.field(
    default_factory=dict
  )
  stopping: Callable[[], None] = lambda: None
  ending: Callable[[], None] = lambda: None
  close: Callable[[], None] = lambda: None

  def saved(self) -> types.Tree:
    """Returns the whole state; any thread may call it.

    In every pipeline, `agent` is a `base.AgentState`, and `learner` its counts.
    """
    return _divided({name: part.saved() for name, part in self.parts.items()})

  @property
  def clock(self) -> clocks.Clock:
    """The run's clock, in whose steps checkpoints and evaluations are named."""
    return self.own_clock or self.acted.clock

  def restore(self, load: Callable[[types.Tree], types.Tree]) -> None:
    """Continues from a checkpoint, without its replay; called before `run`.

    Args:
      load: maps a nest with the shapes of `saved` to the saved nest.
    """
    saved = load(
      _divided(
        {
          name: getattr(part, "form", part.saved)()
          for name, part in self.parts.items()
        }
      )
    )
    for name, part in self.parts.items():
      state = saved[name]
      if name == _AGENT:
        state = process_parts.PartState(state, saved[_COUNTS])
      part.restore(state)

  def measure(self) -> dict[str, metrics.Value]:
    """Returns a line of metrics, the clock first; see `metrics.clock`."""
    line: dict[str, metrics.Value] = {self.clock.name: self.clock.now()}
    for measured in self.measures:
      line |= measured.measure()
    return line


def _divided(saved: dict[str, types.Tree]) -> dict[str, types.Tree]:
  """Returns what parts have saved, with the agent's counts beside it."""
  if _AGENT not in saved:
    return saved
  return saved | {_AGENT: saved[_AGENT].agent, _COUNTS: saved[_AGENT].counts}
