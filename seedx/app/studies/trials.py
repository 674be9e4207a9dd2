"""Trials of a sweep: runs of an experiment that say what they reach."""

import dataclasses
import math
import pathlib
import queue
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from seedx.app.cli import command_line, experiments


@dataclasses.dataclass(frozen=True)
class Trial:
  """A run.

  Attributes:
    name: its directory below the sweep's.
    experiment: its short name.
    words: options of all trials, as on a command line.
    values: of the settings that are searched, as on a command line.
    seed: of the run.
  """

  name: str
  experiment: str
  words: Sequence[str]
  values: Mapping[str, str]
  seed: int

  @property
  def described(self) -> str:
    """Its values in a line."""
    return " ".join(f"{k}={x}" for k, x in self.values.items())


def options(values: Mapping[str, str]) -> list[str]:
  """Values of settings as words of a command line."""
  return [
    word
    for name, value in values.items()
    for word in (
      # A switch has no value.
      command_line.option(name, value.lower() == "true")
      if value.lower() in ("true", "false")
      else [command_line.flag(name), value]
    )
  ]


def cause(text: str) -> str:
  """Returns the last line of an error's text that has a word.

  Args:
    text: of the error, perhaps with a traceback and colours.
  """
  plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
  lines = [x.strip() for x in plain.splitlines() if re.search(r"\w", x)]
  return lines[-1] if lines else "its process died"


class Training:
  """A run on a thread of its own."""

  def __init__(self, trial: Trial, run_dir: pathlib.Path) -> None:
    """Starts it.

    Args:
      trial: what trains.
      run_dir: the directory of the sweep.
    """
    # Lines of metrics; None at its end.
    self._lines: queue.SimpleQueue[Mapping[str, Any] | None]
    self._lines = queue.SimpleQueue()
    self._stop = threading.Event()
    self._error = ""
    self._last: dict[str, Any] = {
      "env_steps": 0,
      "episode_return": -math.inf,
      "done": False,
      "error": "",
    }
    self._thread = threading.Thread(
      target=self._run, args=(trial, run_dir), name="trial", daemon=True
    )
    self._thread.start()

  def step(self) -> dict[str, Any]:
    """Waits until it has come further.

    Returns:
      `env_steps`, `episode_return` (-inf before the first), `done`, and the
      `error` that has ended it, or an empty one.
    """
    line = self._lines.get()
    if line is None:
      self._last |= {"done": True, "error": self._error}
    else:
      self._last["env_steps"] = line["env_steps"]
      if line["episode_return"] is not None:
        self._last["episode_return"] = line["episode_return"]
    return dict(self._last)

  def end(self) -> None:
    """Ends it in order, with a checkpoint."""
    self._stop.set()
    self._thread.join()

  def write(self, line: Mapping[str, Any]) -> None:
    """Takes a line of metrics, as a sink."""
    self._lines.put(line)

  def close(self) -> None:
    """Has nothing to close."""

  def _run(self, trial: Trial, run_dir: pathlib.Path) -> None:
    try:
      from seedx.app import training  # They import JAX.
      from seedx.app.cli import programs  # They import JAX.

      module = experiments.load_module(trial.experiment)
      words = [*trial.words, *options(trial.values), "--quiet"]
      words += ["--seed", str(trial.seed)]
      words += ["--run-dir", str(run_dir / trial.name)]
      asked, presets = programs.read(module.EXPERIMENT, words, module.__name__)
      training.run(
        asked.run,
        asked.files,
        asked=asked,
        experiment=trial.experiment,
        presets=presets,
        sinks=[self],
        stop=self._stop,
      )
    except BaseException as error:
      lines = str(error).strip().splitlines()
      self._error = " ".join([type(error).__name__, *lines[:1]])
    finally:
      self._lines.put(None)
