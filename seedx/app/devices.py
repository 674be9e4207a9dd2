"""The devices of a run: their names, and settings of JAX on them."""

import collections
import contextlib
import os
import pathlib
from collections.abc import Iterator

import jax

from seedx import types

# Device, file that exists if Linux has found the device, extra of seedx for it.
_SIGNS = (
  ("an NVIDIA GPU", "proc/driver/nvidia/version", "cuda13"),
  ("a TPU", "dev/accel0", "tpu"),
  ("a TPU", "dev/vfio/0", "tpu"),
)
# JAX's option of this name has the value of JAX_PLATFORMS.
_KINDS = "jax_platforms"
# Name of a kind of device in JAX_PLATFORMS, and the extra of seedx for it.
_EXTRAS = (
  ("cuda", "seedx[cuda13]"),
  ("gpu", "seedx[cuda13]"),
  ("tpu", "seedx[tpu]"),
)


def check() -> None:
  """Starts JAX's devices.

  Raises:
    types.ConfigError: this machine has no devices of the kind that
      JAX_PLATFORMS names, or one of them does not start.
  """
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:
    lines = str(error).splitlines() or ["JAX sees no such device"]
    # JAX's own remedy is at the end of its line.
    reason = lines[0].partition(" (set JAX_PLATFORMS")[0]
    kinds = getattr(jax.config, _KINDS)
    if not kinds:
      raise types.ConfigError(
        f"JAX cannot start the devices of this machine ({reason:.300}); repair"
        " that, or set JAX_PLATFORMS=cpu to use the CPU"
        f"{types.see('an-accelerator-is-not-used')}"
      ) from error
    extras = [f", or install {x} for it" for k, x in _EXTRAS if k in kinds]
    raise types.ConfigError(
      f"expected devices for JAX_PLATFORMS={kinds} on this machine, found none"
      f" ({reason:.300}); unset it to use the devices that JAX finds, set"
      f" JAX_PLATFORMS=cpu to use the CPU{''.join(extras[:1])}"
      f"{types.see('an-accelerator-is-not-used')}"
    ) from error


def described() -> str:
  """Returns the devices of this process, such as `8 x NVIDIA H200`."""
  kinds = collections.Counter(
    "CPU" if x.platform == "cpu" else x.device_kind for x in jax.local_devices()
  )
  return ", ".join(
    kind if count == 1 else f"{count} x {kind}" for kind, count in kinds.items()
  )


def unused(root: pathlib.Path = pathlib.Path("/")) -> str:
  """Returns a message about devices that JAX cannot use; empty if none."""
  if jax.default_backend() != "cpu" or "JAX_PLATFORMS" in os.environ:
    return ""
  for name, path, extra in _SIGNS:
    if (root / path).exists():
      return (
        f"this machine has {name}, but JAX uses the CPU; to use it, install"
        f" seedx[{extra}], or set JAX_PLATFORMS=cpu to hide this message"
        f"{types.see('an-accelerator-is-not-used')}"
      )
  return ""


def compute_on_own_threads() -> None:
  """Makes each thread compute by itself on CPU, without waking up another.

  The setting helps programs whose threads act, learn or serve at the same time,
  and affects the whole process: only programs call this, not the library, and
  before JAX starts its devices, which read the setting.
  """
  jax.config.update("jax_cpu_enable_async_dispatch", False)


@contextlib.contextmanager
def explaining_memory() -> Iterator[None]:
  """Adds remedies to the error of a device whose memory is full."""
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" in str(error):
      error.add_note(
        "The device has too little free memory. JAX reserves three quarters of"
        " a GPU when it starts. If other programs use the GPU, too, set"
        " XLA_PYTHON_CLIENT_PREALLOCATE=false, or give each a share by"
        " XLA_PYTHON_CLIENT_MEM_FRACTION=.4. If not, try a smaller"
        " --batch-size, --envs-per-actor or --replay-capacity"
        f"{types.see('a-device-is-out-of-memory')}"
      )
    raise
