"""Nodes as tasks of a Ray cluster, restarted when they or their machines die.

A task runs a node in a process of its own, as the launcher `processes` does, on
any machine that has room. The learner stays where it was started,
or also runs on the cluster. Observations, unrolls and parameters do not go
through Ray.
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
from seedx.launch import instances, joining, topology
from seedx.launch.config import Config
from seedx.wire import relay

_LOOK_SECONDS = 0.2
_CONNECT_SECONDS = 10.0
# Time for a process to end before it is killed.
_END_SECONDS = 1.0
_TOKEN = "RAY_AUTH_TOKEN"
# The address that means a new cluster; see `Config.ray_address`.
_LOCAL = "local"

_MAX_FOLDER_BYTES = 40
# The role of a relay is this and the ID of its machine.
_RELAY = "relay-"

T = TypeVar("T")


class Cluster:
  """This process's connection to a cluster."""

  def __init__(self, config: Config) -> None:
    """Connects, unless this process is connected already.

    Raises:
      types.ConfigError: Ray is not installed, or there is no such cluster.
    """
    self._is_ours = not ray().is_initialized()
    if not self._is_ours:
      return
    # Ray would replace the handlers of the signals that end this process.
    handlers = {number: signal.getsignal(number) for number in signals.ENDING}
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
        for number, handler in handlers.items():
          signal.signal(number, handler)

  def free_address(self) -> str:
    """Returns a free address of this machine that the cluster can reach."""
    host = ray().util.get_node_ip_address()
    return f"{host}:{_free_port(host)}"

  def reached(self, address: str) -> str:
    """Returns the address by which the cluster reaches a local address.

    Raises:
      types.ConfigError: the local address is a unix socket or has no host.
    """
    if address.rpartition(":")[0] in ("", "unix"):
      raise types.ConfigError(
        f"expected an address HOST:PORT, or none, with --launcher ray, found"
        f" {address}"
      )
    return wire.reachable_address(address, by=ray().util.get_node_ip_address())

  def leave(self) -> None:
    """Disconnects, if this object has connected."""
    if self._is_ours:
      ray().shutdown()
      _forget_token()


class Tasks(instances.Instances):
  """The instances of some nodes as tasks of a Ray cluster.

  Each machine that the cluster has at the start also has a relay. Nodes that
  listen connect to the learner themselves, and so do nodes on other machines.
  """

  def __init__(
    self,
    all_nodes: list[topology.Node],
    config: Config,
    cluster: "Cluster",
    address: str,
    security: wire.Security,
  ) -> None:
    """Starts all instances of the nodes; `stop` leaves the cluster.

    Args:
      all_nodes: the nodes.
      config: the resources of an instance.
      cluster: the cluster.
      address: address of the learner.
      security: TLS and token of the run.

    Raises:
      types.ConfigError: a node cannot be sent to another process.
    """
    self._cluster = cluster
    resources = {"CPU": 1, **config.actor_resources}
    play = _remote(_play, resources, max_retries=0)
    play_there = _remote(_play, {"CPU": 0}, max_retries=0)
    on_machine = ray().util.scheduling_strategies.NodeAffinitySchedulingStrategy
    listen = {x.role for x in all_nodes if isinstance(x.config, Listening)}
    # Ray, too, writes to /tmp; another directory's path may be too long.
    name = f"/tmp/seedx-{secrets.token_hex(8)}"
    machines = [x["NodeID"] for x in ray().nodes() if x["Alive"]]
    paths = {x: f"{name}-{x:.8}/learner" for x in machines}

    def start(role: str, message: bytes) -> _Task:
      if role.startswith(_RELAY):
        there = on_machine(role.removeprefix(_RELAY), soft=False)
        play_here = play_there.options(scheduling_strategy=there)
        return _Task(play_here, role, message, {})
      return _Task(play, role, message, {} if role in listen else paths)

    super().__init__([], start)
    count = sum(x.count for x in all_nodes)
    for machine, path in paths.items():
      work = relay.Config(address, path, count, security)
      node = topology.Node(_RELAY + machine, relay.run, work)
      self.add([node], os.path.dirname(path))
    self.add(all_nodes)

  def stop(self, timeout_seconds: float = 2.0) -> None:
    """Ends all instances, and leaves the cluster."""
    super().stop(timeout_seconds)
    self._cluster.leave()


@dataclasses.dataclass(frozen=True)
class Listening:
  """The config of an instance that chooses its address on its machine.

  Attributes:
    address: the learner's address.
    security: authentication between the processes.
    nodes: nodes that the instance may become, by role.
    code: the learner's settings that name code to run.
  """

  address: str
  security: wire.Security
  nodes: Mapping[str, topology.Node]
  code: Mapping[str, Any]


def ray() -> Any:
  """Returns the module of Ray.

  Raises:
    types.ConfigError: Ray is not installed.
  """
  try:
    return importlib.import_module("ray")
  except ImportError as error:
    raise types.ConfigError(
      'Ray is not installed; install it with pip install "seedx[ray]"'
      f" ({error})"
    ) from error


def elsewhere(
  work: Callable[[threading.Event, signals.Ending], T],
  config: Config,
  stop: threading.Event,
  ending: signals.Ending,
) -> T:
  """Runs the learner on a cluster; if its machine dies, on another one.

  Args:
    work: function `(stop, ending)` that does the learner's work on the cluster
      until it is done or `stop` is set. A second call must resume the work.
    config: the cluster, and the resources of the learner.
    stop: event that ends the learner.
    ending: the signal that has set `stop`.

  Returns:
    The result of the work.

  Raises:
    types.ConfigError: there is no cluster, or the work cannot be sent there.
    RuntimeError: the learner has died too many times.
    SystemExit: `stop` was set before the work began, or before it began again.
    Exception: the error that `work` raised.
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
  """Runs the learner once; raises RayActorError if its machine has died."""
  resources = {"CPU": 1, **config.learner_resources}
  # Two threads, because `stop` is called while `run` is running.
  learner = _remote(_Learner, resources, max_concurrency=2).remote()
  try:
    began = learner.begin.remote()
    try:
      result = learner.run.remote(work)
    except TypeError as error:
      raise types.ConfigError(
        "expected a config that can be pickled, to run the learner on a"
        f" cluster: {_in_short(error)}"
      ) from error
    while not ray().wait([result], timeout=_LOOK_SECONDS)[0]:
      if stop.is_set():
        if not ray().wait([began], timeout=0)[0]:
          raise SystemExit(ending.status)  # The learner has no machine yet.
        learner.stop.remote(ending.status)
    return ray().get(result)
  except ray().exceptions.RayTaskError as error:
    raise error.cause from None
  finally:
    ray().kill(learner)


def on_cluster(
  all_nodes: list[topology.Node],
  learner: str,
  security: wire.Security,
  code: Mapping[str, Any],
) -> list[topology.Node]:
  """Returns nodes that choose their addresses on the machines where they run.

  Args:
    all_nodes: the nodes; those that listen have empty addresses, and roles of
      the same kind.
    learner: the learner's address.
    security: authentication between the processes.
    code: the learner's settings that name code; see `envs.code_in`.
  """
  listening = {x.role: x for x in all_nodes if not x.config.address}
  if not listening:
    return all_nodes
  (kind,) = {topology.kind(role) for role in listening}
  node = topology.Node(
    kind,
    _listen,
    Listening(learner, security, listening, code),
    count=sum(x.count for x in listening.values()),
    needs_jax=any(x.needs_jax for x in listening.values()),
    on_devices=any(x.on_devices for x in listening.values()),
  )
  return [node, *(x for x in all_nodes if x.role not in listening)]


def _listen(config: Listening, stop: threading.Event) -> None:
  """Joins with an address of this machine, and does the assigned work."""
  learner, _, port = config.address.rpartition(":")
  with socket.socket(type=socket.SOCK_DGRAM) as probe:
    # Sends nothing, but finds the local address that reaches the learner.
    probe.connect((learner, int(port)))
    host = probe.getsockname()[0]
  address = f"{host}:{_free_port(host)}"
  (kind,) = {topology.kind(role) for role in config.nodes}

  def play(assignment: joining.Welcome, ended: threading.Event) -> None:
    node = config.nodes[assignment.role]
    node.run(dataclasses.replace(node.config, address=address), ended)

  joining.join(
    config.address,
    # The settings in `code` are trusted, because the learner sent this code.
    joining.Hello(kind, address, options=config.code),
    play,
    stop,
    security=config.security,
  )


def _connect(address: str) -> None:
  """Connects to a cluster; raises types.ConfigError if there is none."""
  try:
    host, separator, port = address.rpartition(":")
    if separator and "/" not in host:
      # Fails fast: Ray would try for ten minutes.
      socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    ray().init(address, logging_level=logging.WARNING)
  except _errors() as error:
    raise types.ConfigError(
      f"expected a Ray cluster at --ray-address {address}, found none that this"
      " process can join; `ray start --head` starts one. If it requires a"
      " token, this process needs that token and RAY_AUTH_MODE=token"
      f" ({_in_short(error)})"
    ) from error


def _start_here() -> None:
  """Starts a cluster on 127.0.0.1; raises types.ConfigError if Ray fails."""
  # Ray would write its own token into a file that all users can read.
  os.environ.setdefault(_TOKEN, _process_token())
  constants = ray()._private.ray_constants
  enable_cluster = constants.ENABLE_RAY_CLUSTER
  # On Linux, Ray listens on all interfaces, whatever address it is given. If
  # clusters are disabled, as on macOS, Ray listens on 127.0.0.1.
  constants.ENABLE_RAY_CLUSTER = False
  try:
    ray().init(_LOCAL, logging_level=logging.WARNING, **_short_folder())
  except _errors() as error:
    raise types.ConfigError(
      f"Ray does not start on this machine ({_in_short(error)})"
    ) from error
  finally:
    constants.ENABLE_RAY_CLUSTER = enable_cluster
  address = ray().util.get_node_ip_address()
  if not ipaddress.ip_address(address).is_loopback:
    version = ray().__version__
    ray().shutdown()
    raise types.ConfigError(
      f"expected Ray to listen on 127.0.0.1 for --ray-address {_LOCAL}, found"
      f" {address} with Ray {version}; constraints.txt has a version that does"
    )


def _short_folder() -> dict[str, str]:
  """Returns Ray's option for a folder if that in $TMPDIR is too long.

  Ray adds 66 bytes to the path, and sockets' paths are limited to 107.
  """
  folder = os.environ.get("TMPDIR", "")
  is_long = len(os.fsencode(folder)) > _MAX_FOLDER_BYTES
  if "RAY_TMPDIR" in os.environ or not is_long:
    return {}
  return {"_temp_dir": "/tmp/ray"}  # Ray's default without TMPDIR.


@functools.cache
def _process_token() -> str:
  """Returns this process's token, always the same: Ray reads it only once."""
  return secrets.token_hex(32)


def _forget_token() -> None:
  """Hides this process's token, but not the user's, from later programs."""
  if os.environ.get(_TOKEN) == _process_token():
    del os.environ[_TOKEN]


def _errors() -> tuple[type[Exception], ...]:
  """Returns the types of exceptions that `ray.init` raises."""
  return OSError, ValueError, RuntimeError, ray().exceptions.RayError


class _Learner:
  """The learner on a machine of the cluster: Ray calls it an actor."""

  def __init__(self) -> None:
    self._stop, self._ending = threading.Event(), signals.Ending()

  def begin(self) -> None:
    """Returns when the learner has a machine."""

  def run(self, work: Callable[..., Any]) -> Any:
    """Runs `work`, which `stop` ends."""
    # Handles no signals, since Ray calls this outside of the main thread.
    with signals.stopping(self._stop) as ending:
      ending.status, self._ending = self._ending.status, ending
      return work(self._stop, ending)

  def stop(self, status: int) -> None:
    """Ends the work with an exit status."""
    self._ending.status = status
    self._stop.set()


def _remote(work: Any, resources: Mapping[str, float], **options: int) -> Any:
  others = dict(resources)
  cpus, gpus = others.pop("CPU"), others.pop("GPU", 0)
  needs = {"num_cpus": cpus, "num_gpus": gpus, "resources": others}
  return ray().remote(**needs, **options)(work)


def _in_short(error: BaseException) -> str:
  lines = str(error).strip().splitlines() or [type(error).__name__]
  is_trace = isinstance(error, ray().exceptions.RayTaskError)
  return lines[-1 if is_trace else 0]


def _free_port(host: str) -> int:
  with socket.socket() as probe:
    probe.bind((host, 0))
    return probe.getsockname()[1]


def _play(
  role: str, message: bytes, relays: Mapping[str, str]
) -> tuple[int, str]:
  """Runs a node on this machine; returns the exit status and the error.

  `relays` has the path of each relay by the ID of its machine.
  """
  path = relays.get(ray().get_runtime_context().get_node_id(), "")
  while path and not os.path.exists(path):
    time.sleep(_LOOK_SECONDS)
  process = instances.Process(role, message, path and f"unix:{path}")
  try:
    while (status := process.status()) is None:
      time.sleep(_LOOK_SECONDS)
    return status, process.last_error()
  finally:  # `_Task.leave` interrupts a relay's loop.
    process.leave()
    process.end(_END_SECONDS)


class _Task:
  """A task that runs a node, see `instances.Running`."""

  def __init__(
    self, play: Any, role: str, message: bytes, relays: Mapping[str, str]
  ) -> None:
    self._result = play.remote(role, message, relays)
    self._error = ""
    self.name = f"{role} on Ray"

  def status(self) -> int | None:
    done, _ = ray().wait([self._result], timeout=0)
    if not done:
      return None
    try:
      status, self._error = ray().get(self._result)
      return status
    except ray().exceptions.TaskUnschedulableError:
      return 0  # The machine of this relay has left the cluster.
    except ray().exceptions.RayError as error:
      # The machine or Ray's process has died, which is not the node's fault.
      self._error = _in_short(error)
      return -signal.SIGKILL

  def last_error(self) -> str:
    return self._error

  def leave(self) -> None:
    # A relay has a socket to remove. Ray aborts this process if a task that
    # is ending is cancelled again, by force.
    ray().cancel(self._result, force=not self.name.startswith(_RELAY))

  def end(self, timeout_seconds: float) -> None:
    ray().wait([self._result], timeout=timeout_seconds)
