"""The part of one process in a run that it has joined."""

import dataclasses
import os
import threading

from seedx import wire
from seedx.acting import thin_actor
from seedx.launch import joining


@dataclasses.dataclass(frozen=True)
class Part:
  """The part of one process in a run.

  Attributes:
    assignment: the learner's answer to the process that joined.
    address: address of the learner, or of a relay.
    listen: address at which the process listens; empty if its role does not.
    security: TLS and token of the run.
  """

  assignment: joining.Welcome
  address: str
  listen: str
  security: wire.Security


def play(part: Part, stop: threading.Event) -> None:
  """Does the work of a role until it is done or `stop` is set.

  Raises:
    types.ConfigError: this program cannot do the work.
    wire.WireError: the learner refuses this process.
  """
  assignment, security = part.assignment, part.security
  if not assignment.needs_jax:
    thin_actor.run(
      thin_actor.Work.of(part.address, assignment.options, security), stop
    )
    return
  os.environ.setdefault("JAX_PLATFORMS", "cpu")
  from seedx.app import roles  # It imports JAX.

  experiment = roles.experiment_of(assignment, part.address)
  roles.play(experiment, assignment, part.address, part.listen, stop, security)
