"""Trials: runs of experiments, each in a directory of its own.

Each is a process, `python -m seedx.app.studies.trials EXPERIMENT [options]`:
`seedx train`, which also ends, with a checkpoint, when its standard input
closes. So no trial outlives the program that has started it.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from seedx import files, metrics, signals, types
from seedx.app.cli import experiments
from seedx.app.runs import run_dirs

if TYPE_CHECKING:  # It would import JAX.
  from seedx.app.cli import programs

_OUTPUT = "output.txt"
_MOST_OUTPUT_BYTES = 2**16  # What is read of its end.
_POLL_SECONDS = 0.2
# The time in which a run has to end when it is asked to.
_PATIENCE_SECONDS = 180.0


@dataclasses.dataclass(frozen=True)
class Trial:
  """A run of an experiment.

  Attributes:
    name: its directory, below that of the study.
    words: the experiment and its options, as after `seedx train`.
    seed: seed of the run.
    label: what distinguishes it from others, for a person.
  """

  name: str
  words: Sequence[str]
  seed: int = 0
  label: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
  """What a trial has left.

  Attributes:
    trial: the trial.
    lines: its lines of metrics.
    error: the error that has ended it; empty for none.
    cpu_seconds: CPU time of all its processes, where that was measured.
  """

  trial: Trial
  lines: Sequence[Mapping[str, Any]]
  error: str = ""
  cpu_seconds: float = 0.0

  @classmethod
  def read(
    cls,
    trial: Trial,
    study: str | os.PathLike[str],
    error: str = "",
    cpu_seconds: float = 0.0,
  ) -> "Result":
    """Reads what a trial has written in the directory of its study."""
    try:
      path = pathlib.Path(study, trial.name, run_dirs.METRICS)
      lines = metrics.read_lines(path)
    except FileNotFoundError:
      lines = []
    except KeyError as missing:  # Another program's.
      lines, error = [], error or f"{run_dirs.METRICS} without {missing}"
    return cls(trial, lines, error, cpu_seconds)

  @property
  def last(self) -> Mapping[str, Any]:
    """The last line; empty for none."""
    return self.lines[-1] if self.lines else {}


class Running:
  """A trial that runs in a process of its own.

  Attributes:
    run_dir: directory of the run.
    pid: id of the process.
  """

  def __init__(self, trial: Trial, study: str | os.PathLike[str]) -> None:
    """Starts it.

    Args:
      trial: the run.
      study: directory of the study, which has its directory.

    Raises:
      types.ConfigError: the directory is not writable, or has a run.
    """
    self._words = trial.words
    self._folder = files.Folder(study)
    for name in pathlib.PurePath(trial.name).parts:
      self._folder = self._folder.folder(name)
    self.run_dir = pathlib.Path(self._folder)
    program = [sys.executable, "-m", "seedx.app.studies.trials", *trial.words]
    program += ["--seed", str(trial.seed), "--run-dir", str(self.run_dir)]
    try:
      self._folder.make()
      with self._folder.open(_OUTPUT, "x") as output:
        self._process = subprocess.Popen(
          program,
          # On a cluster, Ray has added where the modules of a user are.
          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
          stdin=subprocess.PIPE,
          stdout=output,
          stderr=output,
        )
    except OSError as error:
      raise types.ConfigError(
        f"cannot write in {str(self._folder)!r} ({error.strerror})"
      ) from error
    self.pid = self._process.pid
    self._is_ended = False
    self._metrics: IO[bytes] | None = None
    self._rest = b""

  def lines(self, stop: threading.Event) -> Iterator[Mapping[str, Any]]:
    """Yields its lines of metrics as they are written.

    Args:
      stop: event that ends the wait for more, but not the run.
    """
    is_last = False
    while not is_last:
      is_last = stop.wait(_POLL_SECONDS) or self._process.poll() is not None
      yield from self._new_lines()

  def end(self) -> None:
    """Ends the run, with a checkpoint, unless it has ended."""
    self._is_ended = self._process.poll() is None
    assert self._process.stdin is not None
    self._process.stdin.close()
    if self._metrics is not None:
      self._metrics.close()
    try:
      self._process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()

  def error(self) -> str:
    """The error that has ended the run, in a line; empty for none."""
    status = self._process.wait()
    # It ends by SIGTERM, also before it handles signals.
    in_order = (signals.status(signal.SIGTERM), -signal.SIGTERM)
    if not status or (self._is_ended and status in in_order):
      return ""
    with self._folder.open(_OUTPUT) as output:
      output.seek(max(0, output.seek(0, os.SEEK_END) - _MOST_OUTPUT_BYTES))
      last = cause(output.read().decode(errors="replace"))
    return f"seedx train {' '.join(self._words)} ended with {status}: {last}"

  def _new_lines(self) -> Iterator[Mapping[str, Any]]:
    if self._metrics is None:
      if not self._folder.has(run_dirs.METRICS):
        return
      self._metrics = self._folder.open(run_dirs.METRICS)
    *pieces, self._rest = (self._rest + self._metrics.read()).split(b"\n")
    for piece in pieces:
      with contextlib.suppress(ValueError):  # Half a line, on a full disk.
        yield json.loads(piece)


def cause(text: str) -> str:
  """Returns the last line of an error's text that has a word.

  Args:
    text: of the error, perhaps with a traceback and colours.
  """
  plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
  lines = [x.strip() for x in plain.splitlines() if re.search(r"\w", x)]
  return lines[-1] if lines else "its process died"


def experiments_of(asked: Sequence[str]) -> tuple[str, ...]:
  """The experiments that `--experiments` names, each with its own options.

  Args:
    asked: what is between its commas; a number belongs to the one before, as in
      `impala --learner-devices 0,1`.

  Raises:
    types.ConfigError: there is none, or one does not come with seedx.
  """
  found: list[str] = []
  for words in asked:
    if found and re.match("[0-9]", words):
      found[-1] += f",{words}"
    else:
      found.append(words)
  if not found:
    raise types.ConfigError("expected --experiments A,B, found none")
  for words in found:
    check_name(words)
  if len(set(map(folder_of, found))) < len(found):
    raise types.ConfigError(
      f"expected experiments that differ, found one twice: {', '.join(found)}"
    )
  return tuple(found)


def folder_of(words: str) -> str:
  """The name of a directory for an experiment with its options."""
  return "-".join(words.replace("--", "").replace("/", "_").split())


def check_name(words: str) -> None:
  """Checks that an experiment with its options is one of seedx's.

  Raises:
    types.ConfigError: it is not.
  """
  name, *_ = words.split() or [""]
  if name not in experiments.shipped():
    known = ", ".join(experiments.shipped())
    raise types.ConfigError(
      f"expected an experiment of {known}, found {name!r}"
    )


def words_of(experiment: str, env: str, total_steps: int) -> list[str]:
  """Returns the words of a trial.

  Args:
    experiment: the experiment and its own options.
    env: name of the environment, unless the own options have one; empty for
      that of the experiment.
    total_steps: env steps of the run.
  """
  name, *own = experiment.split()
  before = ["--env", env] if env else []
  return [name, *before, *own, "--total-steps", str(total_steps)]


def read(words: Sequence[str]) -> "programs.Asked":
  """Reads the words of a trial, before hours of others.

  It exits with status 2 and one line where they are wrong.
  """
  programs = importlib.import_module("seedx.app.cli.programs")
  module = experiments.load_module(words[0])
  asked, _ = programs.read(module.EXPERIMENT, words[1:], module.__name__)
  return asked


def _end_with_parent() -> None:
  while os.read(0, 1):
    pass
  os.kill(os.getpid(), signal.SIGTERM)


def _main() -> int:
  sys.argv[1:1] = ["train"]
  threading.Thread(target=_end_with_parent, daemon=True).start()
  return importlib.import_module("seedx.__main__").program()


if __name__ == "__main__":
  sys.exit(_main())
