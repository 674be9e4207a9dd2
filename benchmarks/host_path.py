"""Measures central inference without environments and without a network.

  python -m benchmarks.host_path --rows 128 --streams 16
  python -m benchmarks.host_path --rows 64 --streams 16 --frames
  python -m benchmarks.host_path --rows 128 --streams 16 --address 127.0.0.1:0

Actors send canned messages (`actors`), and programs that compute nothing
replace the device's programs. The rest is the host's work: the wire, the
checks, the counts, the batches, the calls of the device's programs, and the
bookkeeping of unrolls. The table has the learner process's CPU time for a
message, by thread.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import actors, served, watched
from seedx import types
from seedx.acting import inference, inference_server
from seedx.agents import vtrace
from seedx.app import devices as devices_lib
from seedx.runtime import counters, seeding
from seedx.wire import serving

_UNROLL_LENGTH = 20
_START_SECONDS = 120.0
_WARM_MESSAGES = 20


def main(argv: Sequence[str] | None = None) -> int:
  """Serves actors with canned messages, and prints a table of costs."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--rows", type=int, default=128, help="of a message")
  parser.add_argument("--streams", type=int, default=2)
  parser.add_argument("--processes", type=int, default=2, help="with actors")
  parser.add_argument("--frames", action="store_true", help="84 x 84 bytes")
  parser.add_argument("--address", default="", help="by default a unix socket")
  parser.add_argument("--seconds", type=float, default=5.0)
  options = parser.parse_args(argv)
  if options.streams % options.processes:
    raise types.ConfigError(
      "expected --streams to be a multiple of --processes"
    )
  devices_lib.compute_on_own_threads()
  acted = counters.ActingCounts()
  devices = without_device_work(options, acted)
  threads = {
    name: threading.Thread(target=run, name=name, daemon=True)
    for name, run in devices.threads.items()
  }
  with _serving(options, devices) as address:
    for thread in threads.values():
      thread.start()
    number = options.streams // options.processes
    with contextlib.ExitStack() as stack:
      for _ in range(options.processes):
        running = actors.running(address, number, options.rows, _kind(options))
        stack.enter_context(running)
      _print_costs(options, acted, devices)
    devices.close()
    for thread in threads.values():
      thread.join()
  return 0


def without_device_work(
  options: argparse.Namespace, acted: counters.ActingCounts
) -> inference.Devices:
  """Returns an inference device whose programs compute nothing."""
  spec = actors.spec(_kind(options))
  agent = vtrace.Config(hidden_sizes=(8,)).make(spec)
  devices = served.devices_of(agent, spec, options.streams, options.rows, acted)
  (device,) = devices.devices
  # These programs take the real arguments, and return the store or the share.
  device._act = jax.jit(_act_nothing, donate_argnums=0, keep_unused=True)
  share = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), device._shapes)
  called = jax.jit(lambda *arguments: (), keep_unused=True)

  def share_of(*arguments: Any) -> types.Unroll:
    called(*arguments)
    return share

  for name in ("_begin", "_add"):
    setattr(device, name, share_of)
  return devices


def _kind(options: argparse.Namespace) -> str:
  return actors.FRAMES if options.frames else actors.NUMBERS


def _act_nothing(store: Any, *rest: Any) -> tuple[Any, jax.Array]:
  *_, batch = rest
  return store, jnp.zeros(len(batch.slot), jnp.int32)


@contextlib.contextmanager
def _serving(
  options: argparse.Namespace, devices: inference.Devices
) -> Iterator[str]:
  """Serves the inference devices; yields the server's address."""
  with tempfile.TemporaryDirectory(prefix="seedx-") as folder:
    address = options.address or f"unix:{os.path.join(folder, 'server')}"
    server = serving.Server(address, options.streams)
    service = inference_server.InferenceServer(
      devices, seeding.Seeds(0), counters.ActingCounts()
    )
    service.bind(server)
    with server:
      yield server.address


def _print_costs(
  options: argparse.Namespace,
  acted: counters.ActingCounts,
  devices: inference.Devices,
) -> None:
  """Prints the CPU time of a message, in total and by thread."""
  end_seconds = time.monotonic() + _START_SECONDS
  while acted.env_steps < _WARM_MESSAGES * options.rows * options.streams:
    if time.monotonic() > end_seconds:
      raise types.ConfigError("the actors sent too few messages")
    time.sleep(0.05)
  devices.measure()
  steps, cpu, by_thread = acted.env_steps, time.process_time(), of_threads()
  start_seconds = time.monotonic()
  time.sleep(options.seconds)
  messages = (acted.env_steps - steps) / options.rows
  seconds = time.monotonic() - start_seconds
  used = time.process_time() - cpu
  rows = [["messages", f"{messages / seconds:,.0f}/s"]]
  batch = devices.measure()["inference_rows"]
  rows.append(["rows in a batch", f"{batch:,.0f}"])
  rows.append(["cores of this process", f"{used / seconds:.2f}"])
  rows.append(["CPU us/message", f"{1e6 * used / messages:.1f}"])
  for name, total in of_threads().items():
    micros = 1e6 * (total - by_thread.get(name, 0.0)) / messages
    if micros:
      rows.append([f"of the threads {name}", f"{micros:.1f}"])
  print(watched.table(["", "value"], rows))


def of_threads() -> dict[str, float]:
  """Returns the CPU seconds of threads, by their names without numbers."""
  seconds: collections.defaultdict[str, float] = collections.defaultdict(float)
  names = {x.native_id: x.name for x in threading.enumerate()}
  tick = 1 / os.sysconf("SC_CLK_TCK")
  for path in pathlib.Path("/proc/self/task").glob("*/stat"):
    number, _, rest = path.read_text().partition(" (")
    name, _, rest = rest.rpartition(") ")
    user, system = rest.split()[11:13]
    name = names.get(int(number), name).rstrip("-_0123456789")
    seconds[name] += tick * (int(user) + int(system))
  return seconds


if __name__ == "__main__":
  watched.end_on_signals()
  sys.exit(main())
