"""Measures what one learner carries; computes the limits of many hosts.

  python -m benchmarks.scale > scale.md

The program prints the tables of docs/scale.md: costs by number of thin actors,
whose server is also killed and replaced; costs by rows of a message; bytes on
the wire; costs by number of parameters; and the limits of 8 to 512 hosts, which
`benchmarks.limits` computes from the other tables. It takes five minutes on
two idle cores. `--only streams,rows` prints only these two tables.
"""

import argparse
import contextlib
import datetime
import functools
import os
import pathlib
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import actors, limits, served, unrolls
from benchmarks.speed import figures, work
from seedx import wire
from seedx.acting import parameters
from seedx.agents import base
from seedx.app import devices
from seedx.learning import experience, updates
from seedx.learning import learner as learner_lib
from seedx.pipelines.gorila import parameter_server

_UNIX, _TCP, _BUNDLES = "unix socket", "TCP", "TCP, bundles"
_STREAMS = {
  _UNIX: (2, 16, 64, 128, 256, 512, 1024),
  _TCP: (2, 64, 256, 1024),
  _BUNDLES: (2, 64, 256, 1024),
}
# Number of actors of one machine, whose calls are in one stream of bundles.
_MACHINE_ACTORS = 128
_STREAM_ROWS = 16
# For each line of the table: transport, kind of observations, rows.
_ROWS = (
  *((_UNIX, actors.NUMBERS, x) for x in (1, 4, 16, 64, 256, 1024)),
  (_TCP, actors.NUMBERS, 64),
  (_UNIX, actors.FRAMES, 64),
  (_TCP, actors.FRAMES, 64),
)
_ROWS_STREAMS = 16
# Units of each of two layers, for about 1e4, 1e5, 1e6 and 1e7 parameters.
_UNITS = (96, 312, 996, 3158)
_PUBLISH = "publish a version"
_FETCH_UNIX, _FETCH_TCP = f"fetch, {_UNIX}", f"fetch, {_TCP}"
_GORILA_UNIX = f"Gorila's push and pull, {_UNIX}"
_GORILA, _A3C = f"Gorila's push and pull, {_TCP}", "A3C's push and pull"
_WARM_CALLS = 3
_HOSTS = (8, 16, 32, 64, 128, 256, 512)
_PATIENCE_SECONDS = 120.0
_ANY_PORT = "127.0.0.1:0"
PARTS = ("streams", "rows", "bytes", "parameters", "hosts")


class Serving(NamedTuple):
  """The measurement of a server that acts for thin actors.

  Attributes:
    load: load of the server's process.
    connect_seconds: seconds until all actors had received actions.
    back_seconds: seconds from the server's death until all actors had received
      actions of its replacement; None if it was not killed.
    client_cores: mean number of cores that the actors' processes kept busy.
    relay_cores: the same of the processes that send bundles.
  """

  load: served.Load
  connect_seconds: float
  back_seconds: float | None
  client_cores: float
  relay_cores: float

  @property
  def rate(self) -> float:
    """Messages per second."""
    return self.load.messages / self.load.seconds

  @property
  def cost(self) -> float:
    """CPU seconds of the server's process for a message."""
    return self.load.cpu_seconds / max(1.0, self.load.messages)

  @property
  def cores(self) -> float:
    """Mean number of cores that the server's process kept busy."""
    return self.load.cpu_seconds / self.load.seconds


class Exchange(NamedTuple):
  """Median seconds of a request with its reply, and mean CPU seconds."""

  seconds: float
  server_cpu: float
  client_cpu: float


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the tables that the options name."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--only", default=",".join(PARTS))
  parser.add_argument("--seconds", type=float, default=2.0)
  options = parser.parse_args(argv)
  names = options.only.split(",")
  if unknown := set(names) - set(PARTS):
    parser.error(f"expected --only of {PARTS}, found {sorted(unknown)}")
  devices.compute_on_own_threads()
  print(_machine(), flush=True)
  start_seconds = time.monotonic()
  results: dict[str, Any] = {}
  parts: dict[str, Callable[[float], Any]] = {
    "streams": streams,
    "rows": rows,
    "bytes": wire_bytes,
    "parameters": numbers_of_parameters,
    "hosts": functools.partial(hosts, results),
  }
  for name in PARTS:
    if name in names:
      results[name] = parts[name](options.seconds)
  print(f"\nMeasured in {time.monotonic() - start_seconds:.0f} seconds.")
  return 0


def streams(seconds: float) -> dict[tuple[str, int], Serving]:
  """Prints the table of streams, and returns its lines."""
  _head(
    f"Streams that each send messages of {_STREAM_ROWS} rows",
    "over|streams|messages/s|CPU us a message|cores of the learner|of the"
    " actors|of the relays|all connected after s|all back after s|threads|MB",
  )
  lines = {}
  for transport, numbers in _STREAMS.items():
    for number in numbers:
      line = serving(
        transport, number, _STREAM_ROWS, actors.NUMBERS, seconds, restart=True
      )
      lines[transport, number] = line
      _line(
        transport,
        f"{number:,}",
        f"{line.rate:,.0f}",
        f"{1e6 * line.cost:.0f}",
        f"{line.cores:.2f}",
        f"{line.client_cores:.2f}",
        f"{line.relay_cores:.2f}",
        f"{line.connect_seconds:.1f}",
        f"{line.back_seconds:.1f}",
        line.load.threads,
        f"{line.load.memory_mb:.0f}",
      )
  return lines


def rows(seconds: float) -> dict[tuple[str, str, int], Serving]:
  """Prints the table of rows of a message, and returns its lines."""
  _head(
    f"Rows of a message; {_ROWS_STREAMS} streams",
    "over|observations|rows|messages/s|rows/s|CPU us a message|us a row|cores"
    " of the learner",
  )
  lines = {}
  for transport, kind, number in _ROWS:
    line = serving(transport, _ROWS_STREAMS, number, kind, seconds)
    lines[transport, kind, number] = line
    names = {actors.NUMBERS: "4 numbers", actors.FRAMES: "84 x 84 bytes"}
    _line(
      transport,
      names[kind],
      f"{number:,}",
      f"{line.rate:,.0f}",
      f"{number * line.rate:,.0f}",
      f"{1e6 * line.cost:.0f}",
      f"{1e6 * line.cost / number:.2f}",
      f"{line.cores:.2f}",
    )
  return lines


def serving(
  transport: str,
  number: int,
  num_rows: int,
  kind: str,
  seconds: float,
  restart: bool = False,
) -> Serving:
  """Measures a server whose actors send as fast as it replies.

  Args:
    transport: "unix socket", "TCP", or "TCP, bundles" for up to 128 actors in
      each stream.
    number: number of actors, each with a stream.
    num_rows: number of environments of each actor.
    kind: kind of observations, see `actors.spec`.
    seconds: seconds to measure.
    restart: whether another server, which has compiled its programs before,
      replaces this one at the end.
  """
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="seedx-"))
    first, *spare = [
      stack.enter_context(served.Process(served.act, number, num_rows, kind))
      for _ in range(1 + restart)
    ]
    for server in (first, *spare):
      server.receive()
    address = first.ask(f"unix:{folder}/s" if transport == _UNIX else _ANY_PORT)
    shares, addresses = [number - number // 2, number // 2], [address] * 2
    relays = []
    if transport == _BUNDLES:
      machines = max(1, number // _MACHINE_ACTORS)
      shares = [number // machines] * machines
      paths = [f"{folder}/relay-{k}" for k in range(machines)]
      addresses = [f"unix:{path}" for path in paths]
      relays = [
        stack.enter_context(
          served.Process(served.relay_calls, address, path, number)
        )
        for path in paths
      ]
      for relay in relays:
        relay.receive()
    clients = [
      stack.enter_context(actors.running(*each, num_rows, kind))
      for each in zip(addresses, shares, strict=True)
    ]
    begin = min(_time_from(client) for client in clients)
    connected = max(_time_from(client) for client in clients)
    first.ask(seconds / 2)  # Warms up.
    start_cpu = sum(_cpu_seconds(x.pid) for x in clients)
    start_relays = sum(relay.ask("cpu") for relay in relays)
    load = first.ask(seconds)
    client_cpu = sum(_cpu_seconds(x.pid) for x in clients) - start_cpu
    relay_cpu = sum(relay.ask("cpu") for relay in relays) - start_relays
    back = None
    if spare:
      killed = time.monotonic()
      first.kill()
      spare[0].ask(address)
      back = max(_time_from(client) for client in clients) - killed
  cores = client_cpu / load.seconds, relay_cpu / load.seconds
  return Serving(load, connected - begin, back, *cores)


def _time_from(client: subprocess.Popen[bytes]) -> float:
  """Reads one time, as `benchmarks.actors` prints it."""
  assert client.stdout is not None
  if not select.select([client.stdout], [], [], _PATIENCE_SECONDS)[0]:
    raise RuntimeError(
      f"not all actors were connected after {_PATIENCE_SECONDS:g} s"
    )
  line = client.stdout.readline()
  if not line:
    raise RuntimeError("the actors' process has ended")
  return float(line)


def _cpu_seconds(pid: int) -> float:
  """Returns the CPU seconds of another process."""
  text = pathlib.Path(f"/proc/{pid}/stat").read_text()
  fields = text.rpartition(")")[2].split()
  return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wire_bytes(seconds: float) -> dict[str, unrolls.Traffic]:
  """Prints the table of bytes on the wire, and returns its lines."""
  _head(
    "Bytes on the wire for an env step, at the presets",
    "experiment|parameters|env steps of a message|bytes to the learner|bytes"
    " back|of these, parameters|CPU us to check and store a"
    " message of unrolls",
  )
  lines = {}
  for env in ("CartPole-v1", "Pong-v5"):
    for name in ("seed_vtrace", "impala", "apex_dqn", "gorila_dqn", "a3c"):
      words = f"{name} --env {env}"
      line = unrolls.traffic(words, seconds)
      lines[words] = line
      _line(
        f"`{words}`",
        f"{line.parameters:,}",
        f"{line.message_steps:,.0f}",
        f"{line.to_learner:,.1f}",
        f"{line.back:,.1f}",
        f"{line.of_parameters:,.1f}",
        f"{1e6 * line.cost:,.0f}" if line.cost else "-",
      )
  return lines


def numbers_of_parameters(seconds: float) -> dict[int, dict[str, Exchange]]:
  """Prints the table of parameters; returns costs by number of parameters."""
  names = (_PUBLISH, _FETCH_UNIX, _GORILA_UNIX, _FETCH_TCP, _GORILA, _A3C)
  _head(
    "Milliseconds of an exchange of parameters: time; CPU of the process that"
    " holds them; CPU of the other process",
    "parameters|" + "|".join(names),
  )
  lines = {}
  for units in _UNITS:
    number, costs = _costs_of(units, seconds)
    lines[number] = dict(zip(names, costs, strict=True))
    cells = ["; ".join(f"{1e3 * x:.3g}" for x in cost) for cost in costs]
    _line(f"{number:,}", *cells)
  return lines


def _costs_of(units: int, seconds: float) -> tuple[int, list[Exchange]]:
  """Measures exchanges of a network's parameters."""
  agent, acting, params = served.agent_of(units)
  key, device = jax.random.key(0), jax.local_devices()[0]
  learner = learner_lib.Learner(
    agent, learner_lib.Config(), experience.Once(), key
  )
  costs = [_timed(lambda: learner.publish(wait=True), seconds)]
  with tempfile.TemporaryDirectory(prefix="seedx-") as folder:
    for address in (f"unix:{folder}/s", _ANY_PORT):
      with contextlib.ExitStack() as stack:
        server = stack.enter_context(
          served.Process(served.serve_parameters, address, units)
        )
        address = server.receive()
        client = stack.enter_context(wire.Client(address))
        fetched = parameters.Copy(client, acting, device)
        costs.append(_timed(fetched.newest, seconds, server))
        fetched.close()
        shards = parameter_server.Client(params, num_shards=1)
        shards.connect([address])
        push = functools.partial(shards.push, np.full_like(params, 1e-3))
        costs.append(_timed(push, seconds, server))
        shards.close()
  state = jax.jit(agent.init)(key)
  apply = jax.jit(functools.partial(updates.apply_gradients, agent))
  pull = jax.jit(agent.acting)
  gradients = base.Gradients(jax.tree.map(jax.numpy.ones_like, state.params))

  def push_and_pull() -> None:
    nonlocal state
    state, _ = jax.block_until_ready(apply(state, gradients, 1.0))
    pull(state)

  return len(params), [*costs, _timed(push_and_pull, seconds)]


def _timed(
  call: Callable[[], object],
  seconds: float,
  server: served.Process | None = None,
) -> Exchange:
  """Measures a call and, if it uses a server, that server's CPU time."""
  server_cpu = (lambda: server.ask("cpu")) if server else lambda: 0.0
  for _ in range(_WARM_CALLS):
    call()
  start_server, start_cpu = server_cpu(), time.process_time()
  times: list[float] = []
  end_seconds = time.monotonic() + seconds
  while len(times) < _WARM_CALLS or time.monotonic() < end_seconds:
    start_seconds = time.monotonic()
    call()
    times.append(time.monotonic() - start_seconds)
  cpu, calls = time.process_time() - start_cpu, len(times)
  of_server = (server_cpu() - start_server) / calls
  if server is None:  # The same process holds and uses the parameters.
    return Exchange(statistics.median(times), cpu / calls, 0.0)
  return Exchange(statistics.median(times), of_server, cpu / calls)


def hosts(results: Mapping[str, Any], seconds: float) -> None:
  """Prints the table of the computed limits of 8 to 512 hosts."""
  missing = {"streams", "rows", "bytes", "parameters"} - results.keys()
  if missing:
    print(f"\nThe limits need the tables {', '.join(sorted(missing))}, too.")
    return
  impala = work.measure("impala --env Pong-v5", "", seconds)
  gorila = work.measure("gorila_dqn --env Pong-v5", "", seconds)
  works = _works(results, impala, gorila)
  print(f"\nMeasured work of an env step of Pong:\n\n```\n{works}\n```")
  rates = limits.Rates()
  pipelines: dict[str, Callable[[int], limits.Limits]] = {
    "`seed`, one learner": lambda x: limits.seed(works["seed"], rates, x),
    "`seed`, more learner hosts": lambda x: limits.seed_together(
      works["seed"], rates, x
    ),
    "`impala`": lambda x: limits.impala(works["impala"], rates, x),
    "`apex`": lambda x: limits.impala(works["apex"], rates, x),
    **{
      f"`gorila`, {shards} shards": functools.partial(
        limits.gorila, works["gorila"], rates, shards=shards
      )
      for shards in (2, 32)
    },
    "`sync` (PPO)": lambda x: limits.sync(works["sync"], rates, x),
    "`anakin` (PPO on CartPole), if it had hosts": lambda x: limits.anakin(
      works["anakin"], rates, x
    ),
  }
  print("\n**Limits of hosts, in env steps/s of Pong**\n")
  print(limits.table(pipelines, _HOSTS))
  numbers = [f"{limits.learners(works['seed'], rates, x):,}" for x in _HOSTS]
  print(f"\nNumbers of learner hosts in the second line: {', '.join(numbers)}.")


def _works(
  results: Mapping[str, Any], impala: work.OwnWork, gorila: work.OwnWork
) -> dict[str, limits.Work]:
  """Returns the work of each pipeline, from the measured tables."""
  rows_, traffic = results["rows"], results["bytes"]
  frames = rows_[_TCP, actors.FRAMES, 64]
  numbers = rows_[_TCP, actors.NUMBERS, 64]
  # CPU seconds that each byte of a message adds.
  byte = max(0.0, frames.cost - numbers.cost) / (64 * (84 * 84 - 16))
  message = results["streams"][_TCP, 256].cost
  (small, low), *_, (large, high) = results["parameters"].items()

  def by_size(name: str, size: float) -> tuple[float, float]:
    """Returns a server's CPU seconds for 0 and for `size` parameters."""
    costs = low[name].server_cpu, high[name].server_cpu
    each = (costs[1] - costs[0]) / (large - small)
    alone = max(0.0, costs[0] - each * small)
    return alone, alone + each * size

  def of_unrolls(name: str) -> limits.Work:
    sent: unrolls.Traffic = traffic[f"{name} --env Pong-v5"]
    wire_cost = message + byte * sent.to_learner * sent.message_steps
    return limits.Work(
      environment=impala.environments,
      act=impala.acting,
      message=wire_cost + sent.cost,
      message_steps=sent.message_steps,
      step_bytes=sent.to_learner,
      fetch=by_size(_FETCH_TCP, sent.parameters)[1],
      fetch_steps=sent.fetch_steps,
      parameters=sent.parameters,
      times_learned=sent.times_learned,
    )

  seed: unrolls.Traffic = traffic["seed_vtrace --env Pong-v5"]
  pushed: unrolls.Traffic = traffic["gorila_dqn --env Pong-v5"]
  alone, push = by_size(_GORILA, pushed.parameters)
  return {
    "seed": limits.Work(
      environment=impala.environments,
      message=numbers.cost + byte * 64 * seed.to_learner,
      message_steps=64,
      step_bytes=seed.to_learner,
      parameters=seed.parameters,
      batch_steps=seed.batch_steps,
    ),
    "impala": of_unrolls("impala"),
    "apex": of_unrolls("apex_dqn"),
    "gorila": limits.Work(
      environment=gorila.environments,
      act=gorila.acting,
      learn=gorila.learning,
      parameters=pushed.parameters,
      push=push,
      push_alone=alone,
      gradient_steps=pushed.fetch_steps,
    ),
    "sync": unrolls.of_ppo("ppo --env Pong-v5", impala.environments),
    "anakin": unrolls.of_ppo(
      "anakin_ppo --env seedx:CartPole-v1 --num-envs 32768", 0.0
    ),
  }


def _machine() -> str:
  commit = subprocess.run(
    ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
  ).stdout.strip()
  about = figures.machine()
  versions = about["versions"]
  return (
    f"{datetime.date.today()}, commit {commit}, {about['cpus']} CPU cores"
    f" ({about['processor']}), {about['memory_gib']} GiB, Python"
    f" {about['python']}, JAX {versions['jax']}, gRPC {versions['grpcio']}"
  )


def _head(title: str, columns: str) -> None:
  names = columns.split("|")
  print(f"\n**{title}**\n\n| {' | '.join(names)} |")
  print("|---" * len(names) + "|", flush=True)


def _line(*cells: object) -> None:
  print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
  sys.exit(main())
