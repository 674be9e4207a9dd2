"""Runs that experiments left on disk: what was asked, and what came of it.

A run's directory holds `config.json` and `metrics.jsonl`. Reading them imports
no JAX.
"""

import collections
import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import seedx
from seedx import metrics, types
from seedx.app import command_line, configs, experiments

C = TypeVar("C")

# Of `config.json`. What format 1 measured can still be drawn.
FORMAT = 2
_READABLE = (1, FORMAT)

# They say which directory it is, to whom reads it there.
_OF_THIS_START = ("run_dir", "resume")

# What may be another when a run is resumed: what its state does not depend on.
_RESUMED = (
  *("total_steps", "log_seconds", "checkpoint_every_seconds"),
  *("evaluate_every_steps", "evaluate_episodes", "learner_devices"),
  *("inference_devices", "inference_batch_size", "inference_wait_seconds"),
  *("env_threads", "num_actors", "num_workers", "queue_capacity", "device"),
  *("role", "address", "server", "server_addresses"),
)

# What does not make a run another experiment: its seed, where it runs or
# writes, and how often it is saved or evaluated.
_BESIDE_THE_POINT = (
  *("env", "seed", "run_dir", "resume", "log_seconds"),
  *("role", "address", "server", "server_addresses"),
  *("checkpoint_every_seconds", "evaluate_every_steps", "evaluate_episodes"),
)


@dataclasses.dataclass(frozen=True)
class Config:
  """What was asked of a run.

  Attributes:
    experiment: the program's, see `experiments.name_of`; None for a script
      that calls `app.train`.
    pipeline: of the pipeline's config, `MODULE:CLASS`.
    agent: of the agent's config, likewise.
    seedx: the version that ran it.
    format: of the file.
    options: the settings by their names, as JSON has them.
    beyond: fields that were changed and that JSON cannot hold.
  """

  experiment: str | None
  pipeline: str
  agent: str
  seedx: str
  format: int
  options: Mapping[str, Any]
  beyond: Sequence[str] = ()

  @property
  def name(self) -> str:
    """What a person would call it, such as `ppo`."""
    if self.experiment is not None:
      return short(self.experiment)
    # A pipeline that is a package has its config in one of its modules.
    pipeline = self.pipeline.removeprefix("seedx.pipelines.").partition(".")[0]
    return "_".join(filter(None, map(short, (f".{pipeline}", self.agent))))


@dataclasses.dataclass(frozen=True)
class Run:
  """A run: what was asked of it, and what it measured.

  Attributes:
    path: its directory.
    experiment: the program's, such as `ppo`.
    env: which environment.
    seed: of the run.
    options: the settings by their names, as JSON has them.
    lines: of its metrics, at least one, with rising env steps.
  """

  path: pathlib.Path
  experiment: str
  env: str
  seed: int
  options: Mapping[str, Any]
  lines: Sequence[Mapping[str, Any]]


def short(name: str) -> str:
  """The last part of a module's name, whatever follows a colon."""
  return name.partition(":")[0].rpartition(".")[2]


def record(run: Any, asked: Any, experiment: str | None) -> Config:
  """What `config.json` is to say.

  Args:
    run: the pipeline's config.
    asked: the config with all the settings.
    experiment: see `Config`.
  """
  return Config(
    experiment=experiment,
    pipeline=_class_name(type(run)),
    agent=_class_name(type(run.agent)),
    seedx=seedx.__version__,
    format=FORMAT,
    options={
      name: value
      for name, value in configs.in_json(asked).items()
      if name not in _OF_THIS_START
    },
    beyond=configs.beyond_settings(run),
  )


@contextlib.contextmanager
def claimed(run_dir: pathlib.Path) -> Iterator[None]:
  """Keeps other processes from training in a directory; one may read it.

  Raises:
    types.ConfigError: another process does.
  """
  directory = os.open(run_dir, os.O_RDONLY)
  try:
    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    os.close(directory)
    raise types.ConfigError(
      f"expected nobody to train in {str(run_dir)!r}, found a process that"
      " does; wait until it ends, or end it"
    ) from error
  except OSError:
    pass  # Some network file systems lock no directories.
  try:
    yield
  finally:
    os.close(directory)


def write(run_dir: pathlib.Path, asked: Config) -> None:
  """Writes `config.json`: which program runs here, with which options."""
  metrics.write_config(run_dir, dataclasses.asdict(asked))


def config(run_dir: str | os.PathLike[str]) -> Config:
  """Reads what was asked of a run; it need not have measured anything yet.

  Raises:
    types.ConfigError: there is no such run, or another version of seedx wrote
      its `config.json`.
  """
  path = pathlib.Path(run_dir).expanduser()
  if not path.is_dir():
    raise types.ConfigError(
      f"expected the directory of a run, found none at {str(path)!r};"
      " an experiment's last line says where it left its own"
    )
  try:
    text = (path / "config.json").read_text(encoding="utf-8")
  except FileNotFoundError as error:
    raise types.ConfigError(
      f"expected the directory of a run, found no config.json in"
      f" {str(path)!r}; an experiment's last line says where it left its own"
    ) from error
  except (OSError, UnicodeDecodeError) as error:
    raise types.ConfigError(
      f"cannot read config.json in {str(path)!r} ({error})"
    ) from error
  return _config(path, text)


def restored(asked: C, before: Config) -> C:
  """A config with the settings of a run.

  Raises:
    types.ConfigError: the program has other settings now.
  """
  if before.format != FORMAT:
    raise types.ConfigError(
      f"expected a run of format {FORMAT}, found format {before.format}, which"
      f" seedx {before.seedx} wrote; go on with that version, or train again"
    )
  own = {*configs.settings(asked)} - {*_OF_THIS_START}
  other = own ^ set(before.options)
  if other:
    raise types.ConfigError(
      f"expected a run with the options that {before.name} has now, found a"
      f" difference in {', '.join(sorted(other))}: seedx {before.seedx} wrote"
      " it; use that version with it"
    )
  return configs.replaced(asked, before.options)


def check_experiment(before: Config, name: str | None, run_dir: str) -> None:
  """Raises types.ConfigError where another program has run."""
  if before.experiment != name:
    raise types.ConfigError(
      f"expected a run of {name or 'a script'} to --resume, found one of"
      f" {before.experiment or before.pipeline} in {run_dir!r}"
    )


def check_classes(before: Config, own: Config, run_dir: str) -> None:
  """Raises types.ConfigError where a script trains another pipeline or agent.

  Args:
    before: what was asked of the run.
    own: what the script asks.
    run_dir: of the run.
  """
  found, expected = (f"{x.pipeline} with {x.agent}" for x in (before, own))
  if found != expected:
    raise types.ConfigError(
      f"expected a run of {expected} to resume, found one of {found} in"
      f" {run_dir!r}"
    )


def check_resumed(before: Config, asked: Any, files: Any) -> None:
  """Checks that a run can go on with other settings.

  Args:
    before: what was asked of it.
    asked: the config with all the settings.
    files: of `training.Config`.

  Raises:
    types.ConfigError: its state contradicts one of them.
  """
  old = configs.values(restored(asked, before))
  new = configs.values(asked)
  known = [name for name in new if name not in _OF_THIS_START]
  changed = [
    command_line.flag(name)
    for name in known
    if name not in _RESUMED and old[name] != new[name]
  ]
  if changed:
    may = [command_line.flag(name) for name in known if name in _RESUMED]
    raise types.ConfigError(
      "expected --resume with the options that the run began with, of which"
      f" only {', '.join(may)} may be others; found another"
      f" {', '.join(changed)}"
    )
  if files.run_dir:
    raise types.ConfigError(
      "expected --resume without --run-dir: a run goes on in its own directory"
    )


def read(run_dir: str | os.PathLike[str]) -> Run:
  """Reads a run, which may still be going on.

  Raises:
    types.ConfigError: as from `config`; or it has measured nothing yet.
  """
  path = pathlib.Path(run_dir).expanduser()
  asked = config(path)
  _check_keys(path, asked.options, {"env": str, "seed": int}, asked.seedx)
  return Run(
    path=path,
    experiment=asked.experiment or asked.name,
    env=asked.options["env"],
    seed=asked.options["seed"],
    options=asked.options,
    lines=_lines(path, asked.seedx),
  )


def labels(runs: Sequence[Run]) -> list[str]:
  """Names the group of each run: its experiment, and what sets it apart.

  Runs are of one group if they are of the same environment and differ only in
  their seed, in where they run or write and in how often they are saved or
  evaluated. A label says the options by which an experiment's
  groups differ in any environment, as one would give them: `impala --agent
  a2c`.

  Returns:
    The label of each run. Runs of the same environment and label are a group.
  """
  programs = collections.defaultdict(set)
  values: dict[Any, set[str]] = collections.defaultdict(set)
  names: dict[str, dict[str, None]] = collections.defaultdict(dict)
  for run in runs:
    programs[short(run.experiment)].add(run.experiment)
    names[run.experiment] |= dict.fromkeys(run.options)
  for run in runs:
    for name in names[run.experiment]:
      key = (run.experiment, name, run.env)
      values[key].add(_words(name, run.options))
  differing = {key[:2] for key, words in values.items() if len(words) > 1}
  found = []
  for run in runs:
    name = short(run.experiment)
    if len(programs[name]) > 1:
      name = run.experiment.partition(":")[0]
    words = [name]
    words += [
      _words(name, run.options)
      for name in sorted(names[run.experiment])
      if name not in _BESIDE_THE_POINT and (run.experiment, name) in differing
    ]
    found.append(" ".join(word for word in words if word))
  return found


def _class_name(kind: type) -> str:
  module = experiments.program_module(kind.__module__)
  return f"{module}:{kind.__qualname__}"


def _config(path: pathlib.Path, text: str) -> Config:
  """What `config.json` says."""
  try:
    content = json.loads(text)
  except json.JSONDecodeError as error:
    raise _foreign(path, f"config.json with no JSON ({error})", None) from error
  if not isinstance(content, dict):
    raise _foreign(path, "config.json with no object", None)
  seedx = content.get("seedx")
  if content.get("format", FORMAT) not in _READABLE:
    raise _foreign(path, f"format {content['format']!r}", seedx)
  kinds = {"seedx": str, "format": int, "options": dict}
  if content.get("experiment", "") is not None:
    kinds["experiment"] = str
  if content.get("format") == FORMAT:
    kinds |= {"pipeline": str, "agent": str}
  _check_keys(path, content, kinds, seedx)
  experiment = content["experiment"]
  if experiment and content["format"] == 1:  # It has the module's name.
    experiment = experiment.removeprefix("experiments.")
  return Config(
    experiment=experiment,
    pipeline=content.get("pipeline", ""),
    agent=content.get("agent", ""),
    seedx=content["seedx"],
    format=content["format"],
    options=content["options"],
    beyond=content.get("beyond", ()),
  )


def _lines(path: pathlib.Path, seedx: str) -> list[dict[str, Any]]:
  """What `metrics.jsonl` says."""
  try:
    lines = metrics.read_lines(path / "metrics.jsonl")
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
  if any("episode_return" not in line for line in lines):
    raise _foreign(path, "metrics without 'episode_return'", seedx)
  return lines


def _check_keys(
  path: pathlib.Path,
  content: Mapping[str, Any],
  kinds: Mapping[str, type],
  seedx: Any,
) -> None:
  """Checks that there is a value of its kind under each key."""
  wrong = [
    key for key, kind in kinds.items() if not isinstance(content.get(key), kind)
  ]
  if wrong:
    found = f"config.json without {', '.join(map(repr, wrong))}"
    raise _foreign(path, found, seedx)


def _foreign(path: pathlib.Path, found: str, seedx: Any) -> types.ConfigError:
  writer = (
    f"seedx {seedx}" if isinstance(seedx, str) else "another seedx or program"
  )
  return types.ConfigError(
    f"expected a run of format {FORMAT} in {str(path)!r}, found {found}, which"
    f" {writer} wrote; read it with that version, or run the experiment again"
  )


def _words(name: str, given: Mapping[str, Any]) -> str:
  """An option as on a command line; empty if it is not there."""
  if name not in given:
    return ""
  value, words = given[name], name.replace("_", "-")
  if isinstance(value, bool):
    return f"--{words}" if value else f"--no-{words}"
  if isinstance(value, dict):
    value = ",".join(f"{key}={_text(item)}" for key, item in value.items())
  elif isinstance(value, list):
    value = ",".join(map(_text, value))
  return f"--{words} {shlex.quote(_text(value))}"


def _text(value: Any) -> str:
  return value if isinstance(value, str) else json.dumps(value)
