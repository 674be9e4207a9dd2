"""Searches for the best values of an experiment's settings.

  seedx sweep ppo --search "learning_rate=log:1e-4..1e-2,td_lambda=0.9|0.95"

A sweep draws values of the settings and trains with each draw. As many trials
run at a time as this machine, or a Ray cluster (`--ray-address`), has CPUs for.
Trials that fall behind end early (ASHA). With `--seeds 3`, each draw trains
with three seeds, and the mean over seeds decides. At the end, new runs with
other seeds compare the best values with the experiment's defaults, because the
best of many draws is partly luck. The output is `sweep.md`, `sweep.png` and a
directory for each run. An experiment may have its own options: `seedx sweep
"impala --agent a2c"`.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from seedx import files, metrics, search_spaces, types
from seedx.app import plot
from seedx.app.cli import command_line
from seedx.app.settings import configs, wording
from seedx.app.studies import pool, search, study, trials

# Settings that cannot be searched, although they appear in labels.
_FIXED = ("env_options", "total_steps")
# File with the values of each draw.
_DRAWS = "draws.jsonl"
# Files and directories of the output.
_NAMES = (
  "sweep.md",
  "sweep.png",
  "trials",
  "default",
  "best",
  _DRAWS,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(study.Options):
  """Options of `seedx sweep`.

  Attributes:
    trials: number of draws of the methods "random" and "tpe".
    method: "random" draws values, "grid" tries all combinations of A|B|C, "tpe"
      draws near the values with the highest scores (Optuna's sampler).
    scheduler: "asha" ends a trial early if it falls behind, "none" does not.
    seeds: number of trials with different seeds for each draw; the mean of
      their scores ranks the draw.
    final_seeds: number of final runs with the best settings, and with the
      default settings; their seeds follow those of the trials.
  """

  trials: int = types.setting(16, low=1, high=2**20)
  method: Literal["random", "grid", "tpe"] = "random"
  scheduler: Literal["asha", "none"] = "asha"
  seeds: int = types.setting(1, low=1, high=2**20)
  final_seeds: int = types.setting(3, low=0, high=2**20)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the sweep; returns its exit status."""
  return command_line.run(
    _sweep, Options(), "seedx sweep", __doc__, argv, positional=("experiment",)
  )


def _sweep(options: Options) -> int:
  options, words, config = options.checked()
  kinds = {
    name: setting.kind
    for name, setting in configs.recorded(config).items()
    if setting.about.labels and name not in _FIXED
  }
  space = search_spaces.space(options.search, kinds)
  past: Sequence[Mapping[str, str]] = ()
  if options.resume:
    past = pool.Record(pathlib.Path(options.run_dir), _DRAWS).lines()
  if options.method == "grid":
    draws = search.Draws(search.grid(space))
  elif options.method == "tpe":
    draws = search.TpeDraws(space, options.trials, options.seed, past)
  else:
    draws = search.Draws(
      search_spaces.drawn(space, options.trials, options.seed)
    )
  for x in draws.examples:  # Refuses a wrong value before hours of training.
    trials.read([*words, *option_words(x)])
  ends: pool.Ends = pool.never
  if options.scheduler == "asha":
    ends = search.Halving(options.total_steps, options.score)
  return options.train(
    "sweep",
    _NAMES,
    lambda trained: _search(
      options, words, draws, config.run.env.env, trained, ends
    ),
    # Guided draws wait for scores; others wait for a cluster that may grow.
    waits=options.method != "tpe",
    resumes=options.resume,
  )


def _search(
  options: Options,
  words: Sequence[str],
  draws: search.Draws,
  env: str,
  trained: pool.Pool,
  ends: pool.Ends = pool.never,
) -> int:
  """Trains trials, then best and default values; returns the exit status."""
  run_dir, score = trained.run_dir, options.score
  drawn: list[tuple[Mapping[str, str], list[trials.Trial]]] = []
  draw_of: dict[str, int] = {}
  ended: dict[str, trials.Result] = {}
  record = pool.Record(run_dir, _DRAWS)
  num_past = len(record.lines()) if options.resume else 0

  def planned() -> Iterator[trials.Trial]:
    for k, x in enumerate(draws):
      if k >= num_past:
        record.add(x)
      group = _trials(options, words, k, x)
      drawn.append((x, group))
      draw_of.update((trial.name, k) for trial in group)
      yield from group

  def point(k: int) -> _Point:
    values, group = drawn[k]
    return _Point(f"{k:03d}", values, _results(group, run_dir, ended))

  total = options.seeds * len(draws)
  started = f"{total} trials of {words[0]} on {env} | {run_dir}"
  print(started, file=sys.stderr, flush=True)
  for trial, failure in trained.train(planned(), ends, total):
    ended[trial.name] = trials.Result.read(trial, run_dir, failure)
    k = draw_of[trial.name]
    if all(x.name in ended for x in drawn[k][1]):
      succeeded, last, _ = point(k).rank(score)
      draws.receive(k, last if succeeded else None)
  points = map(point, range(len(drawn)))
  ranked = sorted(points, key=lambda x: x.rank(score), reverse=True)
  table = _table(ranked, options.total_steps, score)
  files.write_file(run_dir / "sweep.md", table + "\n")
  print(table, flush=True)
  best = ranked[0].results
  if trained.stop.is_set() or not any(x.lines for x in best):
    return 1
  if any(x.error for x in best):
    print(f"all trials failed; their directories are in {run_dir}", flush=True)
    return 1
  if options.final_seeds:
    _compare_best(options, words, best[0].trial, env, trained, table, ended)
  return int(any(x.error for x in ended.values()))


def _compare_best(
  options: Options,
  words: Sequence[str],
  best: trials.Trial,
  env: str,
  trained: pool.Pool,
  table: str,
  ended: dict[str, trials.Result],
) -> None:
  """Trains the best and the default values with other seeds."""
  run_dir, score = trained.run_dir, options.score
  first = options.seed + options.seeds
  seeds = range(first, first + options.final_seeds)
  final = {
    "default": [trials.Trial(f"default/{seed}", words, seed) for seed in seeds],
    f"best: {best.label}": [
      dataclasses.replace(best, name=f"best/{seed}", seed=seed)
      for seed in seeds
    ],
  }
  all_final = [x for group in final.values() for x in group]
  for trial, failure in trained.train(all_final, total=len(all_final)):
    ended[trial.name] = trials.Result.read(trial, run_dir, failure)
  lines, sentences = {}, []
  for label, group in final.items():
    results = _results(group, run_dir, ended)
    # Failed runs are neither drawn nor part of the mean.
    lines[label] = [x.lines for x in results if x.lines and not x.error]
    sentences += [
      f"{label}: mean {_title(score)} {_mean(lines[label], score)} with seeds"
      f" {first} to {seeds[-1]}",
      *(f"{label}: {x.trial.name} {x.error}" for x in results if x.error),
    ]
  text = "\n".join(sentences)
  files.write_file(run_dir / "sweep.md", f"{table}\n\n{text}\n")
  plot.draw({env: lines}, run_dir / "sweep.png", score)
  print(text)
  print(f"sweep.md and sweep.png are in {run_dir}", flush=True)


class _Point(NamedTuple):
  """Drawn values of the settings, and the results of their seeds."""

  name: str
  values: Mapping[str, str]
  results: Sequence[trials.Result]

  def rank(self, score: str) -> tuple[bool, float, float]:
    """Ranks success above failure, then by last score, then by mean score."""
    scores = [
      [x[score] for x in result.lines if x.get(score) is not None] or [-np.inf]
      for result in self.results
    ]
    last = float(np.mean([x[-1] for x in scores]))
    mean = float(np.mean([np.mean(x) for x in scores]))
    return not any(x.error for x in self.results), last, mean


def _trials(
  options: Options, words: Sequence[str], k: int, values: Mapping[str, str]
) -> list[trials.Trial]:
  label = " ".join(f"{name}={value}" for name, value in values.items())
  name = f"trials/{k:03d}"
  return [
    trials.Trial(
      f"{name}/{seed}" if options.seeds > 1 else name,
      [*words, *option_words(values)],
      seed,
      label,
    )
    for seed in range(options.seed, options.seed + options.seeds)
  ]


def option_words(values: Mapping[str, str]) -> list[str]:
  """Returns values of settings as options of a command line."""
  words = []
  switches = {"true": True, "false": False}  # Their flags have no value.
  for name, value in values.items():
    words += wording.option(name, switches.get(value.lower(), value))
  return words


def _results(
  group: Sequence[trials.Trial],
  run_dir: pathlib.Path,
  ended: Mapping[str, trials.Result],
) -> list[trials.Result]:
  return [ended.get(x.name) or trials.Result.read(x, run_dir) for x in group]


def _title(score: str) -> str:
  return (
    "return" if score == study.RETURN else score.removeprefix(metrics.OF_INFO)
  )


def _text(value: float, score: str) -> str:
  return f"{value:.1f}" if score == study.RETURN else f"{value:.3g}"


def _table(ranked: Sequence[_Point], total_steps: int, score: str) -> str:
  names = ranked[0].values
  titles = ["trial", *names, _title(score), "env steps", "seconds", "end"]
  rows = [titles, ["---"] * len(titles)]
  for point in ranked:
    last = [x.last for x in point.results]
    steps = min(x.steps for x in point.results)
    early = "ended early" if all(last) else "not started"
    end = "done" if steps >= total_steps else early
    errors = [x.error for x in point.results if x.error]
    rows.append(
      [
        point.name,
        *point.values.values(),
        _mean([x.lines for x in point.results if x.lines], score),
        f"{steps:,}",
        f"{max(x.get('wall_seconds', 0.0) for x in last):.0f}",
        errors[0] if errors else end,
      ]
    )
  return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _mean(runs: Sequence[Sequence[Mapping[str, Any]]], score: str) -> str:
  """Formats the runs' last scores: their mean, then each."""
  scores = [x for run in runs if (x := run[-1].get(score)) is not None]
  if not scores:
    return "-"
  each = " ".join(_text(x, score) for x in scores)
  mean = _text(float(np.mean(scores)), score)
  return f"{mean} ({each})" if len(runs) > 1 else mean
