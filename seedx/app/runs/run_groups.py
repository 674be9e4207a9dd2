"""Runs with their metrics, and the groups that plots compare."""

import collections
import dataclasses
import os
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from seedx import metrics, types
from seedx.app.runs import records, run_folders
from seedx.app.settings import wording


@dataclasses.dataclass(frozen=True)
class Run:
  """A run whose metrics have been read.

  Attributes:
    experiment: name of the experiment or script.
    env: name of the environment.
    seed: seed of the run.
    options: values of the settings, by name, as JSON.
    unlabelled: see `records.Record`.
    lines: lines of metrics, at least one; env steps never decrease.
  """

  experiment: str
  env: str
  seed: int
  options: Mapping[str, Any]
  unlabelled: Sequence[str]
  lines: Sequence[Mapping[str, Any]]


def read(run_dir: str | os.PathLike[str]) -> Run:
  """Reads a run, which may still be training.

  Raises:
    types.ConfigError: see `records.read`; or there are no metrics yet.
  """
  path = pathlib.Path(run_dir).expanduser()
  saved = records.read(path)
  records.check_keys(
    path, saved.options, {"env": str, "seed": int}, saved.seedx
  )
  # In labels, only whether a run began with the parameters of another, because
  # each seed may have another origin.
  warm = {} if saved.init_from is None else {"init_from": True}
  return Run(
    experiment=saved.experiment or saved.name,
    env=saved.options["env"],
    seed=saved.options["seed"],
    options={**saved.options, **warm},
    unlabelled=saved.unlabelled,
    lines=_lines(path, saved.seedx),
  )


def labels(runs: Sequence[Run]) -> list[str]:
  """Returns a label for each run; a group has one label and one environment.

  Runs are in the same group if they differ only in their seed and in settings
  without labels, such as `checkpoint_every_seconds`. A label is written as on a
  command line, such as `impala --agent a2c`: the name of the experiment, then
  the options that differ among its runs in at least one environment.
  """
  names = {run.experiment: records.short_name(run.experiment) for run in runs}
  uses = collections.Counter(names.values())
  sizes = collections.Counter((run.experiment, run.env) for run in runs)
  options_of_runs = [
    {
      name: shlex.join(wording.option(name, run.options[name]))
      for name in sorted(run.options)
      if name not in ("env", "seed", *run.unlabelled)
    }
    for run in runs
  ]
  counts = collections.Counter(
    (run.experiment, run.env, *item)
    for run, options in zip(runs, options_of_runs, strict=True)
    for item in options.items()
  )
  differing = {
    (experiment, name)
    for (experiment, env, name, _), count in counts.items()
    if count < sizes[experiment, env]
  }
  labels = []
  for run, options in zip(runs, options_of_runs, strict=True):
    name = names[run.experiment]
    if uses[name] > 1:
      name = run.experiment.partition(":")[0]
    words = [x for k, x in options.items() if (run.experiment, k) in differing]
    labels.append(types.printable(" ".join([name, *words])))
  return labels


def _lines(path: pathlib.Path, seedx: str) -> list[dict[str, Any]]:
  try:
    lines = metrics.read_lines(path / run_folders.METRICS)
  except FileNotFoundError:
    lines = []
  except OSError as error:
    raise types.ConfigError(
      f"cannot read metrics.jsonl in {str(path)!r} ({error.strerror})"
    ) from error
  except KeyError as error:
    raise records.foreign(path, f"metrics without {error}", seedx) from error
  if not lines:
    raise types.ConfigError(
      f"expected metrics in {str(path)!r}, found none yet; wait until the run"
      " has begun to learn"
    )
  for line in lines:
    episode_return = line.get("episode_return", "")
    if episode_return is not None and not metrics.is_number(episode_return):
      raise records.foreign(path, "metrics without 'episode_return'", seedx)
  return lines
