"""The program of a thin actor, which keeps JAX out.

  seedx actor --address learner-host:8470 --env CartPole-v1

steps environments for a learner of the pipeline `seed` that runs elsewhere. It
needs no JAX; `--env` and its options are those of the learner.
"""

import dataclasses
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from seedx import envs, types, wire
from seedx.acting import thin_actor
from seedx.app import command_line, signals

PROGRAM = "actor"


@dataclasses.dataclass(frozen=True)
class Asked:
  """The command line.

  Attributes:
    address: of the learner, HOST:PORT or unix:PATH.
    env: which environment.
    actors: what the learner was told of its actors.
  """

  address: str = ""
  env: envs.Config = envs.Config()
  actors: thin_actor.Config = thin_actor.Config()


def main(argv: Sequence[str] | None = None) -> int:
  """Steps environments until the learner is done; returns the exit status."""
  argv = sys.argv[1:] if argv is None else argv
  asked = command_line.parse(Asked(), argv, f"seedx {PROGRAM}", __doc__)
  stop = threading.Event()
  try:
    if not asked.address:
      raise types.ConfigError("expected --address of the learner, found none")
    with signals.stopping(stop) as interrupted:
      work = thin_actor.Work(asked.address, asked.env, asked.actors)
      thin_actor.run(work, stop)
  except wire.WireError as error:
    command_line.fail(
      types.ConfigError(
        f"the learner at {asked.address} refuses this actor: {error}"
      )
    )
  except types.ConfigError as error:
    command_line.fail(error)
  return signals.INTERRUPTED_STATUS if interrupted.is_set() else 0


def become(work: thin_actor.Work) -> NoReturn:
  """Turns this process, which has JAX, into a thin actor with that work."""
  asked = Asked(work.address, work.env, work.actors)
  words = command_line.words(asked)
  program = [sys.executable, "-m", "seedx", PROGRAM, *words]
  os.execv(sys.executable, program)
