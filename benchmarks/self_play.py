"""Measures AlphaZero's self-play by pipeline and by number of games.

  python -m benchmarks.self_play

AlphaZero plays connect four against itself, with 32 simulations a move, and
learns. For each form of self-play and each number of simultaneous games, the
program measures moves per second, CPU time of a move, and the mean number of
positions in a call of the network. The search, the environment and learning are
also measured alone. The rest of a move's CPU time is the wire and the threads,
in `anakin` the environments.

Each measurement is added to the file `--results`, and is not repeated if it is
there. So the program continues where it was stopped, and with all results it
only draws the picture and prints a table. It measures one run at a time.
"""

import argparse
import dataclasses
import datetime
import functools
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import axes as axes_lib
from matplotlib import figure, ticker

from benchmarks import watched
from benchmarks.speed import figures, work
from experiments import alphazero, apex_alphazero, seed_alphazero
from seedx import app, envs, files, metrics
from seedx.app import compiled, devices
from seedx.app.runs import run_folders
from seedx.metrics import cpu_time
from seedx.on_cpu import allocator
from seedx.pipelines import sync
from seedx.runtime import process

_ROOT = pathlib.Path(__file__).parents[1]
_RESULTS = _ROOT / "benchmarks" / "self_play.json"
_PICTURE = _ROOT / "experiments" / "figures" / "self_play.png"
_GAMES = (8, 32, 128, 512)
_ENV = envs.Config("seedx:ConnectFour")
# More env steps than a run makes until the program ends it.
_TOTAL_STEPS = 10**10
_LOG_SECONDS = 0.5
_COLOURS = ("#0072B2", "#009E73", "#D55E00", "#E69F00", "#CC79A7")
_MARKERS = "os^Dv"
_SEARCH, _ENVIRONMENT, _LEARNING = "search", "environment", "learning"
# The parts of a run that are measured alone, in processes of their own.
_PARTS: dict[str, Callable[..., Any]] = {
  _SEARCH: work.acting,
  _ENVIRONMENT: lambda *arguments: work.environments(*arguments)[1],
  _LEARNING: work.learning,
}
# Number of games with which learning is measured; it hardly depends on them.
_LEARNING_GAMES = 64


class Form(NamedTuple):
  """A form of self-play.

  Attributes:
    config: function that returns a run's config for a number of games.
    workers: number of processes that search, each for its part of the games.
  """

  config: Callable[[int], process.Config]
  workers: int = 1


class Cell(NamedTuple):
  """The measurement of a run.

  Attributes:
    rate: moves per second.
    micros: CPU microseconds per move, of all processes.
    batch: mean number of positions in a call of the network.
    others: mean number of cores that other programs used; None if unknown.
  """

  rate: float
  micros: float
  batch: float
  others: float | None


class Results:
  """The measurements, kept in a JSON file.

  Attributes:
    values: results by name of a form or a part, then by number of games; and
      the machine.
  """

  def __init__(self, path: pathlib.Path) -> None:
    """Reads the file, if it exists."""
    self._path = path
    self.values: dict[str, Any] = {}
    if path.exists():
      self.values = json.loads(path.read_text())

  def add(self, name: str, games: int, measure: Callable[[], Any]) -> None:
    """Measures and writes the result, unless there is one."""
    of_name = self.values.setdefault(name, {})
    if str(games) in of_name:
      return
    print(f"{name}, {games}", file=sys.stderr, flush=True)
    of_name[str(games)] = measure()
    files.write_file(self._path, json.dumps(self.values, indent=1) + "\n")

  def cells(self, name: str) -> dict[int, Cell]:
    """Returns the measurements of a form by number of games, ascending."""
    of_name = self.values.get(name, {})
    return {int(n): Cell(**of_name[n]) for n in sorted(of_name, key=int)}

  def alone(self, part: str, games: float) -> float:
    """Returns the CPU microseconds per move of a part, interpolated."""
    of_part = self.values[part]
    sizes = sorted(of_part, key=int)
    costs = [of_part[size] for size in sizes]
    return float(np.interp(np.log(games), np.log([*map(int, sizes)]), costs))


def main(argv: Sequence[str] | None = None) -> int:
  """Measures what is missing, draws the picture and prints a table."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--results", type=pathlib.Path, default=_RESULTS)
  parser.add_argument("--picture", type=pathlib.Path, default=_PICTURE)
  parser.add_argument("--games", default=",".join(map(str, _GAMES)))
  parser.add_argument("--seconds", type=float, default=6.0)
  parser.add_argument("--limit", type=float, default=240.0, help="of the start")
  options = parser.parse_args(argv)
  results = Results(options.results)
  if not results.values:
    results.values["machine"] = machine()
  all_games = [int(x) for x in options.games.split(",")]
  for part in _PARTS:
    for size in _sizes(part, all_games):
      results.add(part, size, functools.partial(alone, part, size, options))
  for games in all_games:
    for name in FORMS:
      results.add(name, games, functools.partial(run, name, games, options))
  draw(results, options.picture)
  print(table(results))
  print(f"\n{conclusion(results)}")
  return 0


def run(
  name: str, games: int, options: argparse.Namespace
) -> dict[str, float | None]:
  """Measures a run after its first updates; returns a `Cell` as a dict."""
  with tempfile.TemporaryDirectory(prefix="seedx-") as folder:
    run_dir = pathlib.Path(folder, "run")
    arguments = repr((name, games, str(run_dir)))
    program = f"from benchmarks import self_play; self_play.train(*{arguments})"
    lines = f"{run_dir.name}/{run_folders.METRICS}"
    with watched.Program(
      [sys.executable, "-c", program],
      folder,
      watched.of_metrics,
      lines,
      PYTHONPATH=str(_ROOT),
    ) as trained:
      watched.wait([trained], _updates, options.limit)
      begin_seconds, others = time.monotonic(), cpu_time.Others()
      watched.wait(
        [trained],
        lambda x: watched.has_lasted(x, begin_seconds, options.seconds),
        options.limit,
      )
      cores = others.cores
    start = watched.first_after(trained, begin_seconds)
    assert start is not None
    cost = watched.cost(start, trained.samples[-1])
    measured = [
      x
      for x in metrics.read_lines(run_dir / run_folders.METRICS)
      if x["env_steps"] > start.progress.env_steps
    ]
  # Only central inference has batches of any size.
  rows = [x["inference_rows"] for x in measured if x.get("inference_rows")]
  batch = float(np.mean(rows)) if rows else games / FORMS[name].workers
  return Cell(cost.rate, cost.total, batch, cores)._asdict()


def train(name: str, games: int, run_dir: str) -> None:
  """Trains a form of self-play until a signal ends the process."""
  config = dataclasses.replace(
    FORMS[name].config(games),
    env=_ENV,
    total_steps=_TOTAL_STEPS,
    log_seconds=_LOG_SECONDS,
  )
  app.train(config, run_dir=run_dir, quiet=True)


def alone(part: str, games: int, options: argparse.Namespace) -> float:
  """Measures a part of a run in a process of its own; see `Results.alone`."""
  seconds = options.seconds / 2
  return float(work.in_process(_alone, part, games, seconds))


def _alone(part: str, games: int, seconds: float) -> float:
  # The same settings as in the programs of a run.
  compiled.keep()
  allocator.keep_freed_memory()
  devices.compute_on_own_threads()
  config = dataclasses.replace(
    FORMS[SELF_PLAY_1].config(games), env=_ENV, total_steps=_TOTAL_STEPS
  )
  cost: float = _PARTS[part](config, work.sizes_of(config), seconds)
  return 1e6 * cost


def draw(results: Results, path: pathlib.Path) -> None:
  """Draws rates, batches and costs of all forms by number of games."""
  picture = figure.Figure(figsize=(15, 5), dpi=100, layout="constrained")
  panels = picture.subplots(1, 3)
  titles = (
    "moves per second",
    "positions in a call of the network",
    "CPU microseconds per move",
  )
  for title, axes, index in zip(titles, panels, (0, 2, 1), strict=True):
    for name, colour, marker in zip(FORMS, _COLOURS, _MARKERS, strict=True):
      cells = results.cells(name)
      y = [cell[index] for cell in cells.values()]
      look: Any = {"color": colour, "marker": marker, "linewidth": 2}
      axes.plot([*cells], y, label=name, **look)
    axes.set(title=title, xlabel="simultaneous games")
    _look(axes)
  sizes = sorted(map(int, results.values[_SEARCH]))
  costs = [results.alone(_SEARCH, size) for size in sizes]
  label = "the search alone, by positions"
  panels[2].plot(sizes, costs, "--", color="0.4", label=label)
  handles, labels = panels[2].get_legend_handles_labels()
  panels[1].legend(handles, labels, frameon=False, loc="upper left")
  picture.savefig(path)


def table(results: Results) -> str:
  """Returns all measurements as a Markdown table."""
  header = (
    "self-play",
    "games",
    "moves/s",
    "positions in a call",
    "CPU us/move",
    "search",
    "learning",
    "environment",
    "the rest",
    "other programs' cores",
  )
  return watched.table(
    header,
    (
      _row(results, name, games, cell)
      for name in FORMS
      for games, cell in results.cells(name).items()
    ),
  )


def conclusion(results: Results) -> str:
  """Returns what a larger batch of central inference changes, in a sentence."""
  central, apart = results.cells(SEED), results.cells(SELF_PLAY_2)
  games = max(central.keys() & apart.keys())
  batches = central[games].batch, apart[games].batch
  costs = [results.alone(_SEARCH, batch) for batch in batches]
  sizes = results.values[_SEARCH].items()
  best = min(sizes, key=lambda size: size[1])[0]
  return (
    f"With {games} games, a call of the network has {batches[0]:.0f} positions"
    f" in {SEED} and {batches[1]:.0f} in {SELF_PLAY_2}; at these sizes the"
    f" search alone costs {costs[0]:.0f} and {costs[1]:.0f} CPU us per move. It"
    f" is cheapest with {best} positions: larger batches only pay where a"
    " call of the network costs the same for more positions, as on an"
    " accelerator."
  )


def machine() -> str:
  """Returns the date, the commit, and the machine's devices and versions."""
  commit = subprocess.run(
    ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
  ).stdout.strip()
  about = figures.machine()
  return (
    f"{datetime.date.today()}, commit {commit}, {about['devices']},"
    f" {about['cpus']} CPU cores ({about['processor']}), JAX"
    f" {about['versions']['jax']}"
  )


def _sizes(part: str, all_games: Sequence[int]) -> list[int]:
  """Returns the numbers of games with which a part is measured alone."""
  if part == _LEARNING:
    return [_LEARNING_GAMES]
  if part == _ENVIRONMENT:
    return list(all_games)
  workers = {form.workers for form in FORMS.values()}
  return sorted({games // w for games in all_games for w in workers})


def _row(results: Results, name: str, games: int, cell: Cell) -> list[str]:
  alone = [
    results.alone(_SEARCH, cell.batch),
    results.alone(_LEARNING, games),
    # Anakin's environments are part of its program, and cost much less.
    0.0 if name == ANAKIN else results.alone(_ENVIRONMENT, games),
  ]
  rest = cell.micros - sum(alone)
  numbers = games, cell.rate, cell.batch, cell.micros
  shares = [x / cell.micros for x in (*alone, rest)]
  others = "" if cell.others is None else f"{cell.others:.2f}"
  return [
    name,
    *(f"{x:,.0f}" for x in numbers),
    *(f"{x:.0%}" for x in shares),
    others,
  ]


def _look(axes: axes_lib.Axes) -> None:
  axes.set_xscale("log", base=2)
  axes.set_yscale("log")
  axes.xaxis.set_major_formatter(ticker.ScalarFormatter())
  axes.grid(color="0.88")
  axes.set_axisbelow(True)


def _updates(program: watched.Program) -> bool:
  """Returns whether a program has made at least three updates."""
  return bool(program.samples) and program.samples[-1].progress.updates > 2


def _anakin(games: int) -> process.Config:
  return dataclasses.replace(alphazero.EXPERIMENT.config, num_envs=games)


def _sync(games: int) -> process.Config:
  anakin = alphazero.EXPERIMENT.config
  return sync.Config(
    agent=anakin.agent,
    num_envs=games,
    learner=anakin.learner,
    replay=anakin.replay,
  )


def _seed(games: int) -> process.Config:
  return _with_actors(seed_alphazero.EXPERIMENT.config, games, 2)


def _with_actors(config: Any, games: int, number: int) -> Any:
  actors = dataclasses.replace(
    config.actors, num_actors=number, envs_per_actor=games // number
  )
  return dataclasses.replace(config, actors=actors)


def _self_play(workers: int) -> Form:
  config = apex_alphazero.EXPERIMENT.config
  return Form(lambda games: _with_actors(config, games, workers), workers)


ANAKIN = "anakin"
SEED = "seed, 2 actors"
SELF_PLAY_1, SELF_PLAY_2 = "apex, 1 worker", "apex, 2 workers"
FORMS = {
  ANAKIN: Form(_anakin),
  "sync": Form(_sync),
  SEED: Form(_seed),
  SELF_PLAY_1: _self_play(1),
  SELF_PLAY_2: _self_play(2),
}

if __name__ == "__main__":
  watched.end_on_signals()
  sys.exit(main())
