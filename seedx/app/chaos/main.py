"""Runs pipelines while their processes, peers and disk fail.

  seedx chaos --pipelines seed,a3c --minutes 10

Actors, workers, servers and the learner are killed, stopped and started again
at random. Hostile peers send damaged messages, well-formed lies and silence to
the learner's port, and open many connections. For some seconds, nothing can be
written, environments stand still, or an update does not return. The program
exits with 1 if a step was learned from that is not what an environment said, or
twice; a return is not the one that was earned; a parameter is not finite; the
run hangs or ends; memory grows; or something is left behind.
"""

import sys
from collections.abc import Sequence

from seedx.app.chaos import options as options_lib
from seedx.app.cli import command_line


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the trials; returns 1 if there are violations."""
  return command_line.run(
    _run, options_lib.Options(), "seedx chaos", __doc__, argv
  )


def _run(options: options_lib.Options) -> int:
  from seedx.app.chaos import trials  # It imports JAX.

  return trials.run(options)


if __name__ == "__main__":
  sys.exit(main())
