"""Starts learner hosts that make the same updates, by `jax.distributed`.

A host that dies ends the run: `--resume` on all hosts goes on from the newest
checkpoint. The others find out in one of three ways: the exchange of an update
fails; a host has given no sign for a while; or JAX ends this process, which it
does at once where host 0 has died.
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

# Where a host gave no sign for so long, the others end and say why. JAX has
# heartbeats too: it ends processes later, and by a crash.
_SILENT_SECONDS = 25.0
_JAX_SILENT_SECONDS = 100
_SIGN_SECONDS = 1.0
# For the checkpoint that is then saved.
_RESCUE_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_TELL_SECONDS = 60.0
_PROXY = "grpc_proxy"
# For what takes as long as it takes: a host that dies meanwhile is noticed.
_ANY_MILLISECONDS = 10**9
# Keys of the coordination service.
_SIGNS = "seedx/signs"
_LEFT = "seedx/left"
_RESUME = "the run ends; --resume on all hosts goes on from the last checkpoint"
_SUDDEN = (
  "expected a learner host that ends in order, found that this one was killed,"
  f" or that JAX ended it because host 0 has died; {_RESUME}"
)


class LostError(RuntimeError):
  """A learner host has died, or cannot be reached: the run ends."""


@contextlib.contextmanager
def joined(
  config: hosts.Config, stop: threading.Event, ending: signals.Ending
) -> Iterator[hosts.Hosts]:
  """Meets the other learner hosts, and leaves together with them.

  Args:
    config: how many hosts there are, and where.
    stop: set when this one wants to stop.
    ending: the exit status that it then wants.

  Yields:
    The hosts.

  Raises:
    types.ConfigError: they cannot meet so.
    LostError: one of them has died.
  """
  if config.hosts == 1:
    yield hosts.Hosts(stop=stop)
    return
  _start(config, stop, ending)
  own = hosts.Hosts(
    jax.process_index(),
    config.hosts,
    starved_seconds=config.starved_seconds,
    stop=stop,
    ending=lambda: ending.status,
    meet=_meet,
  )
  signs = _Signs(own)
  try:
    yield own
    signs.leave()
  except BaseException as error:
    # At its end, JAX would wait for hosts that do not end.
    atexit.register(_exit_at_once)
    if not isinstance(error, jax.errors.JaxRuntimeError):
      raise
    if "RESOURCE_EXHAUSTED" in str(error):
      raise
    raise LostError(
      f"expected {config.hosts} learner hosts, found that one has died or"
      f" cannot be reached ({str(error).splitlines()[0]:.200}); {_RESUME}"
    ) from error
  finally:
    signs.end()


def check_same(settings: Mapping[str, Any]) -> None:
  """Checks that all hosts have the same settings.

  Args:
    settings: of this host by their names, as JSON.

  Raises:
    types.ConfigError: they do not.
  """
  client, key = _client(), "seedx/settings"
  client.key_value_set(f"{key}/{jax.process_index()}", json.dumps(settings))
  for host in range(jax.process_count()):
    text = client.blocking_key_value_get(f"{key}/{host}", _ANY_MILLISECONDS)
    found = json.loads(text)
    for name, value in settings.items():
      if found.get(name) != value:
        raise types.ConfigError(
          f"expected the same {name} on all learner hosts, found {value!r} on"
          f" host {jax.process_index()} and {found.get(name)!r} on host {host}"
        )


def broadcast(content: bytes) -> bytes:
  """What host 0 has, on all hosts; all must call it at the same time.

  Args:
    content: of host 0; what others say does not count.
  """
  client, key = _client(), "seedx/size"
  is_first = jax.process_index() == 0
  if is_first:
    client.key_value_set(key, str(len(content)))
  size = int(client.blocking_key_value_get(key, _ANY_MILLISECONDS))
  _meet("broadcast")
  words = np.zeros(-(-size // 4), np.uint32)  # JAX sums these as they are.
  if is_first:
    words.view(np.uint8)[:size] = np.frombuffer(content, np.uint8)
  found = np.asarray(multihost_utils.broadcast_one_to_all(words))
  return found.astype(np.uint32).tobytes()[:size]


def _exit_at_once() -> None:
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError, ValueError):
      stream.flush()
  os._exit(1)


def _client() -> Any:
  return distributed.global_state.client


def _meet(name: str) -> None:
  """Waits for all hosts at a point with a name."""
  _client().wait_at_barrier(f"seedx/{name}", _ANY_MILLISECONDS)


def _start(
  config: hosts.Config, stop: threading.Event, ending: signals.Ending
) -> None:
  """Connects to all hosts; see `joined`."""
  # It would take SIGTERM for itself.
  jax.config.update("jax_enable_preemption_service", False)
  said: Mapping[str, Any] = {}
  if config.coordinator:
    said = {
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
          # Its own end of waiting is a crash.
          initialization_timeout=_ANY_MILLISECONDS // 1000,
          heartbeat_timeout_seconds=_JAX_SILENT_SECONDS,
          **said,
        )
      jax.devices()  # All hosts make their backends together.
    except Exception as failure:
      failures.append(failure)

  where = f" at {config.coordinator}" if config.coordinator else ""
  print(
    f"waiting for {config.hosts} learner hosts{where}",
    file=sys.stderr,
    flush=True,
  )
  connecting = threading.Thread(target=connect, daemon=True)
  connecting.start()
  _wait(connecting, config, where, stop, ending)
  if failures:
    raise types.ConfigError(
      f"cannot meet {config.hosts} learner hosts{where}"
      f" ({str(failures[0]).splitlines()[0]:.300})"
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
  """Waits for a thread that connects; exits where it takes too long."""
  began = told = time.monotonic()
  while connecting.is_alive():
    connecting.join(_LOOK_SECONDS)
    if stop.is_set():
      os._exit(ending.status or 1)  # Nothing else ends that wait.
    now = time.monotonic()
    if now > began + config.meet_seconds:
      print(
        f"error: expected {config.hosts} learner hosts{where} within"
        f" {config.meet_seconds:g} s, found fewer; start all of them, or"
        " give them more --meet-seconds",
        file=sys.stderr,
        flush=True,
      )
      os._exit(2)
    if now > told + _TELL_SECONDS:
      told = now
      print(
        f"still waiting for {config.hosts} learner hosts{where}, for"
        f" {now - began:.0f} s",
        file=sys.stderr,
        flush=True,
      )


@contextlib.contextmanager
def _no_proxy() -> Iterator[None]:
  """Has gRPC connect to the coordinator itself, not by an HTTP proxy."""
  before = os.environ.get(_PROXY)
  os.environ[_PROXY] = ""  # It comes before `https_proxy` and `http_proxy`.
  try:
    yield
  finally:
    os.environ.pop(_PROXY)
    if before is not None:
      os.environ[_PROXY] = before


class _Signs:
  """Tells the other hosts that this one lives, and watches theirs."""

  def __init__(self, own: hosts.Hosts) -> None:
    self._hosts, self._own, self._count = own, own.index, own.count
    self._ended = threading.Event()
    # JAX ends this process without a word of Python's where host 0 has died.
    self._teller = subprocess.Popen(
      ["sh", "-c", 'read -r said || printf "%s\\n" "$0" >&2', _SUDDEN],
      stdin=subprocess.PIPE,
      start_new_session=True,
    )
    self._watcher = threading.Thread(
      target=self._watch, name="hosts", daemon=True
    )
    self._watcher.start()

  def leave(self) -> None:
    """Waits until all hosts have done their work, and disconnects."""
    _client().key_value_set(f"{_LEFT}/{self._own}", "")
    while len(_client().key_value_dir_get(_LEFT)) < self._count:
      time.sleep(_LOOK_SECONDS)
    self.end()
    _meet("end")
    jax.distributed.shutdown()

  def end(self) -> None:
    """Gives no sign any more."""
    self._ended.set()
    self._watcher.join()
    self._hush()

  def _watch(self) -> None:
    now = time.monotonic()
    seen = {f"{_SIGNS}/{host}": ("", now) for host in range(self._count)}
    number = 0
    while not self._ended.wait(_SIGN_SECONDS):
      number += 1
      own = f"{_SIGNS}/{self._own}"
      try:
        _client().key_value_set(own, str(number), allow_overwrite=True)
        signs = dict(_client().key_value_dir_get(_SIGNS))
      except jax.errors.JaxRuntimeError:
        return  # Host 0 has died: JAX ends this process.
      now = time.monotonic()
      for key, sign in signs.items():
        if seen[key][0] != sign:
          seen[key] = sign, now
      for key, (_, last) in seen.items():
        if now > last + _SILENT_SECONDS:
          self._lose(key.rpartition("/")[2])

  def _lose(self, host: str) -> None:
    """Ends this process: its next update would wait for ever."""
    self._hush()
    print(
      f"expected {self._count} learner hosts, found no sign of host {host} for"
      f" {_SILENT_SECONDS:g} s; {_RESUME}",
      file=sys.stderr,
      flush=True,
    )
    rescue = threading.Thread(target=self._hosts.rescue, daemon=True)
    rescue.start()
    rescue.join(_RESCUE_SECONDS)
    os._exit(1)

  def _hush(self) -> None:
    """Ends the teller, which has nothing to tell."""
    with contextlib.suppress(BrokenPipeError, ValueError):
      self._teller.communicate(b"over\n")
