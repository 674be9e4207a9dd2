"""Draws the effect of the share of demonstrations on R2D3.

  python -m experiments.figures.demonstrations

The program records 20 demonstrations of the deep sea with a cue, and trains the
experiment `r2d3` with several shares of demonstrations in a batch. Runs that
already exist are not trained again. The picture shows the greedy return of 100
episodes after training. Without demonstrations, a random policy finds the
treasure in one of 2 ** size episodes. With demonstrations alone, the agent
never learns from its own mistakes.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence

import numpy as np
from matplotlib import figure

from seedx import app, envs, types
from seedx.acting import evaluator
from seedx.app import record
from seedx.app.cli import command_line
from seedx.app.settings import experiments
from seedx.runtime import seeding

_RATIOS = (0.0, 1 / 256, 1 / 64, 1 / 16, 1 / 4, 1.0)
_NAMES = ("0", "1/256", "1/64", "1/16", "1/4", "1")
_BEST = 0.99
_COLOUR = "#0072B2"


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line.

  Attributes:
    run_dir: directory of the recording, the runs and `demonstrations.png`.
    size: number of rows of the deep sea.
    total_steps: number of env steps of each run.
    seeds: number of runs of each ratio, with seeds 0, 1, 2 and so on.
  """

  run_dir: str = "runs/demonstrations"
  size: int = types.setting(20, low=2, high=100)
  total_steps: int = types.setting(60_000, low=1_000)
  seeds: int = types.setting(3, low=1, high=2**20)


def main(argv: Sequence[str] | None = None) -> int:
  """Records, trains and draws; returns the exit status."""
  return command_line.run(_draw, Options(), "demonstrations", __doc__, argv)


def greedy_return(
  run_dir: pathlib.Path, data: str, ratio: float, seed: int, options: Options
) -> float:
  """Returns the mean of a run, which is trained first if it does not exist."""
  config = experiments.load("r2d3").config
  config = dataclasses.replace(
    config,
    env=envs.Config("seedx:DeepSea", {"size": options.size, "cued": True}),
    total_steps=options.total_steps,
    seed=seed,
    replay=dataclasses.replace(
      config.replay,
      demonstrations=data if ratio else "",
      demonstration_ratio=ratio,
    ),
  )
  if not run_dir.exists():
    app.train(config, run_dir=str(run_dir), quiet=True)
  policy = app.load(run_dir)
  player = evaluator.Evaluator(policy.agent, evaluator.Config(policy.env, 100))
  played = player.play(policy.acting, seeding.evaluation_seed(seed, 2**18))
  return float(played.returns.mean())


def _draw(options: Options) -> int:
  run_dir = pathlib.Path(options.run_dir).expanduser()
  data = str(run_dir / "data")
  words = f"--env seedx:DeepSea --env-options size={options.size},cued=true"
  policy = "--policy seedx.envs.demonstrators:deep_sea --episodes 20"
  record.main([*words.split(), *policy.split(), "--output", data])
  returns = []
  for name, ratio in zip(_NAMES, _RATIOS, strict=True):
    of_seeds = [
      greedy_return(
        run_dir / f"{name.replace('/', '_')}-{seed}", data, ratio, seed, options
      )
      for seed in range(options.seeds)
    ]
    print(name, *(f"{x:.3f}" for x in of_seeds), flush=True)
    returns.append(of_seeds)
  picture = figure.Figure(figsize=(6, 4), dpi=100, layout="constrained")
  axes = picture.subplots()
  places = np.arange(len(_NAMES))
  axes.axhline(_BEST, color="gray", linewidth=0.8, linestyle="--")
  axes.plot(places, np.median(returns, axis=1), color=_COLOUR, linewidth=2)
  axes.plot(places, returns, "o", color=_COLOUR, alpha=0.5)
  axes.set_xticks(places, _NAMES)
  axes.set(xlabel="share of demonstrations in a batch", ylabel="greedy return")
  axes.set_ylim(-0.05, 1.05)
  picture.savefig(run_dir / "demonstrations.png")
  return 0


if __name__ == "__main__":
  sys.exit(main())
