"""Measures pipelines on a simulated host with many cores.

  python -m benchmarks.simulated_host
  python -m benchmarks.simulated_host --only "seed, 14 x 16"

The environments sleep for the time of a step instead of computing
(`benchmarks.sleeping`), and the network is so small that acting costs next to
nothing. What is left is the CPU time of the actors' and the learner's programs,
which share the cores of this machine. Each line of the tables is a run;
`--runs` repeats each. The second number of a line is the rate as a share of
what the sleeping environments allow.
"""

import argparse
import collections
import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks import host_path, sleeping, watched
from seedx import app, metrics, types
from seedx.acting import protocol, thin_actor
from seedx.agents import vtrace
from seedx.app import devices
from seedx.launch import topology
from seedx.learning import learner
from seedx.metrics import cpu_time
from seedx.on_cpu import allocator
from seedx.pipelines import impala, seed, sync
from seedx.runtime import process

_UNROLL_LENGTH = 32
_BATCH_SIZE = 32
_START_SECONDS = 120.0
_POOL = "seedx.pipelines.pool"
_ACTOR, _INFERENCE = "actor", "inference"


class Tiny(nn.Module):
  """A torso of 16 units, which sees at most 16 numbers of an observation."""

  @nn.compact
  def __call__(self, observation: jax.Array) -> jax.Array:
    """Maps `[B, ...]` to `[B, 16]`."""
    numbers = observation
    if observation.ndim > 2:
      numbers = observation[:, 0, ::21, ::21]
    numbers = numbers.reshape(len(observation), -1).astype(jnp.float32)
    return nn.relu(nn.Dense(16)(numbers / 255))


class Host(NamedTuple):
  """A simulated host, which has a core for each actor.

  Attributes:
    actors: number of actors.
    envs: number of environments of each actor.
    rows: number of rows of a thin actor's message.
    step_seconds: seconds of a core for a step.
    kind: kind of observations, see `sleeping`.
  """

  actors: int
  envs: int
  rows: int
  step_seconds: float
  kind: str = sleeping.FRAMES

  @property
  def rate(self) -> float:
    """Env steps per second that the environments allow; resets are none."""
    of_episode = sleeping.EPISODE / (sleeping.EPISODE + 1)
    return self.actors / self.step_seconds * of_episode


class _Sleeping:
  """A pipeline's config, whose actors have sleeping environments."""

  def nodes(self) -> list[topology.Node]:
    """Returns the pipeline's nodes with `sleeping.act` in their processes."""
    nodes: list[topology.Node] = super().nodes()  # type: ignore[misc]
    return [
      dataclasses.replace(x, run=functools.partial(sleeping.act, x.run))
      for x in nodes
    ]


class _Sync(_Sleeping, sync.Config):
  pass


class _Impala(_Sleeping, impala.Config):
  pass


class _Seed(_Sleeping, seed.Config):
  pass


def _common(host: Host) -> dict[str, Any]:
  return {
    "env": sleeping.config(host.kind, host.step_seconds),
    "agent": vtrace.Config(torso=Tiny()),
    "total_steps": 2**62,
    "log_seconds": 1.0,
  }


def _of_sync(host: Host) -> process.Config:
  return _Sync(
    **_common(host),
    num_envs=host.actors * host.envs,
    env_threads=host.actors,
    learner=learner.Config(unroll_length=_UNROLL_LENGTH),
  )


def _of_impala(host: Host) -> process.Config:
  return _Impala(
    **_common(host),
    actors=protocol.Actors(host.actors, host.envs),
    learner=_inbox(),
  )


def _of_seed(host: Host, kind: Callable[..., process.Config] = _Seed) -> Any:
  return kind(
    **_common(host),
    actors=thin_actor.Config(host.actors, host.envs, host.rows),
    learner=_inbox(),
  )


def _inbox() -> learner.InboxConfig:
  return learner.InboxConfig(
    unroll_length=_UNROLL_LENGTH, batch_size=_BATCH_SIZE
  )


class Arm(NamedTuple):
  """A pipeline on a host.

  Attributes:
    host: the simulated host.
    config: function that returns the pipeline's config for a host.
  """

  host: Host
  config: Callable[[Host], process.Config]


_EIGHT, _SIXTEEN = (Host(14, 16, rows, 650e-6) for rows in (8, 16))
_MANY = Host(64, 16, 8, 2.6e-3)
_VECTORS = Host(2, 1024, 1024, 5e-6, sleeping.NUMBERS)
ARMS = {
  "sync, 14 x 16": Arm(_EIGHT, _of_sync),
  "impala, 14 x 16": Arm(_EIGHT, _of_impala),
  "seed, 14 x 16, 8 rows": Arm(_EIGHT, _of_seed),
  "seed, 14 x 16, 16 rows": Arm(_SIXTEEN, _of_seed),
  "seed, 64 x 16, 8 rows": Arm(_MANY, _of_seed),
  "seed, 2 x 1,024": Arm(_VECTORS, _of_seed),
}
if importlib.util.find_spec(_POOL):
  kind: Any = importlib.import_module(_POOL).Config
  kind = type("_Pool", (_Sleeping, kind), {})
  ARMS["pool, 14 x 16, 8 rows"] = Arm(
    _EIGHT, functools.partial(_of_seed, kind=kind)
  )


# CPU seconds by name.
_Seconds = dict[str, float]


class Load(NamedTuple):
  """Progress and CPU time of a run in some seconds.

  Attributes:
    seconds: seconds measured.
    steps: env steps.
    updates: updates.
    values: medians of the lines' metrics, by name.
    threads: CPU seconds of the learner's process, by thread.
    roles: CPU seconds of the other processes of the run, by kind of role.
    others: mean number of cores that other programs kept busy; None if unknown.
  """

  seconds: float
  steps: float
  updates: float
  values: Mapping[str, float]
  threads: Mapping[str, float]
  roles: Mapping[str, float]
  others: float | None

  @property
  def learner(self) -> float:
    """CPU seconds of the learner's process."""
    return sum(self.threads.values())


class _Meter:
  """A sink that measures a run from some seconds after its first update on.

  When the time is over, it prints a `Load` and ends the run.
  """

  def __init__(self, settle_seconds: float, seconds: float) -> None:
    self._settle_seconds, self._seconds = settle_seconds, seconds
    self._begin: float | None = None
    self._start: tuple[Any, ...] | None = None
    self._lines: list[metrics.Line] = []

  def write(self, line: metrics.Line) -> None:
    now = time.monotonic()
    if self._begin is None and line["learner_steps"]:
      self._begin = now + self._settle_seconds
    if self._begin is None or now < self._begin:
      return
    if self._start is None:
      self._start = (now, line, *self._used(), cpu_time.Others())
      return
    self._lines.append(line)
    if now - self._start[0] >= self._seconds and self._lines:
      print(json.dumps(self._load(now)), flush=True)
      self._seconds = float("inf")
      os.kill(os.getpid(), signal.SIGINT)

  def close(self) -> None:
    pass

  def _used(self) -> tuple[_Seconds, _Seconds]:
    """Returns CPU seconds by thread, and those of other processes by role."""
    roles: _Seconds = collections.defaultdict(float)
    for pid, used in cpu_time.of_tree(os.getpid()).items():
      words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
      if b"seedx.launch" in words:
        roles[topology.kind(words[-2].decode())] += used
    return host_path.of_threads(), roles

  def _load(self, now: float) -> Load:
    assert self._start is not None
    then, first, threads, roles, others = self._start
    threads_now, roles_now = self._used()
    names = {k for k in self._lines[-1] if "wait" in k or "reply" in k}
    names |= {"inference_rows", "policy_lag"} & self._lines[-1].keys()
    lines: list[Any] = self._lines
    columns = {k: [x[k] for x in lines if x[k] is not None] for k in names}
    last = lines[-1]
    return Load(
      now - then,
      last["env_steps"] - first["env_steps"],
      last["learner_steps"] - first["learner_steps"],
      {k: statistics.median(x) for k, x in columns.items() if x},
      {k: v - threads.get(k, 0.0) for k, v in threads_now.items()},
      {k: v - roles.get(k, 0.0) for k, v in roles_now.items()},
      others.cores,
    )


def run(
  name: str,
  host: Sequence[Any],
  settle_seconds: float,
  seconds: float,
  folder: str,
) -> None:
  """Runs an arm on a host in this process, and prints its `Load`."""
  sleeping.install()
  config = ARMS[name].config(Host(*host))
  if isinstance(config, process.ServerConfig):
    devices.compute_on_own_threads()
  allocator.keep_freed_memory()
  app.train(
    config,
    sinks=[_Meter(settle_seconds, seconds)],
    return_interrupted=True,
    run_dir=folder,
    quiet=True,
    checkpoint_every_seconds=0.0,
  )


def measure(
  name: str, host: Host, settle_seconds: float, seconds: float
) -> Load:
  """Runs an arm on a host in a process of its own.

  Args:
    name: key of `ARMS`.
    host: the host; that of the arm is not used.
    settle_seconds: seconds from the first update to the measurement.
    seconds: seconds to measure.

  Raises:
    types.ConfigError: the run has failed.
  """
  # Not as the main program, so that actors can import the torso by its name.
  code = "from benchmarks import simulated_host as s; s.run(*{!r})"
  with tempfile.TemporaryDirectory(prefix="seedx-") as folder:
    path = os.path.join(folder, "run")
    words = name, tuple(host), settle_seconds, seconds, path
    ended = subprocess.run(
      [sys.executable, "-c", code.format(words)],
      stdout=subprocess.PIPE,
      text=True,
      timeout=_START_SECONDS + settle_seconds + seconds,
    )
  for line in ended.stdout.splitlines():
    if line.startswith("["):
      return Load(*json.loads(line))
  raise types.ConfigError(f"{name}: the run ended with {ended.returncode}")


def main(argv: Sequence[str] | None = None) -> int:
  """Measures arms, and prints tables of their rates and of their CPU time."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--only", default="", help="regular expression of arms")
  parser.add_argument("--runs", type=int, default=1, help="of each arm")
  parser.add_argument("--settle", type=float, default=5.0)
  parser.add_argument("--seconds", type=float, default=20.0)
  options = parser.parse_args(argv)
  loads = [
    (name, measure(name, arm.host, options.settle, options.seconds))
    for _ in range(options.runs)
    for name, arm in ARMS.items()
    if re.search(options.only, name)
  ]
  print(watched.table(_RATES, [_rates(*x) for x in loads]), "\n")
  print(watched.table(_COSTS, [_costs(*x) for x in loads]), "\n")
  for name, load in loads:
    print(f"us a row, {name}: {_threads(load)}")
  return 0


_RATES = (
  "arm",
  "env steps/s",
  "of what sleeping allows",
  "reply ms p50",
  "p99",
  "waits: environments",
  "learner",
  "experience",
  "cores of the learner",
  "of inference processes",
  "of an actor",
  "of all",
  "other programs",
)
_COSTS = (
  "CPU us of the learner's process",
  "a message",
  "a row",
  "a batch",
  "an update",
  "rows in a batch",
  "updates/s",
  "other processes' us a row",
)


def _rates(name: str, load: Load) -> list[str]:
  host, rate = ARMS[name].host, load.steps / load.seconds
  values = load.values

  def cell(key: str, scale: float = 1.0) -> str:
    return f"{scale * values[key]:.2f}" if key in values else "-"

  cores = load.learner / load.seconds
  by_role = {k: v / load.seconds for k, v in load.roles.items()}
  return [
    name,
    f"{rate:,.0f}",
    f"{rate / host.rate:.3f}",
    cell("reply_seconds_p50", 1e3),
    cell("reply_seconds_p99", 1e3),
    cell(metrics.WAIT_ENVIRONMENTS),
    cell(metrics.WAIT_LEARNER),
    cell(metrics.WAIT_EXPERIENCE),
    f"{cores:.2f}",
    f"{by_role[_INFERENCE]:.2f}" if _INFERENCE in by_role else "-",
    f"{by_role.get(_ACTOR, 0.0) / host.actors:.3f}",
    f"{cores + sum(by_role.values()):.2f}",
    "-" if load.others is None else f"{load.others:.2f}",
  ]


def _costs(name: str, load: Load) -> list[str]:
  host, micros = ARMS[name].host, 1e6 * load.learner
  batch = load.values.get("inference_rows")
  return [
    name,
    f"{micros * host.rows / load.steps:.0f}" if batch else "-",
    f"{micros / load.steps:.1f}",
    f"{micros * batch / load.steps:.0f}" if batch else "-",
    f"{micros / load.updates:,.0f}",
    f"{batch:.1f}" if batch else "-",
    f"{load.updates / load.seconds:.1f}",
    f"{1e6 * sum(load.roles.values()) / load.steps:.1f}",
  ]


def _threads(load: Load) -> str:
  """Returns the CPU us of a row by the threads of the learner's process."""
  micros = {k: 1e6 * v / load.steps for k, v in load.threads.items()}
  ordered = sorted(micros.items(), key=lambda x: -x[1])
  return ", ".join(f"{k} {v:.1f}" for k, v in ordered if v >= 0.05)


if __name__ == "__main__":
  watched.end_on_signals()
  sys.exit(main())
