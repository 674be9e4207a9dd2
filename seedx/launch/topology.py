"""Nodes: the roles of a pipeline's other processes, as data."""

import dataclasses
import multiprocessing.spawn
import os
import pickle
import pickletools
import struct
import threading
from collections.abc import Callable
from typing import Any, Protocol

from seedx import types

# The exit status for a wrong config, after which a node is not restarted.
USAGE_STATUS = 2
# The maximum number of bytes of an error that a process sends; much less than a
# socket holds, because the parent reads it after the process has ended.
ERROR_BYTES = 2**16
# The header of a `message`: the number of bytes that follow.
SIZE = struct.Struct("<Q")


@dataclasses.dataclass(frozen=True)
class Node:
  """A role, and the number of processes that have it.

  Attributes:
    role: name of the role.
    run: function `(config, stop)` of a module; it returns when its work is done
      or `stop` is set.
    config: first argument of `run`; it is pickled for another process.
    count: number of processes.
    needs_jax: whether the role computes with JAX; for other roles JAX cannot
      be imported.
    on_devices: whether it computes on the devices of its machine, beside the
      learner, if they are GPUs; otherwise on CPU.
    sharing: number of processes that share the CPU cores of a machine; 0 for
      `count`.
  """

  role: str
  run: Callable[[Any, threading.Event], None]
  config: Any
  count: int = 1
  needs_jax: bool = False
  sharing: int = 0
  on_devices: bool = False


class Addresses(Protocol):
  """The addresses of the processes of one role, see `admission.Addresses`."""

  def take(self, address: str) -> int:
    """Takes a free number for a joining process that listens at `address`."""

  def give_back(self, number: int) -> None:
    """Frees the number of a process that has left."""


def share_cores(processes: int) -> None:
  """Limits XLA's threads so that several processes share the CPU cores.

  Without a limit, the threads of several processes slow each other down. Call
  this before JAX computes anything; PJRT_NPROC in the environment overrides it.
  """
  threads = max(1, len(os.sched_getaffinity(0)) // processes)
  os.environ.setdefault("PJRT_NPROC", str(threads))


def kind(role: str) -> str:
  """Returns the kind of a role, such as `server` for `server-1`."""
  return role.partition("-")[0]


def message(node: Node, folder: str) -> bytes:
  """Returns the message to a process that runs a node: a size and a pickle.

  The process removes the folder, if there is one, when its parent has ended.

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
  # The new process imports this program only if the work refers to it.
  parent = {}
  if any(argument == "__main__" for _, argument, _ in pickletools.genops(work)):
    parent = multiprocessing.spawn.get_preparation_data(node.role)
    parent.pop("authkey", None)  # This key cannot be pickled.
  sharing = (node.sharing or node.count) if node.needs_jax else 0
  text = pickle.dumps((parent, work, sharing, node.on_devices, folder))
  return SIZE.pack(len(text)) + text
