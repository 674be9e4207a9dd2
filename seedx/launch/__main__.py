"""The program of a node's process: `python -m seedx.launch [ADDRESS] ROLE`.

The program reads its work from standard input, a socket whose other end its
parent holds. The program ends when the socket closes, so it cannot outlive its
parent. If it fails, it sends the error over the socket, and its parent prints
it. An ADDRESS that is not empty replaces the learner's in the node's config.
"""

import contextlib
import dataclasses
import faulthandler
import multiprocessing.spawn
import os
import pickle
import shutil
import signal
import sys
import threading
import traceback
from typing import BinaryIO

from seedx import output, signals, types, wire
from seedx.launch import topology
from seedx.on_cpu import allocator

# The maximum length of a traceback; of a longer one, its ends are sent.
_TRACE_CHARACTERS = 16_384
# A file that exists if Linux has found an NVIDIA GPU.
_GPU = "/proc/driver/nvidia/version"
# Errors that would happen again after a restart.
_USAGE_CODES = (
  wire.StatusCode.FAILED_PRECONDITION,
  wire.StatusCode.UNAUTHENTICATED,
  wire.StatusCode.UNIMPLEMENTED,
)


def _main() -> None:
  address = "".join(sys.argv[1:-1])
  message = pickle.loads(_message(sys.stdin.buffer))
  parent, work, sharing, on_devices, folder = message
  leaving = threading.Thread(
    target=_leave_with_parent, args=(folder,), daemon=True
  )
  leaving.start()
  if sharing:
    if on_devices and os.path.exists(_GPU):
      # The learner's process has its part of the memory already.
      os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    else:
      # Leaves the accelerators to the learner.
      os.environ["JAX_PLATFORMS"] = "cpu"
    topology.share_cores(sharing)
    import jax

    allocator.keep_freed_memory()
    # Nodes wait for each result, so a thread for dispatch would only cost time.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
  else:
    # Blocks EnvPool's import of JAX, which doubles memory and takes a second.
    sys.modules["jax"] = None  # type: ignore[assignment]
  if parent:
    from seedx.envs import functions

    with functions.importing("the script"):
      multiprocessing.spawn.prepare(parent)
  run, config = pickle.loads(work)
  if address:
    config = dataclasses.replace(config, address=address)
  run(config, threading.Event())
  if folder:
    leaving.join()  # The thread removes the folder after the parent's end.


def _message(stream: BinaryIO) -> bytes:
  header = stream.read(topology.SIZE.size)
  if len(header) < topology.SIZE.size:
    os._exit(0)  # The parent has ended already.
  return stream.read(topology.SIZE.unpack(header)[0])


def _leave_with_parent(folder: str) -> None:
  with contextlib.suppress(ConnectionResetError):
    while os.read(0, 1):
      pass
  if folder:  # A killed parent has not removed it.
    shutil.rmtree(folder, ignore_errors=True)
  os._exit(0)


def _exit_status() -> int:
  try:
    _main()
    return 0
  except (types.ConfigError, wire.WireError) as error:
    _send_error(str(error).strip() or type(error).__name__)
    is_usage = getattr(error, "code", _USAGE_CODES[0]) in _USAGE_CODES
    return topology.USAGE_STATUS if is_usage else 1
  except BaseException as error:
    text = "".join(traceback.format_exception_only(error))
    _send_error(text, traceback.format_exc())
    return 1


def _send_error(error: str, trace: str = "") -> None:
  """Sends an error in one line and, below it, its traceback."""
  lines = error.strip().splitlines()
  # The first and last lines are enough for an error that has a traceback.
  ends = [lines[0], *lines[1:][-1:]]
  line = " ... ".join(f"{line:.500}" for line in ends)
  if len(trace) > _TRACE_CHARACTERS:
    half = _TRACE_CHARACTERS // 2
    trace = f"{trace[:half]}\n...\n{trace[-half:]}"
  text = f"{line}\n{trace}".encode(errors="backslashreplace")
  with contextlib.suppress(OSError):
    os.write(0, text[: topology.ERROR_BYTES])


if __name__ == "__main__":
  # The parent also gets signals to the process group, and decides what ends.
  for number in signals.ENDING:
    signal.signal(number, signal.SIG_IGN)
  signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.ENDING)
  output.outlive_readers()
  faulthandler.enable()
  # `os._exit` does not wait for threads of gRPC or EnvPool.
  status = _exit_status()
  sys.stderr.flush()
  os._exit(status)
