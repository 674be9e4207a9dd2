"""Trials: the runs of a study.

A trial has a directory and a process of its own. The process runs `python -m
seedx.app.studies.trials EXPERIMENT [options]`, which is `seedx train`, except
that it also ends, with a checkpoint, when its standard input closes. Thus, no
trial outlives the program that started it.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from seedx import files, metrics, signals, types
from seedx.app.runs import run_folders
from seedx.app.settings import experiments

if TYPE_CHECKING:  # Imports JAX.
  from seedx.app import requests

_OUTPUT = "output.txt"
# Bytes at the end of a trial's output that are searched for its error.
_TAIL_BYTES = 2**16
_POLL_SECONDS = 0.2
# Time for a run to end after its input has closed; then it is killed.
_PATIENCE_SECONDS = 180.0


@dataclasses.dataclass(frozen=True)
class Trial:
  """A run of an experiment.

  Attributes:
    name: directory of the run, relative to the study's directory.
    words: the experiment and its options, as after `seedx train`.
    seed: seed of the run.
    label: text that distinguishes the trial in tables and plots.
    resumes: whether a run that the directory already has is continued.
  """

  name: str
  words: Sequence[str]
  seed: int = 0
  label: str = ""
  resumes: bool = False


@dataclasses.dataclass(frozen=True)
class Result:
  """The result of a trial.

  Attributes:
    trial: the trial.
    lines: lines of metrics.
    error: error that ended the trial; empty for none.
    cpu_seconds: CPU seconds of all its processes; 0 if not measured.
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
    """Reads the metrics of a trial from the directory of its study."""
    try:
      path = pathlib.Path(study, trial.name, run_folders.METRICS)
      lines = metrics.read_lines(path)
    except FileNotFoundError:
      lines = []
    except KeyError as missing:  # Another program wrote the file.
      lines, error = [], error or f"{run_folders.METRICS} without {missing}"
    return cls(trial, lines, error, cpu_seconds)

  @property
  def last(self) -> Mapping[str, Any]:
    """The last line of metrics; empty for none."""
    return self.lines[-1] if self.lines else {}

  @property
  def steps(self) -> int:
    """The number of steps of the run's clock."""
    return int(self.last[metrics.clock(self.last)]) if self.lines else 0


class Running:
  """A trial in a process of its own.

  Attributes:
    run_dir: directory of the run.
    pid: id of the process.
  """

  def __init__(
    self,
    trial: Trial,
    study: str | os.PathLike[str],
    prepare: Callable[[], None] | None = None,
  ) -> None:
    """Starts the process.

    Args:
      trial: the run.
      study: directory of the study, in which the trial gets its directory.
      prepare: function that the new process calls first, as `preexec_fn` of
        `subprocess.Popen`.

    Raises:
      types.ConfigError: the directory is not writable, or already has a run.
    """
    self._words = trial.words
    self._folder = files.Folder(study)
    for name in pathlib.PurePath(trial.name).parts:
      self._folder = self._folder.folder(name)
    self.run_dir = pathlib.Path(self._folder)
    program = [sys.executable, "-m", "seedx.app.studies.trials", *trial.words]
    program += ["--seed", str(trial.seed), "--run-dir", str(self.run_dir)]
    program += ["--resume", "auto"] * trial.resumes
    try:
      self._folder.make()
      with self._folder.open(_OUTPUT, "a" if trial.resumes else "x") as output:
        self._process = subprocess.Popen(
          program,
          # On a cluster, Ray has added the user's directories to `sys.path`.
          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
          stdin=subprocess.PIPE,
          stdout=output,
          stderr=output,
          preexec_fn=prepare,
        )
    except OSError as error:
      raise types.ConfigError(
        f"cannot write in {str(self._folder)!r} ({error.strerror})"
      ) from error
    self.pid = self._process.pid
    self._was_running_at_end = False
    self._metrics: IO[bytes] | None = None
    self._rest = b""

  def lines(self, stop: threading.Event) -> Iterator[Mapping[str, Any]]:
    """Yields lines of metrics as they are written, until the end or `stop`."""
    is_last = False
    while not is_last:
      is_last = stop.wait(_POLL_SECONDS) or self._process.poll() is not None
      yield from self._new_lines()

  def end(self) -> None:
    """Ends the run with a checkpoint; kills it if that takes minutes."""
    self._was_running_at_end = self._process.poll() is None
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
    """Waits for the end; returns the error in one line, empty for none."""
    status = self._process.wait()
    # SIGTERM ends the run, even if the run does not handle signals yet.
    expected = (signals.status(signal.SIGTERM), -signal.SIGTERM)
    if not status or (self._was_running_at_end and status in expected):
      return ""
    with self._folder.open(_OUTPUT) as output:
      output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES))
      last = cause(output.read().decode(errors="replace"))
    error = f"seedx train {' '.join(self._words)} ended with {status}: {last}"
    if status != run_folders.UNSAVED:
      return error
    # The metrics of such a run can be compared.
    print(error, file=sys.stderr, flush=True)
    return ""

  def _new_lines(self) -> Iterator[Mapping[str, Any]]:
    if self._metrics is None:
      if not self._folder.has(run_folders.METRICS):
        return
      self._metrics = self._folder.open(run_folders.METRICS)
    *pieces, self._rest = (self._rest + self._metrics.read()).split(b"\n")
    for piece in pieces:
      # On a full disk, a line may be incomplete.
      with contextlib.suppress(ValueError):
        yield json.loads(piece)


def cause(text: str) -> str:
  """Returns the last line with a letter or a digit in a program's output.

  The last line of a traceback has the error. Codes for colours are removed.
  """
  plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
  lines = [x.strip() for x in plain.splitlines() if re.search(r"\w", x)]
  return lines[-1] if lines else "its process died"


def experiments_of(items: Sequence[str]) -> tuple[str, ...]:
  """Returns the experiments of `--experiments`, each with its own options.

  An item that begins with a digit belongs to the item before, as in `impala
  --learner-devices 0,1`.

  Raises:
    types.ConfigError: there is no experiment, one cannot exist, or one is given
      twice.
  """
  joined: list[str] = []
  for item in items:
    if joined and re.match("[0-9]", item):
      joined[-1] += f",{item}"
    else:
      joined.append(item)
  if not joined:
    raise types.ConfigError("expected --experiments A,B, found none")
  for words in joined:
    check_name(words)
  if len(set(map(folder_of, joined))) < len(joined):
    raise types.ConfigError(
      f"expected experiments that differ, found one twice: {', '.join(joined)}"
    )
  return tuple(joined)


def folder_of(words: str) -> str:
  """Returns the name of a directory for an experiment and its options."""
  return "-".join(re.sub("[/:]", "_", words.replace("--", "")).split())


def check_name(words: str) -> None:
  """Raises types.ConfigError if there can be no such experiment."""
  name, *_ = words.split() or [""]
  experiments.check_name(name)


def words_of(experiment: str, env: str, total_steps: int) -> list[str]:
  """Returns the command-line words of a trial.

  `env` is for an experiment without its own `--env`; empty for its default.
  """
  name, *options = experiment.split()
  default = ["--env", env] if env else []
  return [name, *default, *options, "--total-steps", str(total_steps)]


def read(words: Sequence[str]) -> "requests.Request":
  """Parses a trial's words; if wrong, prints a line and exits with status 2."""
  programs = importlib.import_module("seedx.app.cli.programs")
  module = experiments.load_module(words[0])
  config, _ = programs.read(module.EXPERIMENT, words[1:], module.__name__)
  return config


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
