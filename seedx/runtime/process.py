"""What a pipeline is, and the process that it describes.

A pipeline is a `Config` that describes a run and starts nothing; its
`learn(context)` returns a `Process`, what is to run in the learner's.
`running.run` does the rest, for all pipelines.
"""

import abc
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

import jax

from seedx import envs, metrics, types, wire
from seedx.agents import base
from seedx.launch import admission
from seedx.launch import config as launch_config
from seedx.launch import nodes as nodes_lib
from seedx.runtime import counters
from seedx.runtime import hosts as hosts_lib
from seedx.runtime import parts as parts_lib
from seedx.runtime import seeds as seeds_lib
from seedx.wire import server as server_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(abc.ABC):
  """A pipeline, with the options of every run.

  Attributes:
    total_steps: env steps to train for, including those before a resume.
    seed: random seed of environments, initial parameters and sampling.
    log_seconds: seconds between two lines of metrics.
    hang_seconds: seconds without an env step and without an update after which
      the console names what each thread waits for; compile time does not count.
    env: the environment.
    agent: the agent that acts and learns.
  """

  total_steps: int = types.setting(
    2_000_000, changes="resume", alike=True, low=1, high=2**63 - 1
  )
  # Seeds beyond these would share environments or random keys with others.
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
    """Raises types.ConfigError for what cannot be run."""
    types.check_settings(self)

  def with_sockets(self, folder: str) -> Self:
    """Returns the config with sockets in a folder where it has no address."""
    del folder  # It has no address to give.
    return self

  def nodes(self) -> list[nodes_lib.Node]:
    """Returns what runs in other processes, anywhere that reaches this one."""
    return []

  @abc.abstractmethod
  def learn(self, context: "Context") -> "Process":
    """Returns what runs in this process.

    Raises:
      types.ConfigError: the environment or a device does not exist, or the
        agent cannot learn so.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig(Config):
  """The options of a run whose learner serves other processes.

  Attributes:
    address: where the learner listens, HOST:PORT or unix:PATH; needed with
      --role.
    security: how its processes know each other.
    launching: what starts the other processes.
  """

  address: str = types.setting("", changes="process", labels=False)
  security: wire.Security = wire.LOCAL
  launching: launch_config.Config = launch_config.Config()

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    super().__post_init__()
    if self.address:
      wire.check_address(self.address)

  def make_server(self, max_streams: int) -> server_lib.Server:
    """The learner's server, which does not listen yet; see `server.Server`.

    Raises:
      types.ConfigError: it would be open to other machines.
    """
    return server_lib.Server(self.address, max_streams, security=self.security)

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
    measures: what has a part in a line of metrics, in order.
    done: whether the run has reached its end; None for `acted.is_done`. Unused
      where there are `steps`.
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
  parts: Mapping[str, parts_lib.Part]
  policy: Callable[[types.Tree], types.Tree]
  measures: Sequence[parts_lib.Measured]
  replay: parts_lib.Replay | None = None
  done: Callable[[], bool] | None = None
  threads: Mapping[str, Callable[[], None]] = dataclasses.field(
    default_factory=dict
  )
  steps: Callable[[], Iterator[None]] | None = None
  server: server_lib.Server | None = None
  addresses: Mapping[str, admission.Addresses] = dataclasses.field(
    default_factory=dict
  )
  stopping: Callable[[], None] = lambda: None
  ending: Callable[[], None] = lambda: None
  close: Callable[[], None] = lambda: None

  def saved(self) -> types.Tree:
    """The whole checkpoint; any thread may call it; see `parts.Part`."""
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
    for measured in self.measures:
      line |= measured.measure()
    return line
