"""Measures how fast a run is, against what its own work costs.

  seedx benchmark --quick
  seedx benchmark --experiments "seed_vtrace,impala,apex_dqn --hidden-sizes 64"

It measures environments, acting and learning, each alone; the bound that
follows for the env steps per second on this machine's cores; and a run of the
experiment, with the CPU time of its processes. It does all in turn, several
times, and reports medians: a table, and a file with one JSON line per figure.
For growth, name an experiment several times, with other options:

  seedx benchmark --experiments "impala --num-actors 1,impala --num-actors 4"
  seedx benchmark --experiments "impala,impala --learner-devices 0,1"

With XLA_FLAGS=--xla_force_host_platform_device_count=2 in front, a CPU is two
devices.
"""

import sys
from collections.abc import Sequence

from seedx.app.benchmark import options as options_lib
from seedx.app.cli import command_line


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the benchmark; returns its exit status."""
  return command_line.run(
    _benchmark, options_lib.Options(), "seedx benchmark", __doc__, argv
  )


def _benchmark(options: options_lib.Options) -> int:
  from seedx.app.benchmark import session  # It imports JAX.

  return session.run(options)


if __name__ == "__main__":
  sys.exit(main())
