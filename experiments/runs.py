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
from typing import Any

import seedx
from experiments import options
from seedx import metrics, types

# Of `config.json`; another number is of another version of seedx.
FORMAT = 1

# They say which directory it is, to whom reads it there.
_OF_THIS_START = ("run_dir", "resume")

# What does not make a run another experiment: its seed, where it runs or
# writes, and how often it is saved or evaluated.
_BESIDE_THE_POINT = (
  *("env", "seed", "run_dir", "resume"),
  *("role", "address", "server", "server_addresses"),
  *("checkpoint_every_seconds", "evaluate_every_steps", "evaluate_episodes"),
)


@dataclasses.dataclass(frozen=True)
class Config:
  """What was asked of a run.

  Attributes:
    experiment: the module's name, such as `experiments.ppo`.
    seedx: the version that ran it.
    options: the experiment's, by their names, as JSON has them.
  """

  experiment: str
  seedx: str
  options: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Run:
  """A run: what was asked of it, and what it measured.

  Attributes:
    path: its directory.
    experiment: the module's name, such as `experiments.ppo`.
    env: EnvPool's name of the environment.
    seed: of the run.
    options: the experiment's, by their names, as JSON has them.
    lines: of its metrics, at least one, with rising env steps.
  """

  path: pathlib.Path
  experiment: str
  env: str
  seed: int
  options: Mapping[str, Any]
  lines: Sequence[Mapping[str, Any]]


def short(experiment: str) -> str:
  """The last part of a module's name."""
  return experiment.rpartition(".")[2]


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


def write(run_dir: pathlib.Path, given: Any) -> None:
  """Writes `config.json`: which program runs here, with which options."""
  values = {
    name: value
    for name, value in dataclasses.asdict(given).items()
    if name not in _OF_THIS_START
  }
  content = {
    "experiment": options.module(type(given)),
    "seedx": seedx.__version__,
    "format": FORMAT,
    "options": values,
  }
  metrics.write_config(run_dir, content)


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


def options_of(kind: type[Any], asked: Config) -> dict[str, Any]:
  """The options of a run as the program has them.

  Args:
    kind: the program's `Options`.
    asked: what was asked of the run.

  Raises:
    types.ConfigError: the program has other options: it is of another version.
  """
  fields = {
    field.name: field.metadata["default"]
    for field in dataclasses.fields(kind)
    if field.name not in _OF_THIS_START
  }
  other = set(fields) ^ set(asked.options)
  if other:
    raise types.ConfigError(
      f"expected a run with the options that {asked.experiment} has now, found"
      f" a difference in {', '.join(sorted(other))}: seedx {asked.seedx} wrote"
      " it; use that version with it"
    )
  return {
    name: tuple(value) if isinstance(fields[name], tuple) else value
    for name, value in asked.options.items()
  }


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
    experiment=asked.experiment,
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
  modules = collections.defaultdict(set)
  values: dict[Any, set[str]] = collections.defaultdict(set)
  names: dict[str, dict[str, None]] = collections.defaultdict(dict)
  for run in runs:
    modules[short(run.experiment)].add(run.experiment)
    names[run.experiment] |= dict.fromkeys(run.options)
  for run in runs:
    for name in names[run.experiment]:
      place = (run.experiment, name, run.env)
      values[place].add(_words(name, run.options))
  differing = {place[:2] for place, words in values.items() if len(words) > 1}
  found = []
  for run in runs:
    last = short(run.experiment)
    words = [last if len(modules[last]) == 1 else run.experiment]
    words += [
      _words(name, run.options)
      for name in sorted(names[run.experiment])
      if name not in _BESIDE_THE_POINT and (run.experiment, name) in differing
    ]
    found.append(" ".join(word for word in words if word))
  return found


def _config(path: pathlib.Path, text: str) -> Config:
  """What `config.json` says."""
  try:
    content = json.loads(text)
  except json.JSONDecodeError as error:
    raise _foreign(path, f"config.json with no JSON ({error})", None) from error
  if not isinstance(content, dict):
    raise _foreign(path, "config.json with no object", None)
  seedx = content.get("seedx")
  if content.get("format", FORMAT) != FORMAT:
    raise _foreign(path, f"format {content['format']!r}", seedx)
  kinds = {"experiment": str, "seedx": str, "format": int, "options": dict}
  _check_keys(path, content, kinds, seedx)
  return Config(content["experiment"], content["seedx"], content["options"])


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
