"""The program that a node's process runs: `python -m seedx.launch ROLE`.

It reads what to run from its standard input, and ends when that is closed: its
parent holds the other end, so that it goes when the parent goes, in any way.
"""

import multiprocessing.spawn
import os
import pickle
import signal
import sys
import threading
from typing import Any, BinaryIO

from seedx import types, wire
from seedx.launch import nodes


def _main(role: str) -> int:
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent decides.
  parent, work, needs_jax = pickle.loads(_message(sys.stdin.buffer))
  threading.Thread(target=_leave_with_parent, daemon=True).start()
  if needs_jax:
    # Accelerators are the learner's; threads of many actors get in each
    # other's way.
    os.environ["JAX_PLATFORMS"] = "cpu"
  else:
    # EnvPool would import it: half the memory, and a second less to start.
    sys.modules["jax"] = None  # type: ignore[assignment]
  try:
    if parent:
      multiprocessing.spawn.prepare(parent)
    run, config = pickle.loads(work)
    run(config, threading.Event())
  except (types.ConfigError, wire.WireError) as error:
    print(f"error: {role}: {error}", file=sys.stderr, flush=True)
    return nodes.USAGE_STATUS
  return 0


def _message(stream: BinaryIO) -> bytes:
  header = stream.read(nodes.SIZE.size)
  if len(header) < nodes.SIZE.size:
    os._exit(0)  # The parent has gone already.
  return stream.read(nodes.SIZE.unpack(header)[0])


def _leave_with_parent() -> None:
  while os.read(0, 1):
    pass
  os._exit(0)


def _exit_status(argv: list[str]) -> Any:
  try:
    return _main(argv[1])
  except BaseException:
    import traceback

    traceback.print_exc()
    return 1


if __name__ == "__main__":
  # Threads of gRPC's or EnvPool's must not keep it alive.
  status = _exit_status(sys.argv)
  sys.stderr.flush()
  os._exit(status)
