"""The program that a node's process runs: `python -m seedx.launch ROLE`.

It reads what to run from its standard input, a socket, and ends when that is
closed: its parent holds the other end, so that it goes when the parent goes, in
any way. What it dies of, it says there.
"""

import contextlib
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
from seedx.launch import nodes
from seedx.on_cpu import allocator

# Another try of the same would end in the same way.
_CALLED_WRONG = (
  wire.StatusCode.FAILED_PRECONDITION,
  wire.StatusCode.UNAUTHENTICATED,
  wire.StatusCode.UNIMPLEMENTED,
)


def _main() -> None:
  parent, work, sharing, folder = pickle.loads(_message(sys.stdin.buffer))
  leaving = threading.Thread(
    target=_leave_with_parent, args=(folder,), daemon=True
  )
  leaving.start()
  if sharing:
    # Accelerators are the learner's.
    os.environ["JAX_PLATFORMS"] = "cpu"
    nodes.share_cores(sharing)
    import jax

    allocator.keep_freed_memory()
    # It waits for what it computes: another thread would only be woken up.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
  else:
    # EnvPool would import it: half the memory, and a second less to start.
    sys.modules["jax"] = None  # type: ignore[assignment]
  if parent:
    multiprocessing.spawn.prepare(parent)
  run, config = pickle.loads(work)
  run(config, threading.Event())
  if folder:
    leaving.join()  # Until then, the parent may be killed.


def _message(stream: BinaryIO) -> bytes:
  header = stream.read(nodes.SIZE.size)
  if len(header) < nodes.SIZE.size:
    os._exit(0)  # The parent has gone already.
  return stream.read(nodes.SIZE.unpack(header)[0])


def _leave_with_parent(folder: str) -> None:
  with contextlib.suppress(ConnectionResetError):
    while os.read(0, 1):
      pass
  if folder:  # The parent may have been killed.
    shutil.rmtree(folder, ignore_errors=True)
  os._exit(0)


def _exit_status(role: str) -> int:
  """Runs the node; prints what it died of, and says it to the parent."""
  try:
    _main()
    return 0
  except (types.ConfigError, wire.WireError) as error:
    print(f"error: {role}: {error}", file=sys.stderr)
    _say(str(error))
    wrong = getattr(error, "code", _CALLED_WRONG[0]) in _CALLED_WRONG
    return nodes.USAGE_STATUS if wrong else 1
  except BaseException as error:
    traceback.print_exc()
    _say("".join(traceback.format_exception_only(error)))
    return 1


def _say(error: str) -> None:
  lines = error.strip().splitlines()
  # Of an error that repeats a traceback, both ends say something.
  ends = [lines[0], *lines[1:][-1:]]
  with contextlib.suppress(OSError):
    os.write(0, " ... ".join(f"{line:.500}" for line in ends).encode())


if __name__ == "__main__":
  # Those that go to a group of processes; the parent decides.
  for number in signals.ENDING:
    signal.signal(number, signal.SIG_IGN)
  signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.ENDING)
  output.outlive_readers()
  faulthandler.enable()
  # Threads of gRPC's or EnvPool's must not keep it alive.
  status = _exit_status(sys.argv[1])
  sys.stderr.flush()
  os._exit(status)
