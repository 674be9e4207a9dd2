"""Measures the prioritized replay and matrix products, each alone.

  python -m benchmarks.components --seconds 5
  python -m benchmarks.components --products "impala,ppo --hidden-sizes 64"

`--products` measures the share of learning's CPU time that its matrix products
would need at the speed of one large product. `host_path` and `scale` measure
the wire.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks import matrix_products
from benchmarks.peers import replays
from benchmarks.speed import figures, work
from benchmarks.speed.figures import Figure
from seedx.app import devices
from seedx.app.studies import trials

_REPLAY_STEPS = 2**20
# Seconds, by the names of a component and of a figure.
Costs = dict[tuple[str, str], float]


def main(argv: Sequence[str] | None = None) -> int:
  """Measures the replay, or with `--products` the matrix products."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--seconds", type=float, default=5.0)
  parser.add_argument("--products", default="", help="experiments A,B")
  parser.add_argument("--output", default="components.jsonl")
  options = parser.parse_args(argv)
  results = figures.Figures(options.output)
  if options.products:
    for words in trials.experiments_of(options.products.split(",")):
      share = work.in_process(
        matrix_products.of_learning, words, options.seconds
      )
      name = "learning at the speed of a matrix product"
      results.add(words, [Figure(name, "", share)])
  else:
    costs = work.in_process(_with_a_server, replay_alone, options.seconds)
    for (of, figure), cost in costs.items():
      results.add(of, [Figure(figure, "us", 1e6 * cost)])
  print(results.table())
  return 0


def _with_a_server(measure: Callable[[float], Costs], seconds: float) -> Costs:
  """Configures JAX as in a learner with a server, then measures."""
  devices.compute_on_own_threads()
  return measure(seconds)


def replay_alone(seconds: float) -> Costs:
  """Measures a prioritized replay of 2^20 steps for some seconds.

  Returns:
    Median seconds to add 512 steps of CartPole, to sample 512 windows and to
    write their new priorities, and the sum of the three.
  """
  memory = replays.of_seedx(_REPLAY_STEPS, is_prioritized=True)
  fill = _REPLAY_STEPS // replays.BATCH
  costs = replays.measure(memory, fill, seconds, clock=time.monotonic)
  costs["add, sample and update"] = costs.pop("all")
  name = f"prioritized replay of {_REPLAY_STEPS} steps, {replays.BATCH} a time"
  return {(name, figure): cost for figure, cost in costs.items()}


if __name__ == "__main__":
  sys.exit(main())
