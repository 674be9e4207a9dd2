"""Directories of runs: reading and writing their files.

A run's directory holds `config.json`, which records the settings that the run
was started with, and `metrics.jsonl`. This module does not import JAX.
"""

import collections
import contextlib
import dataclasses
import itertools
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
from seedx.app.cli import command_line
from seedx.app.settings import configs, experiments, opponents

C = TypeVar("C")

# Only run directories of this format can be read.
FORMAT = 5

# Files of a run.
CONFIG = "config.json"
METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
CURVE = "learning_curve.png"
# Directory of the videos of a run's evaluations.
VIDEOS = "videos"
FILES = (CONFIG, METRICS, EVALUATIONS, CURVE)
# Exit status of a run whose last checkpoint could not be saved.
UNSAVED = os.EX_IOERR
# Limits of a search for runs: levels of directories; directories of a level,
# and entries of a directory.
_MAX_DEPTH = 3
_MAX_ENTRIES = 10_000
# Limits of config.json: bytes; characters of a name, or elements of a list.
_MAX_BYTES = 2**20
_MAX_LENGTH = 4096
# The value of `resume` that continues the run in `run_dir`, or begins it.
AUTO = "auto"


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
    beyond: names of the fields that a script has changed and that are not
      settings; their values are not recorded.
    unlabelled: names of options that labels and groups ignore.
    init_from: directory and checkpoint whose parameters the run began with, see
      `warm_start`; None for parameters of its own.
  """

  experiment: str | None
  pipeline: str
  agent: str
  seedx: str
  format: int
  options: Mapping[str, Any]
  beyond: Sequence[str] = ()
  unlabelled: Sequence[str] = ()
  init_from: Mapping[str, Any] | None = None

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value that is too long, or unprintable."""
    for name, value in (*vars(self).items(), *self.options.items()):
      is_sized = isinstance(value, str | list | tuple | Mapping)
      is_printable = not isinstance(value, str) or value.isprintable()
      if not is_printable or (is_sized and len(value) > _MAX_LENGTH):
        raise types.ConfigError(
          f"expected {name:.80} of at most {_MAX_LENGTH:,} elements or"
          f" printable characters, found {len(value):,}: {value!r:.80}"
        )

  @property
  def name(self) -> str:
    """A short name of what was trained, such as `ppo` or `sync_a2c`."""
    if self.experiment is not None:
      return _short(self.experiment)
    # A pipeline that is a package has its config in one of its modules.
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
  """A config with an agent, such as a pipeline's."""

  @property
  def agent(self) -> object:
    """The agent's config."""


def record(run: HasAgent, asked: object, experiment: str | None) -> Config:
  """Returns the content of `config.json` for a new run.

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


def new(path: str, name: str, names: Collection[str] = ()) -> pathlib.Path:
  """Makes the directory of a new run or study.

  Args:
    path: directory that the user named; runs/<name>/<time> if empty.
    name: name of the experiment or study.
    names: files that will be written there.

  Raises:
    types.ConfigError: one of these files exists, or the directory is not
      writable; nothing has been made.
  """
  if path:
    return pathlib.Path(files.open_folder(path, names))
  now = time.strftime("%Y%m%d-%H%M%S")
  return pathlib.Path(files.open_new_folder(pathlib.Path("runs", name), now))


@contextlib.contextmanager
def claimed(run_dir: str | os.PathLike[str]) -> Iterator[None]:
  """Locks a directory for training; other processes may still read it.

  Raises:
    types.ConfigError: another process trains there, or opening fails.
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


def write(run_dir: pathlib.Path, content: Config) -> None:
  """Writes `config.json`.

  Raises:
    types.ConfigError: the file is not writable, or would be too large to be
      read again.
  """

  def plain(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray):
      return value.tolist()
    return str(value)

  text = json.dumps(dataclasses.asdict(content), indent=2, default=plain)
  if len(text) >= _MAX_BYTES:
    raise types.ConfigError(
      f"expected settings of less than {_MAX_BYTES:,} bytes in config.json,"
      f" found {len(text):,}; let env_options name a file instead"
    )
  files.write_file(run_dir / CONFIG, text + "\n")


def inside(folder: str | os.PathLike[str]) -> list[pathlib.Path]:
  """Returns the runs with metrics in a directory, such as a sweep's, sorted.

  Directories below that of a run are not searched, and links not followed.
  """
  runs: list[pathlib.Path] = []
  level = [files.Folder(folder)]
  for _ in range(_MAX_DEPTH):
    below = itertools.chain.from_iterable(map(_folders, level))
    level = []
    for inner in itertools.islice(below, _MAX_ENTRIES):
      if _has_metrics(inner):
        runs.append(pathlib.Path(inner))
      else:
        level.append(inner)
  return sorted(runs)


def config(run_dir: str | os.PathLike[str]) -> Config:
  """Reads `config.json` of a run, which may have no metrics yet.

  Raises:
    types.ConfigError: there is no such run, or this version of seedx cannot
      read its `config.json`.
  """
  path = pathlib.Path(run_dir).expanduser()
  try:
    content = json.loads(files.Folder(path).read(CONFIG, _MAX_BYTES))
    # Raises ValueError if UTF-8 cannot encode a string.
    json.dumps(content, ensure_ascii=False).encode()
  except (FileNotFoundError, NotADirectoryError) as error:
    _check_single(path)
    raise types.ConfigError(
      f"expected the directory of a run, found no config.json in"
      f" {str(path)!r}; an experiment prints its directory at its end"
    ) from error
  except (OSError, ValueError, RecursionError) as error:
    raise types.ConfigError(
      f"cannot read config.json in {str(path)!r}"
      f" ({getattr(error, 'strerror', None) or error})"
    ) from error
  content = content if isinstance(content, dict) else {}
  seedx, format_ = content.get("seedx"), content.get("format")
  if format_ is None:  # A sweep and a comparison have a config.json, too.
    _check_single(path)
  if format_ not in (None, FORMAT):
    raise _foreign(path, f"format {format_!r}", seedx)
  kinds = {"seedx": str, "format": int, "options": dict}
  kinds |= {"pipeline": str, "agent": str}
  kinds |= dict.fromkeys({"beyond", "unlabelled"} & {*content}, list)
  if content.get("experiment", "") is not None:
    kinds["experiment"] = str
  if content.get("init_from") is not None:
    kinds["init_from"] = dict
  _check_keys(path, content, kinds, seedx)
  names = {x.name for x in dataclasses.fields(Config)} & {*content}
  try:
    return Config(**{name: content[name] for name in names})
  except types.ConfigError as error:
    raise types.ConfigError(
      f"cannot read config.json in {str(path)!r} ({error})"
    ) from error


def trusted(
  run_dir: str | os.PathLike[str], trust: bool, opponent: str = ""
) -> Config:
  """Reads `config.json`; unless `trust`, refuses code that is not seedx's.

  Args:
    run_dir: directory of the run.
    trust: whether the code that the run names may run.
    opponent: opponent in place of that of the run's game; empty for the same.

  Raises:
    types.ConfigError: see `config` and `check_code`.
  """
  run = config(run_dir)
  if not trust:
    # Only training evaluates, and asks for the code of evaluations. The user
    # names the other opponent.
    used = _against(run, "random" if opponent else "")
    options = {**used.options, "evaluate_env_options": {}}
    check_code(dataclasses.replace(used, options=options), run_dir)
  return _against(run, opponent)


def restored(asked: C, saved: Config) -> C:
  """Returns a config with the settings of a saved run of the same experiment.

  Raises:
    types.ConfigError: the experiment has other settings in this version, or a
      value is refused, see `replaced`.
  """
  other = {*configs.recorded(asked)} ^ {*saved.options}
  if other:
    raise types.ConfigError(
      f"expected a run with the options that {saved.name} has in this version,"
      f" found a difference in {', '.join(sorted(other))}; use seedx"
      f" {saved.seedx}, which wrote the run"
    )
  return replaced(asked, saved.options)


def not_restored(asked: object, saved: Config) -> str:
  """Returns the saved settings that a resume does not restore, as options."""
  values, settings = configs.in_json(asked), configs.settings(asked)
  return " ".join(
    shlex.join(command_line.option(name, value))
    for name, value in saved.options.items()
    if not settings[name].restored and value != values[name]
  )


def replaced(asked: C, options: Mapping[str, Any]) -> C:
  """Returns a config with values from `config.json`.

  Settings of one process or one start, such as addresses, keep their values.

  Raises:
    types.ConfigError: a value has another type, or is out of range.
  """
  settings = configs.settings(asked)
  for name, value in options.items():
    if not configs.fits(settings[name].kind, value):
      raise types.ConfigError(
        f"expected a valid {command_line.flag(name)} in config.json, found"
        f" {value!r:.80}"
      )
  return configs.replaced(
    asked, {k: x for k, x in options.items() if settings[k].restored}
  )


def check_code(
  saved: Config,
  run_dir: str | os.PathLike[str],
  own: Mapping[str, Any] | None = None,
) -> None:
  """Checks that a run names no code other than seedx's.

  Args:
    saved: content of the run's `config.json`, which anyone may have written.
    run_dir: directory of the run.
    own: settings given by the user's program or command line, by name; the code
      that they name may run. If None, a custom experiment is refused, too.

  Raises:
    types.ConfigError: the run names other code.
  """
  code = [
    shlex.join(command_line.option(name, value))
    for name, value in envs.code_in(saved.options).items()
    if own is None or own.get(name) != value
  ]
  remedy = "--trust (in Python, trust=True)"
  if own is not None:
    remedy = f"{' '.join(code)} or --trust"
  elif saved.experiment not in (None, *experiments.shipped()):
    code.append(f"the experiment {saved.experiment}")
  if code:
    raise types.ConfigError(
      f"config.json in {str(run_dir)!r} names code that would run here, but is"
      f" not part of seedx: {', '.join(code)}; if you trust its author, add"
      f" {remedy}{types.see('a-run-names-other-code')}"
    )


def check_experiment(saved: Config, name: str | None, run_dir: str) -> None:
  """Raises types.ConfigError if another program trained the run."""
  if saved.experiment != name:
    raise types.ConfigError(
      f"expected a run of {name or 'a script'} to --resume, found one of"
      f" {saved.experiment or saved.pipeline} in {run_dir!r}"
    )


def check_classes(saved: Config, asked: Config, run_dir: str) -> None:
  """Checks that a script resumes a run of the same pipeline and agent.

  Raises:
    types.ConfigError: the pipeline or the agent differs.
  """
  actual, expected = (f"{x.pipeline} with {x.agent}" for x in (saved, asked))
  if actual != expected:
    raise types.ConfigError(
      f"expected a run of {expected} to resume, found one of {actual} in"
      f" {run_dir!r}"
    )


def check_resumed(saved: Config, asked: object, run_dir: str) -> None:
  """Checks that a run can be resumed with the settings of a config.

  Raises:
    types.ConfigError: a setting that must stay the same in a run differs, or
      `run_dir`, the option for the directory of a new run, is given.
  """
  old = configs.values(restored(asked, saved))
  new = configs.values(asked)
  recorded = configs.recorded(asked)
  changed = [
    command_line.flag(name)
    for name, setting in recorded.items()
    if not setting.resumed and old[name] != new[name]
  ]
  if changed:
    allowed = [command_line.flag(k) for k, x in recorded.items() if x.resumed]
    raise types.ConfigError(
      "expected --resume with the options that the run began with, found"
      f" another {', '.join(changed)}; only {', '.join(allowed)} may change;"
      " --init-from begins a new run with the parameters of another"
    )
  if run_dir:
    raise types.ConfigError(
      "expected --resume without --run-dir, since a run resumes in its own"
      f" directory; found --run-dir {run_dir}"
    )


def read(run_dir: str | os.PathLike[str]) -> Run:
  """Reads a run, which may still be training.

  Raises:
    types.ConfigError: see `config`; or there are no metrics yet.
  """
  path = pathlib.Path(run_dir).expanduser()
  saved = config(path)
  _check_keys(path, saved.options, {"env": str, "seed": int}, saved.seedx)
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


def settings_of_all_hosts(asked: object) -> dict[str, Any]:
  """Returns the settings, as JSON, that all learner hosts must share."""
  values = configs.in_json(asked)
  recorded = configs.recorded(asked).values()
  return {
    x.name: values[x.name] for x in recorded if x.about.alike or not x.resumed
  }


def labels(runs: Sequence[Run]) -> list[str]:
  """Returns a label for each run; a group has one label and one environment.

  Runs are in the same group if they differ only in their seed and in settings
  without labels, such as `checkpoint_every_seconds`. A label is written as on a
  command line, such as `impala --agent a2c`: the name of the experiment, then
  the options that differ among its runs in at least one environment.
  """
  names = {run.experiment: _short(run.experiment) for run in runs}
  uses = collections.Counter(names.values())
  sizes = collections.Counter((run.experiment, run.env) for run in runs)
  options_of_runs = [
    {
      name: shlex.join(command_line.option(name, run.options[name]))
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


def _against(saved: Config, opponent: str) -> Config:
  """Returns a run's config with another opponent; see `opponents.against`."""
  options = dict(saved.options)
  if "env_options" in options:
    options["env_options"] = opponents.options_against(
      options["env_options"], opponent
    )
  return dataclasses.replace(saved, options=options)


def _folders(folder: files.Folder) -> list[files.Folder]:
  """Returns the directories in a directory; none if it cannot be read."""
  try:
    return folder.folders(_MAX_ENTRIES)
  except OSError:
    return []


def _has_metrics(folder: files.Folder) -> bool:
  """Returns whether a directory is a run's, as far as it can be read."""
  try:
    return folder.has(METRICS)
  except OSError:
    return False


def _check_single(path: pathlib.Path) -> None:
  """Raises types.ConfigError if a directory has runs, but is not one itself."""
  if runs := inside(path):
    raise types.ConfigError(
      f"expected the directory of one run, found {str(path)!r} with"
      f" {len(runs)} runs in it; choose one, such as {str(runs[0])!r}"
    )


def _short(name: str) -> str:
  """Returns the last part of the module's name in `MODULE[:ATTRIBUTE]`."""
  return name.partition(":")[0].rpartition(".")[2]


def _class_name(kind: type) -> str:
  module = experiments.program_module(kind.__module__)
  return f"{module}:{kind.__qualname__}"


def _lines(path: pathlib.Path, seedx: str) -> list[dict[str, Any]]:
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
    episode_return = line.get("episode_return", "")
    if episode_return is not None and not metrics.is_number(episode_return):
      raise _foreign(path, "metrics without 'episode_return'", seedx)
  return lines


def _check_keys(
  path: pathlib.Path,
  content: Mapping[str, Any],
  kinds: Mapping[str, type],
  seedx: object,
) -> None:
  wrong = [
    key for key, kind in kinds.items() if not isinstance(content.get(key), kind)
  ]
  if wrong:
    problem = f"config.json without {', '.join(map(repr, wrong))}"
    raise _foreign(path, problem, seedx)


def _foreign(
  path: pathlib.Path, problem: str, seedx: object
) -> types.ConfigError:
  """Returns the error for a run that this version cannot read."""
  writer = f"seedx {seedx}" if isinstance(seedx, str) else "another program"
  return types.ConfigError(
    f"expected a run of format {FORMAT} in {str(path)!r}, found {problem},"
    f" which {writer} wrote; read it with that version, or train again"
    f"{types.see('a-run-of-another-format')}"
  )
