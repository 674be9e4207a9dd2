"""Joins a run on another machine: `python -m seedx.join HOST:PORT`.

The learner sends this process its role and options. The process works until the
run is over, and connects again if the learner restarts. With --num-actors, it
starts this number of processes, which use its connection.

Exit status: 0 after the run's end; 2 if this process or the learner refuses the
other; 3 if there was no learner for --give-up-seconds; 129, 130 or 143 after
SIGHUP, Ctrl-C or SIGTERM; 1 after any other failure. SIGUSR1 and SIGUSR2, with
which a scheduler warns all processes of a job, have no effect: the learner then
saves the run, and ends it.
"""

import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from seedx import output, signals

if __name__ == "__main__":
  signals.exit_on_signals()
  output.outlive_readers()

from seedx import types, wire
from seedx.app import part
from seedx.app.cli import command_line
from seedx.launch import joining


@dataclasses.dataclass(frozen=True)
class Options(joining.Config):
  """Options of the command line.

  Attributes:
    address: address of the learner, HOST:PORT or unix:PATH.
    role: role of this process, if the run has several.
    num_actors: number of processes that join from this machine; several send
      and receive their messages over one connection.
    listen: address at which others reach this process, if it is a server.
    env: environment of the learner; needed only if it is MODULE:FACTORY.
    env_options: environment options of the learner; needed only if --env is
      MODULE:FACTORY, or if they name files.
    observation_transform: transform of the learner; needed only if it is
      MODULE:FUNCTION.
    experiment: name of an experiment; join only if the learner runs it.
    options: options as JSON; join only if the learner has them.
    give_up_seconds: seconds without a learner until this process gives up; a
      learner that is running but full does not count as missing.
  """

  address: str = ""
  role: str = ""
  num_actors: int = types.setting(1, low=1, high=2**20)
  listen: str = ""
  env: str = ""
  env_options: Mapping[str, Any] = types.setting({})
  observation_transform: str = ""
  experiment: str = ""
  options: Mapping[str, Any] = types.setting({})
  security: wire.Security = wire.LOCAL

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.listen and self.num_actors > 1:
      raise types.ConfigError(
        "expected num_actors of 1 with --listen, because each server needs an"
        f" address of its own, found {self.num_actors}"
      )


def main(argv: Sequence[str] | None = None) -> int:
  """Joins a run; returns the exit status, see this module's docstring.

  `argv` has the command line without the program's name; None for `sys.argv`.
  """
  argv = sys.argv[1:] if argv is None else list(argv)
  asked = command_line.parse(
    Options(), argv, "seedx join", __doc__, positional=("address",)
  )

  def play(assignment: joining.Welcome, ended: threading.Event) -> None:
    if sys.modules.get("jax", assignment) is None and assignment.needs_jax:
      os.execv(sys.executable, [sys.executable, "-m", "seedx.join", *argv])
    if not assignment.needs_jax:
      # Blocks JAX before EnvPool or any other module imports it.
      sys.modules["jax"] = None  # type: ignore[assignment]
    here = part.Part(assignment, asked.address, asked.listen, asked.security)
    part.play(here, ended)

  try:
    wire.check_address(asked.address)
  except types.ConfigError as error:
    command_line.fail(error)
  names = ("env", "env_options", "observation_transform")
  code = {name: getattr(asked, name) for name in names if getattr(asked, name)}
  hello = joining.Hello(
    asked.role, asked.listen, asked.experiment, {**asked.options, **code}
  )
  with contextlib.ExitStack() as stack:
    if asked.num_actors > 1:
      from seedx.app import machine  # It imports more than one actor needs.

      actors = machine.Machine(asked.address, asked.num_actors, asked.security)
      stack.callback(actors.close)
      play = actors.play
    return joining.run(asked.address, hello, play, asked, asked.security)


if __name__ == "__main__":
  # Threads of gRPC or EnvPool must not keep the process alive.
  status = main()
  sys.stderr.flush()
  os._exit(status)
