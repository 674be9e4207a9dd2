"""Draws the effect of learning from each unroll several times.

  python -m experiments.figures.reuse

The program trains PPO in the pipeline `pool`, whose updates draw unrolls from a
buffer, with `reuse` 1, 2 and 4 updates for each batch. An update has one epoch.
Runs that already exist are not trained again.

The picture shows returns against env steps and against updates. In Berner et
al. 2019, https://arxiv.org/abs/1912.06680, section 4.1 and figure 5, updates
are made at one rate, and experience at different rates: data that is used two
to three times slows learning about twofold, over updates. Env steps are then
fewer.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence

import numpy as np
from matplotlib import figure

from seedx import app, metrics, types
from seedx.app import plot
from seedx.app.cli import command_line
from seedx.app.settings import experiments

_COLOURS = {1: "#0072B2", 2: "#D55E00", 4: "#009E73"}
_RETURN = 475.0


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line.

  Attributes:
    run_dir: directory of the runs, and of `reuse.png`.
    env: environment.
    total_steps: number of env steps in each run.
    seeds: number of runs of each kind, with seeds 0, 1, 2 and so on.
    threshold: return whose first env step and update are printed.
  """

  run_dir: str = "runs/reuse"
  env: str = "CartPole-v1"
  total_steps: int = types.setting(200_000, low=10_000)
  seeds: int = types.setting(3, low=1, high=2**20)
  threshold: float = _RETURN

  def __post_init__(self) -> None:
    """Raises types.ConfigError for an option out of its range."""
    types.check_settings(self)


def main(argv: Sequence[str] | None = None) -> int:
  """Trains and draws; returns the exit status."""
  return command_line.run(_draw_all, Options(), "reuse", __doc__, argv)


def _lines(options: Options, reuse: int, seed: int) -> Sequence[metrics.Line]:
  """Returns a run's metrics; trains it first if it does not exist."""
  run_dir = pathlib.Path(options.run_dir) / f"{reuse}_{seed}"
  if not run_dir.exists():
    words = f"--epochs 1 --batch-size 16 --reuse {reuse} --seed {seed} --quiet"
    words += f" --env {options.env} --total-steps {options.total_steps}"
    app.main(
      experiments.load("pool_ppo"), [*words.split(), "--run-dir", str(run_dir)]
    )
  return metrics.read_lines(run_dir / "metrics.jsonl")


def _draw_all(options: Options) -> int:
  picture = figure.Figure(figsize=(12, 5), dpi=100, layout="constrained")
  left, right = picture.subplots(1, 2, sharey=True)
  for reuse, colour in _COLOURS.items():
    runs = [_lines(options, reuse, seed) for seed in range(options.seeds)]
    for axes, unit in ((left, "env_steps"), (right, "learner_steps")):
      curves = [plot.curve(lines, unit) for lines in runs]
      x = np.linspace(0, min(curve[-1, 0] for curve in curves), 100)
      y = [np.interp(x, *curve.T) for curve in curves]
      label = f"reuse {reuse}"
      axes.plot(x, np.mean(y, axis=0), color=colour, label=label, linewidth=2.5)
      axes.plot(x, np.transpose(y), color=colour, linewidth=0.7, alpha=0.5)
      first = [
        int(min(c[c[:, 1] >= options.threshold, 0], default=-1)) for c in curves
      ]
      ends = [round(float(curve[-1, 1]), 1) for curve in curves]
      print(f"{label}, {unit} at {options.threshold:g}: {first}; ends: {ends}")
  left.set(xlabel="env steps", ylabel="return")
  right.set(xlabel="updates")
  left.legend()
  picture.savefig(pathlib.Path(options.run_dir) / "reuse.png")
  return 0


if __name__ == "__main__":
  sys.exit(main())
