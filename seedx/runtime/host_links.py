"""The connection of learner hosts that make the same updates.

It uses `jax.distributed`. When a host dies, the run ends, and `--resume` on all
hosts continues it from the newest checkpoint. The other hosts notice the death
in one of three ways: the exchange of an update fails; the host has given no
sign of life for a while; or JAX ends their processes, at once, because host 0
has died.
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # The coordination service has no public API.
from jax.experimental import multihost_utils

from seedx import signals, types
from seedx.runtime import hosts

# Seconds without a sign of life from a host, after which the other hosts end
# with a message. JAX's own heartbeats would end these hosts later, by a crash.
_SILENT_SECONDS = 25.0
_JAX_SILENT_SECONDS = 100
_SIGN_SECONDS = 1.0
# Seconds for a host to save a checkpoint after another host has died.
_RESCUE_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_REMIND_SECONDS = 60.0
_PROXY = "grpc_proxy"
# In effect no limit: `_Signs` ends a wait for a host that has died.
_ANY_MILLISECONDS = 10**9
# Keys of the coordination service.
_SIGNS = "seedx/signs"
_LEFT = "seedx/left"
_RESUME = (
  "the run ends; --resume on all hosts continues from the last checkpoint"
)
_SUDDEN = (
  "this learner host was killed, or JAX ended it because host 0 has died;"
  f" {_RESUME}"
)


class LostError(RuntimeError):
  """A learner host has died or cannot be reached, so that the run ends."""


@contextlib.contextmanager
def joined(
  config: hosts.Config, stop: threading.Event, ending: signals.Ending
) -> Iterator[hosts.Hosts]:
  """Connects to the other learner hosts, and leaves together with them.

  Args:
    config: the number of hosts, and the coordinator's address.
    stop: event that is set when this host wants to stop.
    ending: the exit status with which this host wants to stop.

  Raises:
    types.ConfigError: the hosts cannot connect with this config.
    LostError: a host has died.
  """
  if config.hosts == 1:
    yield hosts.Hosts(stop=stop)
    return
  _start(config, stop, ending)
  all_hosts = hosts.Hosts(
    jax.process_index(),
    config.hosts,
    starved_seconds=config.starved_seconds,
    stop=stop,
    ending=lambda: ending.status,
    meet=_meet,
  )
  signs = _Signs(all_hosts)
  try:
    yield all_hosts
    signs.leave()
  except BaseException as error:
    # At exit, JAX would wait for hosts that do not end.
    atexit.register(_exit_at_once)
    if not isinstance(error, jax.errors.JaxRuntimeError):
      raise
    if "RESOURCE_EXHAUSTED" in str(error):
      raise
    raise LostError(
      "a learner host has died or cannot be reached"
      f" ({str(error).splitlines()[0]:.200}); {_RESUME}"
    ) from error
  finally:
    signs.end()


def check_same(settings: Mapping[str, Any]) -> None:
  """Compares the settings of all hosts; each host must call it exactly once.

  Raises:
    types.ConfigError: a setting differs.
  """
  client, key = _client(), "seedx/settings"
  client.key_value_set(f"{key}/{jax.process_index()}", json.dumps(settings))
  for host in range(jax.process_count()):
    text = client.blocking_key_value_get(f"{key}/{host}", _ANY_MILLISECONDS)
    others = json.loads(text)
    for name, value in settings.items():
      if others.get(name) != value:
        raise types.ConfigError(
          f"expected the same {name} on all learner hosts, found {value!r} on"
          f" host {jax.process_index()} and {others.get(name)!r} on host {host}"
        )


def broadcast(content: bytes) -> bytes:
  """Returns host 0's content; each host must call it exactly once."""
  client, key = _client(), "seedx/size"
  is_first = jax.process_index() == 0
  if is_first:
    client.key_value_set(key, str(len(content)))
  size = int(client.blocking_key_value_get(key, _ANY_MILLISECONDS))
  _meet("broadcast")
  # JAX broadcasts by a sum over hosts, which is exact for integers.
  words = np.zeros(-(-size // 4), np.uint32)
  if is_first:
    words.view(np.uint8)[:size] = np.frombuffer(content, np.uint8)
  received = np.asarray(multihost_utils.broadcast_one_to_all(words))
  return received.astype(np.uint32).tobytes()[:size]


def _exit_at_once() -> None:
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError, ValueError):
      stream.flush()
  os._exit(1)


def _client() -> Any:
  return distributed.global_state.client


def _meet(name: str) -> None:
  _client().wait_at_barrier(f"seedx/{name}", _ANY_MILLISECONDS)


def _start(
  config: hosts.Config, stop: threading.Event, ending: signals.Ending
) -> None:
  # JAX's preemption service would handle SIGTERM itself.
  jax.config.update("jax_enable_preemption_service", False)
  options: Mapping[str, Any] = {}
  if config.coordinator:
    options = {
      "coordinator_address": config.coordinator,
      "num_processes": config.hosts,
      "process_id": config.host_index,
      "cluster_detection_method": "deactivate",
    }
  failures: list[Exception] = []

  def connect() -> None:
    try:
      with _no_proxy():
        jax.distributed.initialize(
          # `_wait` limits the time; JAX's own timeout would crash the process.
          initialization_timeout=_ANY_MILLISECONDS // 1000,
          heartbeat_timeout_seconds=_JAX_SILENT_SECONDS,
          **options,
        )
      jax.devices()  # Makes the backend, with all other hosts.
    except Exception as failure:
      failures.append(failure)

  where = f" at {config.coordinator}" if config.coordinator else ""
  signals.print_at_once(f"waiting for {config.hosts} learner hosts{where}\n")
  connecting = threading.Thread(target=connect, daemon=True)
  connecting.start()
  _wait(connecting, config, where, stop, ending)
  if failures:
    reason = (str(failures[0]).splitlines() or [type(failures[0]).__name__])[0]
    remedy = (
      ""
      if config.coordinator
      else "; JAX found no cluster here that has the coordinator, so add"
      " --coordinator HOST:PORT, an address of host 0, and --host-index, from 0"
      f" to {config.hosts - 1}, on each host"
    )
    raise types.ConfigError(
      f"cannot connect {config.hosts} learner hosts{where}"
      f" ({reason:.300}){remedy}"
    ) from failures[0]
  if jax.process_count() != config.hosts:
    raise types.ConfigError(
      f"expected {config.hosts} learner hosts, found {jax.process_count()}"
    )


def _wait(
  connecting: threading.Thread,
  config: hosts.Config,
  where: str,
  stop: threading.Event,
  ending: signals.Ending,
) -> None:
  """Waits for the thread that connects; exits on `stop` or after a limit."""
  began = reminded = time.monotonic()
  while connecting.is_alive():
    connecting.join(_LOOK_SECONDS)
    if stop.is_set():
      os._exit(ending.status or 1)  # Nothing else ends JAX's wait.
    now = time.monotonic()
    if now > began + config.meet_seconds:
      signals.print_at_once(
        f"error: {config.hosts} learner hosts{where} have not all connected"
        f" within {config.meet_seconds:g} s; start all of them, let each reach"
        " the --coordinator, or allow more --meet-seconds\n"
      )
      os._exit(2)
    if now > reminded + _REMIND_SECONDS:
      reminded = now
      signals.print_at_once(
        f"still waiting for {config.hosts} learner hosts{where}, for"
        f" {now - began:.0f} s\n"
      )


@contextlib.contextmanager
def _no_proxy() -> Iterator[None]:
  """Lets gRPC connect to the coordinator directly, without an HTTP proxy."""
  proxy = os.environ.get(_PROXY)
  os.environ[_PROXY] = ""  # Overrides `https_proxy` and `http_proxy`.
  try:
    yield
  finally:
    os.environ.pop(_PROXY)
    if proxy is not None:
      os.environ[_PROXY] = proxy


class _Signs:
  """The signs of life that hosts send each other."""

  def __init__(self, all_hosts: hosts.Hosts) -> None:
    self._hosts = all_hosts
    self._ended = threading.Event()
    # When host 0 has died, JAX ends this process without a chance for Python to
    # print why. A shell outlives this process and prints the reason.
    self._reporter = subprocess.Popen(
      ["sh", "-c", 'read -r over || printf "%s\\n" "$0" >&2', _SUDDEN],
      stdin=subprocess.PIPE,
      start_new_session=True,
    )
    self._watcher = threading.Thread(
      target=self._watch, name="hosts", daemon=True
    )
    self._watcher.start()

  def leave(self) -> None:
    """Waits until all hosts have done their work, then disconnects."""
    _client().key_value_set(f"{_LEFT}/{self._hosts.index}", "")
    while len(_client().key_value_dir_get(_LEFT)) < self._hosts.count:
      time.sleep(_LOOK_SECONDS)
    self.end()
    _meet("end")
    jax.distributed.shutdown()

  def end(self) -> None:
    self._ended.set()
    self._watcher.join()
    self._end_reporter()

  def _watch(self) -> None:
    now = time.monotonic()
    seen = {f"{_SIGNS}/{host}": ("", now) for host in range(self._hosts.count)}
    number = 0
    while not self._ended.wait(_SIGN_SECONDS):
      number += 1
      key = f"{_SIGNS}/{self._hosts.index}"
      try:
        _client().key_value_set(key, str(number), allow_overwrite=True)
        signs = dict(_client().key_value_dir_get(_SIGNS))
      except jax.errors.JaxRuntimeError:
        return  # Host 0 has died, and JAX ends this process.
      now = time.monotonic()
      for key, sign in signs.items():
        if seen[key][0] != sign:
          seen[key] = sign, now
      for key, (_, last) in seen.items():
        if now > last + _SILENT_SECONDS:
          self._lose(key.rpartition("/")[2])

  def _lose(self, host: str) -> None:
    """Ends this process, whose next update would wait forever."""
    self._end_reporter()
    signals.print_at_once(
      f"learner host {host} has given no sign of life for"
      f" {_SILENT_SECONDS:g} s; {_RESUME}\n"
    )
    rescue = threading.Thread(target=self._hosts.rescue, daemon=True)
    rescue.start()
    rescue.join(_RESCUE_SECONDS)
    os._exit(1)

  def _end_reporter(self) -> None:
    with contextlib.suppress(BrokenPipeError, ValueError):
      self._reporter.communicate(b"over\n")
