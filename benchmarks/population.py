"""A population on the device beside random search, of equal env steps.

  python -m benchmarks.population

A2C learns Catch with eight members, whose learning rates are drawn from
log:1e-5..1e-1. In random search, they keep them. Each pair of runs has the same
seed, so the same first draws. The score of a run is the median over its members
of their last 100 episodes' mean return; the table has means over the pairs, and
the one-sided 95% bootstrap bound of the mean difference.
"""

import argparse
import sys
import tempfile
from typing import Any, Literal

import numpy as np

from seedx import app, envs, metrics
from seedx.agents import a2c
from seedx.learning import learner
from seedx.pipelines import anakin
from seedx.pipelines.anakin import population

_MEMBERS = 8
_DRAWS = 10_000


def run(
  exploit: Literal["truncation", "none"], seed: int, total_steps: int
) -> list[float]:
  """Trains a population; returns the last return of each member."""
  config = anakin.Config(
    env=envs.Config("seedx:Catch"),
    agent=a2c.Config(reward_scale=1.0, learning_rate_end=1.0),
    num_envs=16,
    # Members have consecutive seeds.
    seed=_MEMBERS * seed,
    total_steps=total_steps,
    updates_per_call=10,
    learner=learner.Config(unroll_length=20),
    population=population.Config(
      members=_MEMBERS,
      vary={"learning_rate": "log:1e-5..1e-1"},
      ready_steps=25_600,
      exploit=exploit,
    ),
  )
  with tempfile.TemporaryDirectory() as folder:
    last: Any = app.train(config, run_dir=f"{folder}/run", quiet=True).metrics
  seeds = range(config.seed, config.seed + _MEMBERS)
  returns = [last[f"{metrics.OF_SEED}{k}"] for k in seeds]
  return [*map(float, returns)]


def low(differences: np.ndarray) -> float:
  """Returns the end of a one-sided 95% bootstrap interval of the mean."""
  rng = np.random.default_rng(0)
  size = len(differences)
  draws = differences[rng.integers(size, size=(_DRAWS, size))].mean(axis=1)
  return float(np.quantile(draws, 0.05))


def main() -> int:
  """Prints all pairs, and the differences of medians and of best members."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--pairs", type=int, default=10)
  parser.add_argument("--total-steps", type=int, default=300_000)
  options = parser.parse_args()
  rows = []
  for seed in range(options.pairs):
    pair = {
      "pbt": run("truncation", seed, options.total_steps),
      "random": run("none", seed, options.total_steps),
    }
    rows.append(pair)
    text = (
      f"{name}: median {np.median(x):.3f}, best {max(x):.3f}"
      for name, x in pair.items()
    )
    print(f"pair {seed}  {'  '.join(text)}", flush=True)
  print("| return | population | random search | difference | 95% bound |")
  print("|---|---|---|---|---|")
  for title, summary in (("median member", np.median), ("best member", np.max)):
    both = np.array([[summary(y) for y in x.values()] for x in rows]).T
    difference = both[0] - both[1]
    numbers = [*both.mean(axis=1), difference.mean(), low(difference)]
    print(f"| {title} | {' | '.join(f'{x:.2f}' for x in numbers)} |")
  return 0


if __name__ == "__main__":
  sys.exit(main())
