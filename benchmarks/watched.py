"""Programs that learn, watched from outside: env steps, return and CPU time.

Each program runs in a process group of its own and writes its progress to a
file. Whenever the file grows, the program's CPU time is read from /proc, so
that a cost can leave out the program's start.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from seedx import signals, types
from seedx.app.runs import run_folders
from seedx.metrics import cpu_time

_POLL_SECONDS = 0.02
_PATIENCE_SECONDS = 30.0
# More env steps than a run makes while it is watched.
_TOTAL_STEPS = 10**10
_TAIL_CHARACTERS = 600


def use_idle_time() -> None:
  """Gives a new process the lowest priority, as `preexec_fn` of `Popen`.

  Linux may share the CPU among sessions first, and use `nice` only within each
  of them ("autogroup" in sched(7)). So the process begins a session, and takes
  the lowest priority for that session, too.
  """
  os.setsid()
  os.nice(19)
  with contextlib.suppress(OSError):
    pathlib.Path("/proc/self/autogroup").write_text("19")


class Progress(NamedTuple):
  """The progress of a program.

  Attributes:
    env_steps: number of env steps so far.
    updates: number of updates so far; 1 if the program does not report it.
    episode_return: mean return of the last episodes; None if unknown.
  """

  env_steps: float
  updates: float = 1
  episode_return: float | None = None


class Sample(NamedTuple):
  """Progress of a program, and its CPU time until then.

  Attributes:
    progress: progress of the program.
    seconds: `time.monotonic` when the progress was read.
    cpu_seconds: CPU seconds of each process of the program, by process id.
  """

  progress: Progress
  seconds: float
  cpu_seconds: Mapping[int, float]


class Cost(NamedTuple):
  """The cost of a program's env steps between two samples.

  Attributes:
    rate: env steps per second.
    busiest: CPU microseconds per env step of the busiest process.
    others: CPU microseconds per env step of the program's other processes.
  """

  rate: float
  busiest: float
  others: float

  @property
  def total(self) -> float:
    """CPU microseconds per env step of all processes."""
    return self.busiest + self.others


# Returns the progress of a line; None for a line without progress.
Parse = Callable[[str], Progress | None]


class Program:
  """A running program.

  Attributes:
    start_seconds: `time.monotonic` at the start.
    samples: one sample for each call of `read` that found new progress.
    first_line: CPU seconds of each process when the program first wrote to its
      standard error; None before.
  """

  def __init__(
    self,
    command: Sequence[str],
    folder: str | os.PathLike[str],
    parse: Parse,
    progress_file: str = "output",
    **environment: str,
  ) -> None:
    """Starts the program in the directory `folder`, which must exist.

    Args:
      command: words of the command.
      folder: directory in which the program runs and writes.
      parse: function that parses a line of the file with the progress.
      progress_file: name of this file in the directory. The program's standard
        output goes to the file `output`, its standard error to `errors`.
      environment: environment variables to add to those of this process.
    """
    self.start_seconds = time.monotonic()
    self.samples: list[Sample] = []
    self.first_line: Mapping[int, float] | None = None
    self._folder = pathlib.Path(folder)
    self._parse = parse
    self._path = self._folder / progress_file
    self._position = 0
    with (
      open(self._folder / "output", "wb") as output,
      open(self._folder / "errors", "wb") as errors,
    ):
      self._process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
      )

  def __enter__(self) -> "Program":
    return self

  def __exit__(self, *_: object) -> None:
    """Ends all processes of the program."""
    for number in (signal.SIGTERM, signal.SIGKILL):
      with contextlib.suppress(ProcessLookupError):
        os.killpg(self._process.pid, number)
      with contextlib.suppress(subprocess.TimeoutExpired):
        self._process.wait(_PATIENCE_SECONDS)

  def read(self) -> bool:
    """Adds a sample if there is new progress; returns whether the program runs.

    Raises:
      types.ConfigError: the program has failed.
    """
    status = self._process.poll()
    if status:
      text = (self._folder / "errors").read_text(errors="replace")
      raise types.ConfigError(
        f"the program ended with {status}: {text[-_TAIL_CHARACTERS:]}"
      )
    if self.first_line is None and (self._folder / "errors").stat().st_size:
      self.first_line = cpu_time.of_tree(self._process.pid)
    if latest := self._latest():
      cpu_seconds = cpu_time.of_tree(self._process.pid)
      self.samples.append(Sample(latest, time.monotonic(), cpu_seconds))
    return status is None

  def _latest(self) -> Progress | None:
    """Returns the newest progress in the file's new lines, if any."""
    latest = None
    if self._path.exists():
      with open(self._path, "rb") as file:
        file.seek(self._position)
        lines, newline, _ = file.read().rpartition(b"\n")
      self._position += len(lines + newline)
      for line in lines.decode(errors="replace").splitlines():
        latest = self._parse(line) or latest
    return latest


class Run(NamedTuple):
  """A run of seedx to watch.

  Attributes:
    name: name in a table.
    checkout: directory with the seedx to run.
    words: the experiment and its options.
  """

  name: str
  checkout: str
  words: tuple[str, ...]

  @classmethod
  def of(cls, text: str) -> "Run":
    """Parses `NAME=CHECKOUT EXPERIMENT OPTIONS...`."""
    name, is_named, rest = text.partition("=")
    checkout, *words = rest.split() or [""]
    if not is_named or not words:
      raise types.ConfigError(
        f"expected NAME=CHECKOUT EXPERIMENT OPTIONS, found {text!r}"
      )
    return cls(name, os.path.abspath(checkout), tuple(words))

  def start(
    self,
    python: str,
    folder: str | os.PathLike[str],
    log_seconds: float = 0.5,
  ) -> Program:
    """Starts the run with the interpreter `python`, in the empty `folder`."""
    name, *options = self.words
    run_dir = pathlib.Path(folder, "run")
    command = [python, "-m", f"experiments.{name}", *options]
    if "--total-steps" not in options:
      command += ["--total-steps", str(_TOTAL_STEPS)]
    command += ["--run-dir", str(run_dir), "--log-seconds", str(log_seconds)]
    metrics = f"run/{run_folders.METRICS}"
    path = {"PYTHONPATH": self.checkout, "PYTHONSAFEPATH": "1"}
    return Program(command, folder, of_metrics, metrics, **path)


def of_metrics(line: str) -> Progress | None:
  """Returns the progress of a line of seedx's metrics."""
  try:
    values = json.loads(line)
  except ValueError:
    return None
  return Progress(
    values["env_steps"],
    values.get("learner_steps") or 0,
    values.get("episode_return"),
  )


def wait(
  programs: Sequence[Program],
  condition: Callable[[Program], bool],
  seconds: float,
) -> None:
  """Reads the progress of programs until each meets a condition.

  Args:
    programs: the programs.
    condition: function that returns whether a program meets the condition.
    seconds: maximum seconds to wait.

  Raises:
    types.ConfigError: a program failed, ended, or did not meet the condition.
  """
  end_seconds = time.monotonic() + seconds
  while True:
    running = [x.read() for x in programs]
    if all(map(condition, programs)):
      return
    if not all(running) or time.monotonic() > end_seconds:
      raise types.ConfigError(
        f"expected more progress within {seconds:g} seconds and before the"
        " program's end"
      )
    time.sleep(_POLL_SECONDS)


def first_after(program: Program, seconds: float) -> Sample | None:
  """Returns a program's first sample at `seconds` or later, if there is one."""
  return next((x for x in program.samples if x.seconds >= seconds), None)


def has_lasted(program: Program, begin_seconds: float, seconds: float) -> bool:
  """Returns whether samples span some seconds from `begin_seconds` on."""
  start = first_after(program, begin_seconds)
  if start is None:
    return False
  return program.samples[-1].seconds - start.seconds >= seconds > 0


def end_on_signals() -> None:
  """Makes each signal that ends this program also end what it has started."""
  for number in signals.ENDING:
    signal.signal(number, signal.default_int_handler)


def cost(start: Sample, end: Sample) -> Cost:
  """Returns the cost of the env steps between two samples of a program."""
  used = {
    pid: seconds - start.cpu_seconds.get(pid, 0.0)
    for pid, seconds in end.cpu_seconds.items()
  }
  steps = end.progress.env_steps - start.progress.env_steps
  busiest, total = (1e6 * f(used.values()) / steps for f in (max, sum))
  rate = steps / (end.seconds - start.seconds)
  return Cost(rate=rate, busiest=busiest, others=total - busiest)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
  """Returns a Markdown table whose first column has names."""
  names = [*header]
  lines = [names, ["---", *["---:"] * (len(names) - 1)], *rows]
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)
