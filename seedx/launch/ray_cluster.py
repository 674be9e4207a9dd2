"""Nodes as tasks of a Ray cluster, started again when they or a machine die.

A task runs a node in a process of its own, as `processes` does, on whatever
machine of the cluster has room. The learner stays where it is, or runs there
too. Observations, unrolls and parameters do not go through Ray.
"""

import dataclasses
import functools
import importlib
import ipaddress
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from seedx import signals, types, wire
from seedx.launch import instances, joining, nodes
from seedx.launch.config import Config

# How often a task looks whether its process has ended.
_LOOK_SECONDS = 0.2
_CONNECT_SECONDS = 10.0
_TOKEN = "RAY_AUTH_TOKEN"
# A new cluster of this machine alone; see `Config.ray_address`.
_LOCAL = "local"

T = TypeVar("T")


class Cluster:
  """The connection of this process to a cluster."""

  def __init__(self, config: Config) -> None:
    """Connects, unless this process is connected already.

    Raises:
      types.ConfigError: Ray is not installed, or there is no such cluster.
    """
    self._is_ours = not ray().is_initialized()
    if not self._is_ours:
      return
    # Ray would take over what ends this process.
    before = {number: signal.getsignal(number) for number in signals.ENDING}
    try:
      if config.ray_address == _LOCAL:
        _start_here()
      else:
        _connect(config.ray_address)
    except BaseException:
      _forget_token()
      raise
    finally:
      if threading.current_thread() is threading.main_thread():
        for number, handler in before.items():
          signal.signal(number, handler)

  def free_address(self) -> str:
    """An address of this machine, for others of the cluster, that is free."""
    host = ray().util.get_node_ip_address()
    return f"{host}:{_free_port(host)}"

  def reached(self, address: str) -> str:
    """Where others of the cluster reach what listens here.

    Args:
      address: where it listens.

    Raises:
      types.ConfigError: that is a unix socket.
    """
    if address.rpartition(":")[0] in ("", "unix"):
      raise types.ConfigError(
        f"expected an address HOST:PORT, or none, with --launcher ray, found"
        f" {address}"
      )
    return wire.reachable_address(address, by=ray().util.get_node_ip_address())

  def leave(self) -> None:
    """Disconnects what it has connected."""
    if self._is_ours:
      ray().shutdown()
      _forget_token()


class Tasks(instances.Instances):
  """Tasks of a Ray cluster for the instances of some nodes."""

  def __init__(
    self, running: list[nodes.Node], config: Config, cluster: "Cluster"
  ) -> None:
    """Starts all instances of the nodes.

    Args:
      running: the nodes.
      config: what they need of the cluster.
      cluster: is left when they have been stopped.

    Raises:
      types.ConfigError: a node cannot be sent to another process.
    """
    self._cluster = cluster
    resources = {"CPU": config.actor_cpus, **config.actor_resources}
    play = _remote(_play, resources, max_retries=0)
    super().__init__(running, functools.partial(_Task, play))

  def stop(self, timeout_seconds: float = 2.0) -> None:
    """Ends all of them, and leaves the cluster."""
    super().stop(timeout_seconds)
    self._cluster.leave()


@dataclasses.dataclass(frozen=True)
class Listening:
  """The config of an instance that chooses its address where it runs.

  Attributes:
    address: of the learner.
    security: how they know each other.
    nodes: what it may become, by its role.
    code: settings of the learner's by which these nodes run its user's code.
  """

  address: str
  security: wire.Security
  nodes: Mapping[str, nodes.Node]
  code: Mapping[str, Any]


def ray() -> Any:
  """The module of Ray.

  Raises:
    types.ConfigError: it is not installed.
  """
  try:
    return importlib.import_module("ray")
  except ImportError as error:
    raise types.ConfigError(
      'expected Ray, found none; install it by pip install "seedx[ray]"'
      f" ({error})"
    ) from error


def elsewhere(
  work: Callable[[threading.Event, signals.Ending], T],
  config: Config,
  stop: threading.Event,
  ending: signals.Ending,
) -> T:
  """Runs the learner on a machine of a cluster, and again where that dies.

  Args:
    work: `(stop, ending)`, does the learner's work there until that is done or
      `stop` is set. It finds out whether it has begun before.
    config: what it needs of the cluster.
    stop: is set when it should end.
    ending: the signal that has set it.

  Returns:
    What the work returns.

  Raises:
    types.ConfigError: there is no cluster, or the work cannot be sent there.
    RuntimeError: it dies again and again.
    SystemExit: it should end, and has not begun.
    Exception: whatever the work raises.
  """
  cluster, deaths = Cluster(config), instances.Deaths("the learner")
  try:
    while True:
      try:
        return _elsewhere(work, config, stop, ending)
      except ray().exceptions.RayActorError as error:
        died = f"the learner died: {_in_short(error)}"
      seconds = deaths.add(died)
      print(died, file=sys.stderr, flush=True)
      if stop.wait(seconds):
        raise SystemExit(ending.status)
  finally:
    cluster.leave()


def _elsewhere(
  work: Callable[[threading.Event, signals.Ending], T],
  config: Config,
  stop: threading.Event,
  ending: signals.Ending,
) -> T:
  """Runs the learner on a machine of the cluster; see `elsewhere`.

  Raises:
    ray.exceptions.RayActorError: its machine or its process has died.
  """
  resources = {"CPU": 1, **config.learner_resources}
  # One method ends the other.
  there = _remote(_Learner, resources, max_concurrency=2).remote()
  try:
    began = there.begin.remote()
    try:
      result = there.run.remote(work)
    except TypeError as error:
      raise types.ConfigError(
        f"expected what can be pickled, to run elsewhere: {_in_short(error)}"
      ) from error
    while not ray().wait([result], timeout=_LOOK_SECONDS)[0]:
      if stop.is_set():
        if not ray().wait([began], timeout=0)[0]:
          raise SystemExit(ending.status)  # No machine has room.
        there.stop.remote(ending.status)
    return ray().get(result)
  except ray().exceptions.RayTaskError as error:
    raise error.cause from None
  finally:
    ray().kill(there)


def on_cluster(
  running: list[nodes.Node],
  learner: str,
  security: wire.Security,
  code: Mapping[str, Any],
) -> list[nodes.Node]:
  """Nodes that need not know where they will run.

  Args:
    running: the nodes; one that listens has an empty address.
    learner: its address.
    security: how they know each other.
    code: the learner's settings that name code; see `envs.code_in`.
  """
  listening = {x.role: x for x in running if not x.config.address}
  if not listening:
    return running
  (kind,) = {nodes.kind(role) for role in listening}
  node = nodes.Node(
    kind,
    _listen,
    Listening(learner, security, listening, code),
    count=sum(x.count for x in listening.values()),
    needs_jax=any(x.needs_jax for x in listening.values()),
  )
  return [node, *(x for x in running if x.role not in listening)]


def _listen(config: Listening, stop: threading.Event) -> None:
  """Says where it listens, and does the work that the learner gives it."""
  learner, _, port = config.address.rpartition(":")
  with socket.socket(type=socket.SOCK_DGRAM) as probe:
    # Sends nothing; says by which address this machine reaches the learner.
    probe.connect((learner, int(port)))
    host = probe.getsockname()[0]
  own = f"{host}:{_free_port(host)}"
  (kind,) = {nodes.kind(role) for role in config.nodes}

  def play(told: joining.Told, ended: threading.Event) -> None:
    node = config.nodes[told.role]
    node.run(dataclasses.replace(node.config, address=own), ended)

  joining.join(
    config.address,
    # The learner has sent this node itself, not only what it is called with.
    joining.Hello(kind, own, options=config.code),
    play,
    stop,
    security=config.security,
  )


def _connect(address: str) -> None:
  """Connects to a cluster.

  Raises:
    types.ConfigError: there is none.
  """
  try:
    host, separator, port = address.rpartition(":")
    if separator and "/" not in host:
      # Ray would try for ten minutes.
      socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    ray().init(address, logging_level=logging.WARNING)
  except _errors() as error:
    raise types.ConfigError(
      f"expected a Ray cluster at --ray-address {address}, found none that this"
      " process can join; `ray start --head` starts one, and where it asks for"
      " a token, this process needs that too, and RAY_AUTH_MODE=token"
      f" ({_in_short(error)})"
    ) from error


def _start_here() -> None:
  """Starts a cluster of this machine alone, which no other machine reaches.

  Raises:
    types.ConfigError: it does not start, or other machines would reach it.
  """
  # Ray would write one into a file that all users of the machine may read.
  os.environ.setdefault(_TOKEN, _own_token())
  constants = ray()._private.ray_constants
  before = constants.ENABLE_RAY_CLUSTER
  # Ray listens on all interfaces of Linux, whatever address it is given, and
  # on 127.0.0.1 where it starts no clusters, as on macOS.
  constants.ENABLE_RAY_CLUSTER = False
  try:
    ray().init(_LOCAL, logging_level=logging.WARNING)
  except _errors() as error:
    raise types.ConfigError(
      f"Ray does not start on this machine ({_in_short(error)})"
    ) from error
  finally:
    constants.ENABLE_RAY_CLUSTER = before
  address = ray().util.get_node_ip_address()
  if not ipaddress.ip_address(address).is_loopback:
    version = ray().__version__
    ray().shutdown()
    raise types.ConfigError(
      f"expected Ray to listen on 127.0.0.1 for --ray-address {_LOCAL}, found"
      f" {address} with Ray {version}; constraints.txt has a version that does"
    )


@functools.cache
def _own_token() -> str:
  """Returns this process's token: Ray reads one only once."""
  return secrets.token_hex(32)


def _forget_token() -> None:
  """Leaves programs that are started later none but the user's."""
  if os.environ.get(_TOKEN) == _own_token():
    del os.environ[_TOKEN]


def _errors() -> tuple[type[Exception], ...]:
  """Returns what `ray.init` raises."""
  return OSError, ValueError, RuntimeError, ray().exceptions.RayError


class _Learner:
  """The learner on a machine of the cluster: an actor, as Ray calls it."""

  def __init__(self) -> None:
    self._stop, self._ending = threading.Event(), signals.Ending()

  def begin(self) -> None:
    """Says that it has a machine."""

  def run(self, work: Callable[..., Any]) -> Any:
    """Does it; see `elsewhere`."""
    # Ray calls this on another thread than the main one.
    with signals.stopping(self._stop) as ending:
      ending.status, self._ending = self._ending.status, ending
      return work(self._stop, ending)

  def stop(self, status: int) -> None:
    """Ends it."""
    self._ending.status = status
    self._stop.set()


def _remote(work: Any, resources: Mapping[str, float], **options: int) -> Any:
  """A task or an actor, as Ray calls them.

  Args:
    work: what it does.
    resources: what it needs of its machine.
    **options: more of Ray's.
  """
  others = dict(resources)
  cpus, gpus = others.pop("CPU"), others.pop("GPU", 0)
  needs = {"num_cpus": cpus, "num_gpus": gpus, "resources": others}
  return ray().remote(**needs, **options)(work)


def _in_short(error: BaseException) -> str:
  """What an error says, without where it was raised."""
  lines = str(error).strip().splitlines() or [type(error).__name__]
  is_trace = isinstance(error, ray().exceptions.RayTaskError)
  return lines[-1 if is_trace else 0]


def _free_port(host: str) -> int:
  with socket.socket() as probe:
    probe.bind((host, 0))
    return probe.getsockname()[1]


def _play(role: str, message: bytes) -> tuple[int, str]:
  """Runs on a machine of the cluster; returns the exit status, and why."""
  process = instances.Process(role, message)
  while (status := process.status()) is None:
    time.sleep(_LOOK_SECONDS)
  return status, process.last_error()


class _Task:
  """A task that runs a node."""

  def __init__(self, play: Any, role: str, message: bytes) -> None:
    self._result = play.remote(role, message)
    self._error = ""
    self.name = f"{role} on Ray"

  def status(self) -> int | None:
    """See `instances.Running`."""
    done, _ = ray().wait([self._result], timeout=0)
    if not done:
      return None
    try:
      status, self._error = ray().get(self._result)
      return status
    except ray().exceptions.RayError as error:
      # Its machine or Ray's process has died: no fault of its own.
      self._error = _in_short(error)
      return -signal.SIGKILL

  def last_error(self) -> str:
    """See `instances.Running`."""
    return self._error

  def leave(self) -> None:
    """See `instances.Running`."""
    ray().cancel(self._result, force=True)

  def end(self, timeout_seconds: float) -> None:
    """See `instances.Running`."""
    ray().wait([self._result], timeout=timeout_seconds)
