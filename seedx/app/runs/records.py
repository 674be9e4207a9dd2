"""`config.json`, the record of a run's settings."""

import dataclasses
import json
import os
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

import seedx
from seedx import files, types
from seedx.app.runs import run_folders
from seedx.app.settings import configs, experiments, wording

if TYPE_CHECKING:  # Imports JAX.
  from seedx.runtime import process

C = TypeVar("C")
# Only run directories of this format can be read.
FORMAT = 6
# Limits of config.json: bytes; characters of a name, or elements of a list.
_MAX_BYTES = 2**20
_MAX_LENGTH = 4096


@dataclasses.dataclass(frozen=True)
class Record:
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
      return short_name(self.experiment)
    # A pipeline that is a package has its config in one of its modules.
    pipeline = self.pipeline.removeprefix("seedx.pipelines.").partition(".")[0]
    return "_".join(filter(None, map(short_name, (pipeline, self.agent))))


def of(run: "process.Config", asked: object, experiment: str | None) -> Record:
  """Returns the content of `config.json` for a new run.

  Args:
    run: config of the pipeline.
    asked: config with all settings of the run.
    experiment: name of the experiment; None for a script.
  """
  recorded, values = configs.recorded(asked), configs.in_json(asked)
  return Record(
    experiment=experiment,
    pipeline=_class_name(type(run)),
    agent=_class_name(type(run.agent)),
    seedx=seedx.__version__,
    format=FORMAT,
    options={name: values[name] for name in recorded},
    beyond=configs.beyond_settings(run),
    unlabelled=[k for k, x in recorded.items() if not x.about.labels],
  )


def write(run_dir: pathlib.Path, content: Record) -> None:
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
  files.write_file(run_dir / run_folders.CONFIG, text + "\n")


def read(run_dir: str | os.PathLike[str]) -> Record:
  """Reads `config.json` of a run, which may have no metrics yet.

  Raises:
    types.ConfigError: there is no such run, or this version of seedx cannot
      read its `config.json`.
  """
  path = pathlib.Path(run_dir).expanduser()
  try:
    content = files.Folder(path).read_json(run_folders.CONFIG, _MAX_BYTES)
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
    raise foreign(path, f"format {format_!r}", seedx)
  kinds = {"seedx": str, "format": int, "options": dict}
  kinds |= {"pipeline": str, "agent": str}
  kinds |= dict.fromkeys({"beyond", "unlabelled"} & {*content}, list)
  if content.get("experiment", "") is not None:
    kinds["experiment"] = str
  if content.get("init_from") is not None:
    kinds["init_from"] = dict
  check_keys(path, content, kinds, seedx)
  names = {x.name for x in dataclasses.fields(Record)} & {*content}
  try:
    return Record(**{name: content[name] for name in names})
  except types.ConfigError as error:
    raise types.ConfigError(
      f"cannot read config.json in {str(path)!r} ({error})"
    ) from error


def restored(asked: C, saved: Record) -> C:
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


def not_restored(asked: object, saved: Record) -> str:
  """Returns the saved settings that a resume does not restore, as options."""
  values, settings = configs.in_json(asked), configs.settings(asked)
  return " ".join(
    shlex.join(wording.option(name, value))
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
        f"expected a valid {wording.flag(name)} in config.json, found"
        f" {value!r:.80}"
      )
  return configs.replaced(
    asked, {k: x for k, x in options.items() if settings[k].restored}
  )


def check_experiment(saved: Record, name: str | None, run_dir: str) -> None:
  """Raises types.ConfigError if another program trained the run."""
  if saved.experiment != name:
    raise types.ConfigError(
      f"expected a run of {name or 'a script'} to --resume, found one of"
      f" {saved.experiment or saved.pipeline} in {run_dir!r}"
    )


def check_classes(saved: Record, asked: Record, run_dir: str) -> None:
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


def check_resumed(saved: Record, asked: object, run_dir: str) -> None:
  """Checks that a run can be resumed with the settings of a config.

  Raises:
    types.ConfigError: a setting that must stay the same in a run differs, or
      `run_dir`, the option for the directory of a new run, is given.
  """
  old = configs.values(restored(asked, saved))
  new = configs.values(asked)
  recorded = configs.recorded(asked)
  changed = [
    wording.flag(name)
    for name, setting in recorded.items()
    if not setting.resumed and old[name] != new[name]
  ]
  if changed:
    allowed = [wording.flag(k) for k, x in recorded.items() if x.resumed]
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


def settings_of_all_hosts(asked: object) -> dict[str, Any]:
  """Returns the settings, as JSON, that all learner hosts must share."""
  values = configs.in_json(asked)
  recorded = configs.recorded(asked).values()
  return {
    x.name: values[x.name] for x in recorded if x.about.alike or not x.resumed
  }


def _check_single(path: pathlib.Path) -> None:
  """Raises types.ConfigError if a directory has runs, but is not one itself."""
  if runs := run_folders.inside(path):
    raise types.ConfigError(
      f"expected the directory of one run, found {str(path)!r} with"
      f" {len(runs)} runs in it; choose one, such as {str(runs[0])!r}"
    )


def short_name(name: str) -> str:
  """Returns the last part of the module's name in `MODULE[:ATTRIBUTE]`."""
  return name.partition(":")[0].rpartition(".")[2]


def _class_name(kind: type) -> str:
  module = experiments.program_module(kind.__module__)
  return f"{module}:{kind.__qualname__}"


def check_keys(
  path: pathlib.Path,
  content: Mapping[str, Any],
  kinds: Mapping[str, type],
  seedx: object,
) -> None:
  """Raises types.ConfigError if a run's file lacks a key of some type."""
  wrong = [
    key for key, kind in kinds.items() if not isinstance(content.get(key), kind)
  ]
  if wrong:
    problem = f"config.json without {', '.join(map(repr, wrong))}"
    raise foreign(path, problem, seedx)


def foreign(
  path: pathlib.Path, problem: str, version: object
) -> types.ConfigError:
  """Returns the error for a run that this version cannot read."""
  writer = f"seedx {version}" if isinstance(version, str) else "another program"
  if version == seedx.__version__:
    writer = f"an earlier commit of {writer}"
  return types.ConfigError(
    f"expected a run of format {FORMAT} in {str(path)!r}, found {problem},"
    f" which {writer} wrote; read it with that version, or train again, since"
    " --init-from takes only runs of this format"
    f"{types.see('a-run-of-another-format')}"
  )
