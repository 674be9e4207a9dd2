"""Measures what seedx does with this machine's accelerator, in 15 minutes.

  seedx trial --output trial.json

It runs the tests that an accelerator may change (in a clone of the repository),
trains `seed_vtrace` on Pong, and finds the env steps per second of some sizes.
All of it is written to one JSON file, with the devices and versions.
"""

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import psutil

from seedx import metrics, types
from seedx.app import command_line, compare

_TESTS = ("tests/losses", "tests/networks", "tests/agents_test.py")
_VERSIONS = ("jax", "jaxlib", "flax", "optax", "envpool", "grpcio", "numpy")
# Names of experiments and their environments, whose rates are found.
_SIZES = (
  ("seed_vtrace --num-actors 2", "CartPole-v1"),
  ("seed_vtrace --num-actors 4", "Pong-v5"),
  ("seed_vtrace --num-actors 8", "Pong-v5"),
  ("seed_vtrace --num-actors 8 --image-torso impala", "Pong-v5"),
  ("impala --num-actors 8", "Pong-v5"),
  ("ppo", "Pong-v5"),
)


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line.

  Attributes:
    output: JSON file of what was found.
    pong_seconds: of training on Pong, from the first update on.
    rate_seconds: of each size, from the first update on.
    tests: run the tests.
  """

  output: str = "trial.json"
  pong_seconds: float = 300.0
  rate_seconds: float = 45.0
  tests: bool = True

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    types.check_ranges(
      self, pong_seconds=(1.0, types.MOST), rate_seconds=(1.0, types.MOST)
    )


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the trial; returns its exit status."""
  return command_line.run(_trial, Options(), "seedx trial", __doc__, argv)


def _trial(options: Options) -> int:
  found: dict[str, Any] = {}

  def keep(name: str, value: Any) -> None:
    found[name] = value
    print(f"{name}: {json.dumps(value)}", flush=True)
    text = json.dumps(found, indent=2) + "\n"
    metrics.write_file(pathlib.Path(options.output), text)

  keep("machine", _machine())
  if options.tests and pathlib.Path("tests", "agents_test.py").exists():
    keep("tests", _tests())
  with tempfile.TemporaryDirectory(prefix="seedx-trial-") as folder:
    parent = pathlib.Path(folder)
    print(f"pong: {options.pong_seconds:g} s", flush=True)
    pong = _trained(
      "seed_vtrace --num-actors 8", "Pong-v5", options.pong_seconds, parent
    )
    keep("pong", pong)
    rates: dict[str, Any] = {}
    for k, (words, env) in enumerate(_SIZES):
      name = f"{words} --env {env}"
      start = f"rates: {k + 1}/{len(_SIZES)}, {options.rate_seconds:g} s"
      print(f"{start}: {name}", flush=True)
      rates[name] = _trained(words, env, options.rate_seconds, parent / str(k))
      keep("rates", rates)
  failed = found.get("tests", {}).get("status", 0) != 0
  return int(failed or any("error" in x for x in (pong, *rates.values())))


def _devices() -> list[str]:
  """What a process of its own, which then frees them, says of the devices."""
  program = "from seedx.app import devices as x;"
  program += " print(x.described(), x.unused(), sep='\\n')"
  done = subprocess.run(
    [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
  )
  return [*done.stdout.split("\n"), "", ""][:2]


def _machine() -> dict[str, Any]:
  devices, unused = _devices()
  return {
    "devices": devices,
    "unused": unused,
    "processor": platform.processor() or platform.machine(),
    "cpus": len(os.sched_getaffinity(0)),
    "memory_gib": round(psutil.virtual_memory().total / 2**30),
    "python": platform.python_version(),
    "versions": {x: importlib.metadata.version(x) for x in _VERSIONS},
  }


def _tests() -> dict[str, Any]:
  """Runs tests on what JAX chooses; they run on the CPU otherwise."""
  start_seconds = time.monotonic()
  done = subprocess.run(
    [sys.executable, "-m", "pytest", "-n", "1", *_TESTS],
    env={**os.environ, "SEEDX_TEST_PLATFORMS": ""},
    capture_output=True,
    text=True,
  )
  return {
    "status": done.returncode,
    "last_lines": done.stdout.splitlines()[-5:],
    "seconds": round(time.monotonic() - start_seconds),
  }


def _trained(
  words: str, env: str, seconds: float, parent: pathlib.Path
) -> dict[str, Any]:
  """What a run of some seconds came to, or why it failed."""
  options = compare.Options(
    env=env, total_steps=10**10, total_seconds=seconds, seeds=1
  )
  try:
    run = compare.train(options, words, 0, parent, from_update=True)
  except types.ConfigError as error:
    return {"error": str(error)}
  if isinstance(run, int):
    raise SystemExit(run)
  lines = [line for line in run.lines if line["learner_steps"]]
  half = lines[len(lines) // 2 :]
  last = lines[-1]
  return {
    "env_steps_per_second": round(
      statistics.median(line["steps_per_second"] for line in half)
    ),
    "bottleneck": statistics.mode(metrics.bottleneck(line) for line in half),
    "env_steps": last["env_steps"],
    "seconds": round(last["wall_seconds"]),
    "episode_return": last["episode_return"],
    "policy_lag": last["policy_lag"],
  }


if __name__ == "__main__":
  sys.exit(main())
