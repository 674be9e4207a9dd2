"""The machine that is measured: its devices and its versions."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from typing import Any

import psutil

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


def _devices() -> list[str]:
  """What a process of its own, which then frees them, says of the devices."""
  program = "from seedx.app import devices as x;"
  program += " print(x.described(), x.unused(), sep='\\n')"
  done = subprocess.run(
    [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
  )
  return [*done.stdout.split("\n"), "", ""][:2]
