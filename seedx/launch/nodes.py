"""A pipeline's topology as data."""

import dataclasses
import multiprocessing.spawn
import os
import pickle
import struct
import threading
from collections.abc import Callable
from typing import Any

from seedx import types

# A node that the program itself calls wrong is not started again.
USAGE_STATUS = 2
# Comes before a `message`.
SIZE = struct.Struct("<Q")


@dataclasses.dataclass(frozen=True)
class Node:
  """A role, and how many processes have it.

  Attributes:
    role: its name.
    run: `(config, stop)`, a function of a module; it returns when its work is
      done, or `stop` is set.
    config: its first argument; can be pickled, to run in another process.
    count: number of processes.
    needs_jax: whether it computes with JAX, on CPU; others block JAX.
  """

  role: str
  run: Callable[[Any, threading.Event], None]
  config: Any
  count: int = 1
  needs_jax: bool = False


def share_cores(processes: int) -> None:
  """Has XLA use as many threads as its share of the cores, unless it is told.

  Threads of many processes get in each other's way. Call it before JAX computes
  anything.

  Args:
    processes: that compute on this machine.
  """
  threads = max(1, len(os.sched_getaffinity(0)) // processes)
  os.environ.setdefault("PJRT_NPROC", str(threads))


def kind(role: str) -> str:
  """What a role is called among others: of `server-1`, `server`."""
  return role.partition("-")[0]


def message(node: Node, folder: str) -> bytes:
  """What a process that runs the node reads: its size, then a pickle.

  Args:
    node: that it runs.
    folder: that it removes when its parent goes.

  Raises:
    types.ConfigError: the node's function or config cannot be pickled.
  """
  try:
    work = pickle.dumps((node.run, node.config))
  except (pickle.PicklingError, AttributeError, TypeError) as error:
    raise types.ConfigError(
      f"expected a {node.role} that can be pickled for a process of its own,"
      f" such as functools.partial of a module's function: {error}"
    ) from error
  # Only who refers to the parent's program has to import it again.
  parent = {}
  if b"__main__" in work:
    parent = multiprocessing.spawn.get_preparation_data(node.role)
    parent.pop("authkey", None)  # It refuses to be pickled here.
  sharing = node.count if node.needs_jax else 0
  text = pickle.dumps((parent, work, sharing, folder))
  return SIZE.pack(len(text)) + text
