"""The machine that is measured: its devices, its versions, its tests."""

import importlib.metadata
import os
import pathlib
import platform
import subprocess
import sys
from typing import Any

import psutil

# What an accelerator may change.
_TESTS = ("tests/losses", "tests/networks", "tests/agents_test.py")
_VERSIONS = ("jax", "jaxlib", "flax", "optax", "envpool", "grpcio", "numpy")


def described() -> dict[str, Any]:
  """Devices, processor, memory and versions, as JSON."""
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


def run_tests() -> int:
  """Runs tests on the devices that JAX chooses; they use the CPU otherwise.

  Returns:
    The exit status; 0 outside of a clone of the repository, which has none.
  """
  if not pathlib.Path("tests", "agents_test.py").exists():
    return 0
  program = [sys.executable, "-m", "pytest", "-n", "1", *_TESTS]
  return subprocess.run(
    program,
    env={**os.environ, "SEEDX_TEST_PLATFORMS": ""},
    stdout=sys.stderr,
  ).returncode


def _devices() -> list[str]:
  """What a process of its own, which then frees them, says of the devices."""
  program = "from seedx.app import devices as x;"
  program += " print(x.described(), x.unused(), sep='\\n')"
  done = subprocess.run(
    [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
  )
  return [*done.stdout.split("\n"), "", ""][:2]
