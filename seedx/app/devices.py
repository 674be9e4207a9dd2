"""The devices of a run: what they are, and how a program computes on them."""

import collections
import contextlib
import os
import pathlib
from collections.abc import Iterator

import jax

from seedx import types

# What Linux shows of devices, and the extra of JAX that uses them.
_SIGNS = (
  ("an NVIDIA GPU", "proc/driver/nvidia/version", "cuda13"),
  ("a TPU", "dev/accel0", "tpu"),
  ("a TPU", "dev/vfio/0", "tpu"),
)


def described() -> str:
  """The devices of this process in words, such as `8 x NVIDIA H200`."""
  kinds = collections.Counter(
    "CPU" if x.platform == "cpu" else x.device_kind for x in jax.local_devices()
  )
  return ", ".join(
    kind if count == 1 else f"{count} x {kind}" for kind, count in kinds.items()
  )


def unused(root: pathlib.Path = pathlib.Path("/")) -> str:
  """Says which devices are here that JAX cannot use; empty if none.

  Args:
    root: of the file system.
  """
  if jax.default_backend() != "cpu" or "JAX_PLATFORMS" in os.environ:
    return ""
  for name, path, extra in _SIGNS:
    if (root / path).exists():
      return (
        f"{name} is here, but JAX uses the CPU; to use it, install"
        f" seedx[{extra}], or set JAX_PLATFORMS=cpu to say nothing"
        f"{types.see('an-accelerator-is-not-used')}"
      )
  return ""


def compute_on_own_threads() -> None:
  """Has a thread compute by itself on CPU, instead of waking up another.

  For programs whose threads act, learn or serve beside each other. It is a
  setting of the whole program, so the library does not make it.
  """
  jax.config.update("jax_cpu_enable_async_dispatch", False)


@contextlib.contextmanager
def explaining_memory() -> Iterator[None]:
  """Adds what helps to the error of a device whose memory is full."""
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" in str(error):
      error.add_note(
        "The device has too little free memory. JAX reserves three quarters of"
        " a GPU when it starts: where other programs use it, too, set"
        " XLA_PYTHON_CLIENT_PREALLOCATE=false, or give each a share by"
        " XLA_PYTHON_CLIENT_MEM_FRACTION=.4. Where this one is alone, try a"
        " smaller --batch-size, --envs-per-actor or --replay-capacity"
        f"{types.see('a-device-is-out-of-memory')}"
      )
    raise
