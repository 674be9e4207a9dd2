"""Several actors of one machine, which join a run over one stream."""

import threading
from concurrent import futures

from seedx import types, wire
from seedx.app import part, scratch
from seedx.launch import instances, joining, topology
from seedx.wire import relay

_LOOK_SECONDS = 0.5


class Machine:
  """A relay, and the processes of this machine that use it.

  They outlive the learner: if it restarts with the same settings, they connect
  again.
  """

  def __init__(
    self, address: str, num_actors: int, security: wire.Security
  ) -> None:
    """Makes a machine without processes; `address` is the learner's."""
    self._address = address
    self._security = security
    self._num_actors = num_actors
    self._folder = scratch.folder_for_sockets("seedx-join-")
    self._relayed = f"unix:{self._folder.name}/learner"
    self._relay = relay.Relay(self._relayed, num_actors)
    self._assignment: joining.Welcome | None = None
    self._actors: instances.Instances | None = None

  def play(self, assignment: joining.Welcome, ended: threading.Event) -> None:
    """Does the assigned work until it is done or `ended` is set.

    Raises:
      types.ConfigError: a process cannot do its work, or dies too often.
      wire.WireError: the connection to the learner failed.
    """
    with (
      futures.ThreadPoolExecutor(1) as pool,
      wire.Client(self._address, self._security) as client,
    ):
      relaying = pool.submit(self._relay.run, client, ended)
      try:
        actors = self._started(assignment)
        while not (relaying.done() or ended.wait(_LOOK_SECONDS)):
          actors.check()
      except instances.DiedError as error:
        raise types.ConfigError(str(error)) from error
      finally:
        ended.set()
    relaying.result()

  def close(self) -> None:
    """Ends all processes."""
    if self._actors is not None:
      self._actors.stop()
    self._relay.close()
    self._folder.cleanup()

  def _started(self, assignment: joining.Welcome) -> instances.Instances:
    """Returns the processes, which are started for each new assignment."""
    if self._actors is not None and assignment == self._assignment:
      return self._actors
    if self._actors is not None:
      self._actors.stop()
    node = topology.Node(
      topology.kind(assignment.role),
      part.play,
      part.Part(assignment, self._relayed, "", self._security),
      self._num_actors,
      assignment.needs_jax,
    )
    self._actors = instances.Processes([node], self._folder.name)
    self._assignment = assignment
    return self._actors
