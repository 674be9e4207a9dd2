"""Reads and writes the directories of runs.

The directory of a run holds `config.json`, which says how it was started, and
`metrics.jsonl`. This module does not import JAX.
"""

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

import seedx
from seedx import envs, files, metrics, types
from seedx.app.cli import command_line, configs, experiments

C = TypeVar("C")

# The format of a run's directory; no other is read.
FORMAT = 4

# Files of a run.
CONFIG = "config.json"
METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
CURVE = "learning_curve.png"
FILES = (CONFIG, METRICS, EVALUATIONS, CURVE)


@dataclasses.dataclass(frozen=True)
class Config:
  """The content of `config.json`.

  Attributes:
    experiment: name of the experiment, see `experiments.name_of`; None for a
      script that calls `app.train`.
    pipeline: class of the pipeline's config, `MODULE:CLASS`.
    agent: class of the agent's config, `MODULE:CLASS`.
    seedx: version of seedx that trained the run.
    format: format of the file.
    options: values of the settings, by name, as JSON.
    beyond: names of fields that were set to values that JSON cannot hold.
    unlabelled: names of options in which runs of a group may differ.
  """

  experiment: str | None
  pipeline: str
  agent: str
  seedx: str
  format: int
  options: Mapping[str, Any]
  beyond: Sequence[str] = ()
  unlabelled: Sequence[str] = ()

  @property
  def name(self) -> str:
    """A short name of what was trained, such as `ppo` or `sync_a2c`."""
    if self.experiment is not None:
      return _short(self.experiment)
    # The config of a pipeline that is a package lies in one of its modules.
    pipeline = self.pipeline.removeprefix("seedx.pipelines.").partition(".")[0]
    return "_".join(filter(None, map(_short, (pipeline, self.agent))))


@dataclasses.dataclass(frozen=True)
class Run:
  """A run whose metrics have been read.

  Attributes:
    experiment: name of the experiment or script.
    env: name of the environment.
    seed: seed of the run.
    options: values of the settings, by name, as JSON.
    unlabelled: see `Config`.
    lines: lines of metrics, at least one; env steps never decrease.
  """

  experiment: str
  env: str
  seed: int
  options: Mapping[str, Any]
  unlabelled: Sequence[str]
  lines: Sequence[Mapping[str, Any]]


class HasAgent(Protocol):
  """The config of a pipeline."""

  @property
  def agent(self) -> object:
    """The config of its agent."""


def record(run: HasAgent, asked: object, experiment: str | None) -> Config:
  """Makes the content of `config.json` for a new run.

  Args:
    run: config of the pipeline.
    asked: config with all settings of the run.
    experiment: name of the experiment; None for a script.
  """
  recorded = configs.recorded(asked)
  return Config(
    experiment=experiment,
    pipeline=_class_name(type(run)),
    agent=_class_name(type(run.agent)),
    seedx=seedx.__version__,
    format=FORMAT,
    options={
      name: value
      for name, value in configs.in_json(asked).items()
      if name in recorded
    },
    beyond=configs.beyond_settings(run),
    unlabelled=[k for k, x in recorded.items() if not x.about.labels],
  )


def new(asked: str, name: str, names: Collection[str] = ()) -> pathlib.Path:
  """Makes the directory of what begins.

  Args:
    asked: the directory that the user asks for; runs/<name>/<time> if empty.
    name: of what begins.
    names: what it writes there.

  Raises:
    types.ConfigError: one of these names is taken, or nothing can be written
      there; then nothing has been made.
  """
  if asked:
    return pathlib.Path(files.open_folder(asked, names))
  now = time.strftime("%Y%m%d-%H%M%S")
  return pathlib.Path(files.open_new_folder(pathlib.Path("runs", name), now))


@contextlib.contextmanager
def claimed(run_dir: str | os.PathLike[str]) -> Iterator[None]:
  """Locks a directory: no other process may train in it, but any may read it.

  Raises:
    types.ConfigError: another process trains in it.
  """
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(files.Folder(run_dir).locked())
    except BlockingIOError as error:
      raise types.ConfigError(
        f"another process is training in {str(run_dir)!r}; wait until it ends,"
        f" or stop it{types.see('another-process-is-training')}"
      ) from error
    except OSError as error:
      raise types.ConfigError(
        f"cannot use the directory {str(run_dir)!r} ({error.strerror}); choose"
        " another"
      ) from error
    yield


def write(run_dir: pathlib.Path, asked: Config) -> None:
  """Writes `config.json`.

  Raises:
    types.ConfigError: it is not writable.
  """

  def plain(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray):
      return value.tolist()
    return str(value)

  text = json.dumps(dataclasses.asdict(asked), indent=2, default=plain)
  files.write_file(run_dir / CONFIG, text + "\n")


def config(run_dir: str | os.PathLike[str]) -> Config:
  """Reads `config.json` of a run, which may have no metrics yet.

  Raises:
    types.ConfigError: there is no such run, or this version of seedx cannot
      read its `config.json`.
  """
  path = pathlib.Path(run_dir).expanduser()
  try:
    content = json.loads(files.Folder(path).read(CONFIG))
    json.dumps(content, ensure_ascii=False).encode()  # Half a character fails.
  except (FileNotFoundError, NotADirectoryError) as error:
    raise types.ConfigError(
      f"expected the directory of a run, found no config.json in"
      f" {str(path)!r}; an experiment prints its directory in its last line"
    ) from error
  except (OSError, ValueError, RecursionError) as error:
    raise types.ConfigError(
      f"cannot read config.json in {str(path)!r}"
      f" ({getattr(error, 'strerror', None) or error})"
    ) from error
  content = content if isinstance(content, dict) else {}
  seedx, format_ = content.get("seedx"), content.get("format")
  if format_ not in (None, FORMAT):
    raise _foreign(path, f"format {format_!r}", seedx)
  kinds = {"seedx": str, "format": int, "options": dict}
  kinds |= {"pipeline": str, "agent": str}
  kinds |= dict.fromkeys({"beyond", "unlabelled"} & {*content}, list)
  if content.get("experiment", "") is not None:
    kinds["experiment"] = str
  _check_keys(path, content, kinds, seedx)
  return Config(
    experiment=content["experiment"],
    pipeline=content["pipeline"],
    agent=content["agent"],
    seedx=content["seedx"],
    format=content["format"],
    options=content["options"],
    beyond=content.get("beyond", ()),
    unlabelled=content.get("unlabelled", ()),
  )


def trusted(run_dir: str | os.PathLike[str], trust: bool) -> Config:
  """Reads `config.json` of a run that may name only seedx's code.

  Args:
    run_dir: directory of the run.
    trust: whether it may name any.

  Raises:
    types.ConfigError: as `config` and `check_code` do.
  """
  found = config(run_dir)
  if not trust:
    check_code(found, run_dir)
  return found


def restored(asked: C, before: Config) -> C:
  """Returns a config with the settings of a run.

  Args:
    asked: config of the same experiment.
    before: the run.

  Raises:
    types.ConfigError: the experiment has other settings in this version.
  """
  other = {*configs.recorded(asked)} ^ {*before.options}
  if other:
    raise types.ConfigError(
      f"expected a run with the options that {before.name} has in this version,"
      f" found a difference in {', '.join(sorted(other))}; use seedx"
      f" {before.seedx}, which wrote the run"
    )
  return replaced(asked, before.options)


def not_restored(asked: object, before: Config) -> str:
  """Settings of a run that another process has to be given again, as words.

  Args:
    asked: config with all settings of the process that resumes it.
    before: the run.
  """
  now, known = configs.in_json(asked), configs.settings(asked)
  return " ".join(
    shlex.join(command_line.option(name, value))
    for name, value in before.options.items()
    if not known[name].restored and value != now[name]
  )


def replaced(asked: C, options: Mapping[str, Any]) -> C:
  """Returns a config with settings that `config.json` has.

  Those of a process or of a start, such as addresses, stay as they are.

  Raises:
    types.ConfigError: a value is of another type, or out of range.
  """
  known = configs.settings(asked)
  for name, value in options.items():
    if not configs.fits(known[name].kind, value):
      raise types.ConfigError(
        f"expected a value of {command_line.flag(name)} in config.json, found"
        f" {value!r:.80}"
      )
  return configs.replaced(
    asked, {k: x for k, x in options.items() if known[k].restored}
  )


def check_code(
  before: Config,
  run_dir: str | os.PathLike[str],
  own: Mapping[str, Any] | None = None,
) -> None:
  """Checks that a run names no code but seedx's: anyone may have written it.

  Args:
    before: the run.
    run_dir: its directory.
    own: settings that the user's program or command line says, by their names:
      code that they name may run. If None, the experiment may not, either.

  Raises:
    types.ConfigError: it names other code.
  """
  code = [
    shlex.join(command_line.option(name, value))
    for name, value in envs.code_in(before.options).items()
    if own is None or own.get(name) != value
  ]
  way = "--trust (in Python, trust=True)"
  if own is not None:
    way = f"{' '.join(code)} here too, or --trust"
  elif before.experiment not in (None, *experiments.shipped()):
    code.append(f"the experiment {before.experiment}")
  if code:
    raise types.ConfigError(
      f"expected {way}, as config.json in {str(run_dir)!r} names code that does"
      f" not come with seedx: {', '.join(code)}; say that only if you trust who"
      f" wrote it, since it runs here{types.see('a-run-names-other-code')}"
    )


def check_experiment(before: Config, name: str | None, run_dir: str) -> None:
  """Raises types.ConfigError if another program trained the run."""
  if before.experiment != name:
    raise types.ConfigError(
      f"expected a run of {name or 'a script'} to --resume, found one of"
      f" {before.experiment or before.pipeline} in {run_dir!r}"
    )


def check_classes(before: Config, own: Config, run_dir: str) -> None:
  """Checks that a script resumes a run of the same pipeline and agent.

  Args:
    before: the run.
    own: what the script trains.
    run_dir: directory of the run.

  Raises:
    types.ConfigError: the pipeline or the agent is another one.
  """
  found, expected = (f"{x.pipeline} with {x.agent}" for x in (before, own))
  if found != expected:
    raise types.ConfigError(
      f"expected a run of {expected} to resume, found one of {found} in"
      f" {run_dir!r}"
    )


def check_resumed(before: Config, asked: object, run_dir: str) -> None:
  """Checks that a run can resume with the settings of a config.

  Args:
    before: the run.
    asked: config with all settings.
    run_dir: directory that it names for a new run; empty for none.

  Raises:
    types.ConfigError: a setting differs on which the state of the run depends,
      or there is another directory.
  """
  old = configs.values(restored(asked, before))
  new = configs.values(asked)
  known = configs.recorded(asked)
  changed = [
    command_line.flag(name)
    for name, setting in known.items()
    if not setting.resumed and old[name] != new[name]
  ]
  if changed:
    may = [command_line.flag(k) for k, x in known.items() if x.resumed]
    raise types.ConfigError(
      "expected --resume with the options that the run began with, of which"
      f" only {', '.join(may)} may change; found another {', '.join(changed)}"
    )
  if run_dir:
    raise types.ConfigError(
      "expected --resume without --run-dir, because a run resumes in its own"
      f" directory; found --run-dir {run_dir}"
    )


def read(run_dir: str | os.PathLike[str]) -> Run:
  """Reads a run, which may still be training.

  Raises:
    types.ConfigError: as in `config`, or there are no metrics yet.
  """
  path = pathlib.Path(run_dir).expanduser()
  asked = config(path)
  _check_keys(path, asked.options, {"env": str, "seed": int}, asked.seedx)
  return Run(
    experiment=asked.experiment or asked.name,
    env=asked.options["env"],
    seed=asked.options["seed"],
    options=asked.options,
    unlabelled=asked.unlabelled,
    lines=_lines(path, asked.seedx),
  )


def of_all_hosts(asked: object) -> dict[str, Any]:
  """The settings that all learner hosts of a run must have alike, as JSON."""
  values = configs.in_json(asked)
  known = configs.recorded(asked).values()
  return {
    x.name: values[x.name] for x in known if x.about.alike or not x.resumed
  }


def labels(runs: Sequence[Run]) -> list[str]:
  """Labels runs, so that equal runs of an environment form a group.

  Runs are in the same group if they differ only in their seed and in settings
  without labels, such as how often they are saved. A label is the name of the
  experiment and the options in which its groups differ in any environment, as
  on a command line: `impala --agent a2c`.

  Returns:
    The label of each run. Runs of the same environment and label are a group.
  """
  names = {run.experiment: _short(run.experiment) for run in runs}
  shorts = collections.Counter(names.values())
  sizes = collections.Counter((run.experiment, run.env) for run in runs)
  asked = [
    {
      name: shlex.join(command_line.option(name, run.options[name]))
      for name in sorted(run.options)
      if name not in ("env", "seed", *run.unlabelled)
    }
    for run in runs
  ]
  counts = collections.Counter(
    (run.experiment, run.env, *item)
    for run, options in zip(runs, asked, strict=True)
    for item in options.items()
  )
  differing = {
    (experiment, name)
    for (experiment, env, name, _), count in counts.items()
    if count < sizes[experiment, env]
  }
  found = []
  for run, options in zip(runs, asked, strict=True):
    name = names[run.experiment]
    if shorts[name] > 1:
      name = run.experiment.partition(":")[0]
    words = [x for k, x in options.items() if (run.experiment, k) in differing]
    found.append(" ".join([name, *words]))
  return found


def _short(name: str) -> str:
  """The last part of the module's name in `MODULE` or `MODULE:ATTRIBUTE`."""
  return name.partition(":")[0].rpartition(".")[2]


def _class_name(kind: type) -> str:
  module = experiments.program_module(kind.__module__)
  return f"{module}:{kind.__qualname__}"


def _lines(path: pathlib.Path, seedx: str) -> list[dict[str, Any]]:
  """Reads `metrics.jsonl` of a run."""
  try:
    lines = metrics.read_lines(path / METRICS)
  except FileNotFoundError:
    lines = []
  except OSError as error:
    raise types.ConfigError(
      f"cannot read metrics.jsonl in {str(path)!r} ({error.strerror})"
    ) from error
  except KeyError as error:
    raise _foreign(path, f"metrics without {error}", seedx) from error
  if not lines:
    raise types.ConfigError(
      f"expected metrics in {str(path)!r}, found none yet; wait until the run"
      " has begun to learn"
    )
  for line in lines:
    found = line.get("episode_return", "")
    if found is not None and not metrics.is_number(found):
      raise _foreign(path, "metrics without 'episode_return'", seedx)
  return lines


def _check_keys(
  path: pathlib.Path,
  content: Mapping[str, Any],
  kinds: Mapping[str, type],
  seedx: object,
) -> None:
  """Checks that each key has a value of its type."""
  wrong = [
    key for key, kind in kinds.items() if not isinstance(content.get(key), kind)
  ]
  if wrong:
    found = f"config.json without {', '.join(map(repr, wrong))}"
    raise _foreign(path, found, seedx)


def _foreign(
  path: pathlib.Path, found: str, seedx: object
) -> types.ConfigError:
  """The error for a file that this version of seedx cannot read."""
  writer = f"seedx {seedx}" if isinstance(seedx, str) else "another program"
  return types.ConfigError(
    f"expected a run of format {FORMAT} in {str(path)!r}, found {found}, which"
    f" {writer} wrote; read it with that version, or train again"
    f"{types.see('a-run-of-another-format')}"
  )
