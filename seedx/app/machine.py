"""Several actors of one machine, which join a run over one stream."""

import threading

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
    failures: list[wire.WireError] = []

    def send_and_receive() -> None:
      try:
        self._relay.run(client, ended)
      except wire.WireError as failure:
        failures.append(failure)

    with wire.Client(self._address, self._security) as client:
      thread = threading.Thread(target=send_and_receive, daemon=True)
      thread.start()
      try:
        self._start(assignment)
        while thread.is_alive() and not ended.wait(_LOOK_SECONDS):
          self._check()
      finally:
        ended.set()
    thread.join()
    if failures:
      raise failures[0]

  def close(self) -> None:
    """Ends all processes."""
    if self._actors is not None:
      self._actors.stop()
    self._relay.close()
    self._folder.cleanup()

  def _start(self, assignment: joining.Welcome) -> None:
    """Starts the processes, unless they have this assignment already."""
    if assignment == self._assignment:
      return
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

  def _check(self) -> None:
    assert self._actors is not None
    try:
      self._actors.check()
    except instances.DiedError as error:
      raise types.ConfigError(str(error)) from error
