"""A run of a pipeline while its processes, peers and disk fail."""

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import psutil

from seedx import checkpoint, metrics, wire
from seedx.pipelines import evolution, gorila, pool, seed
from seedx.pipelines.gorila import reports
from tests.chaos import audit, environment, peers, program

# Number of lines of stderr to keep.
_KEPT_LINES = 200
# Kind of a parameter server's faults, which make all workers wait.
SERVER = "server"
# Kind of an environment's faults, which end runs of pipelines without actors.
ENVIRONMENT = "environment"
# Kinds of faults of one process.
_OF_ONE = ("kill", "pause", ENVIRONMENT)
# Target of the learner's faults.
LEARNER = "the learner"
# Environment variable that marks every process of a trial.
_MARK = "SEEDX_CHAOS"
_SAMPLE_SECONDS = 0.25
# Time without a step after which a run counts as hanging.
_HANG_SECONDS = 90.0
_PAUSE_SECONDS = 3.0
_FULL_SECONDS = 20.0
# Time for which environments stand still. After other faults, a line of metrics
# and a checkpoint must be written within this time, too.
_STILL_SECONDS = 20.0
# Maximum time until a busy machine reports a hang.
_REPORT_SECONDS = 30.0
# Maximum time from Ctrl-C to the end of a run with a hanging update.
_LEAVE_SECONDS = 12.0
_HANGS = "no env step and no update"
_IDLE_CONNECTIONS = 1500
_END_SECONDS = 60.0
# Time for which joining processes wait for a learner to restart.
_GIVE_UP_SECONDS = 45.0
# Exit statuses after SIGTERM: by seedx, and before seedx handles the signal.
_ENDED = (128 + signal.SIGTERM, -signal.SIGTERM)
# Exit statuses of a process that joined: the run has ended; no learner answers.
_LEFT = (0, 3)
# A rate has recovered when it reaches this part of its value before the fault.
# Rates are measured over `_BACK_SECONDS`.
_BACK = 0.5
_BACK_SECONDS = 1.0
# More bytes than a line of metrics has.
_LINE_BYTES = 8192


@dataclasses.dataclass(frozen=True)
class Plan:
  """The faults of a trial.

  Attributes:
    environment_kills: number of kills of environment processes. If kills caused
      six deaths of actors within ten minutes, the run would end.
    hangs: number of times that all environments stand still.
    hanging_updates: number of times that an update hangs; each time, Ctrl-C
      ends the run.
    idle_connections: number of times that many silent connections are opened.
    streams_per_second: number of streams of hostile peers per second.
    environments_fail: whether faults of environments end the run.
  """

  experiment: str
  seconds: float
  seed: int
  kills: int
  environment_kills: int
  pauses: int
  learner_kills: int
  full_disks: int
  hangs: int
  hanging_updates: int
  idle_connections: int
  streams_per_second: float
  environments_fail: bool = False
  options: Sequence[str] = ()


class Sample(NamedTuple):
  """A measurement of the learner process.

  Attributes:
    seconds: time since the trial's start.
    start: number of the learner's starts so far.
    memory_bytes: resident memory.
    files: number of open files, sockets and pipes.
  """

  seconds: float
  start: int
  env_steps: int
  memory_bytes: int
  threads: int
  files: int


class Fault(NamedTuple):
  """A fault, recorded at `seconds` since the trial's start."""

  seconds: float
  kind: str
  target: str


class Trial:
  """A run of a pipeline, and its faults.

  Attributes:
    audited: number of audited windows.
    stderr: newest lines of stderr of all processes.
  """

  def __init__(self, plan: Plan, folder: pathlib.Path) -> None:
    """Makes a trial; `folder` is for the run and its temporary files."""
    self.violations: list[str] = []
    self.faults: list[Fault] = []
    self.samples: list[Sample] = []
    self.audited = 0
    self.stderr: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
    self._plan = plan
    self._rng = random.Random(plan.seed)
    self._run_dir = folder / "run"
    self._metrics = self._run_dir / "metrics.jsonl"
    # Size of the metrics of earlier starts.
    self._old_bytes = 0
    # Time of the newest env step.
    self._moved_seconds = 0.0
    self._sockets = folder / "tmp"
    self._sockets.mkdir()
    self._config = program.config(plan.experiment)
    self._serves = hasattr(self._config, "address")
    self._address = f"127.0.0.1:{_free_port()}" if self._serves else ""
    self._peers = peers.Peers(plan.seed)
    self._environment = {
      **os.environ,
      _MARK: f"{os.getpid()}-{folder.name}",
      "TMPDIR": str(self._sockets),
    }
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    self._start_seconds = time.monotonic()
    self._starts = 0
    self._over = threading.Event()
    self._learner: psutil.Popen | None = None
    self._joiner: psutil.Popen | None = None

  @property
  def statuses(self) -> dict[str, int]:
    return dict(self._peers.statuses)

  def run(self) -> None:
    """Runs the trial to its end, and checks that nothing is left behind."""
    threads = [threading.Thread(target=self._sample, daemon=True)]
    if self._serves:
      threads.append(threading.Thread(target=self._attack, daemon=True))
    try:
      self._start()
      for thread in threads:
        thread.start()
      begin = self._first_step()
      for at, fault in self._schedule():
        self._wait_until(begin + at)
        fault()
      self._wait_until(begin + self._plan.seconds)
    finally:
      self._over.set()
      self._end()
      for thread in threads:
        thread.join(_END_SECONDS)
      self.violations += dict.fromkeys(self._peers.violations)

  def _now(self) -> float:
    return time.monotonic() - self._start_seconds

  def _schedule(self) -> Iterator[tuple[float, Callable[[], None]]]:
    """Yields the faults in order, with their seconds since the first step.

    The learner's last start is early enough to measure the growth of memory.
    """
    plan = self._plan
    always: list[Callable[[], None]] = [
      *[self._kill] * plan.kills,
      *[self._kill_environment] * plan.environment_kills,
      *[self._pause] * plan.pauses,
      *[self._hang] * plan.hangs,
      *[self._connect_idly] * plan.idle_connections,
      *[self._fill_disk] * plan.full_disks,
    ]
    early: list[Callable[[], None]] = [
      *[self._kill_learner] * plan.learner_kills,
      *[self._hang_update] * plan.hanging_updates,
    ]
    drawn = [(self._rng.uniform(0.1, 0.9), fault) for fault in always]
    drawn += [(self._rng.uniform(0.2, 0.6), fault) for fault in early]
    for at, fault in sorted(drawn, key=lambda pair: pair[0]):
      yield at * plan.seconds, fault

  def _first_step(self) -> float:
    """Waits for the first env step, and returns its time."""
    while self._now() < _HANG_SECONDS:
      if self.samples and self.samples[-1].env_steps > 0:
        return self.samples[-1].seconds
      time.sleep(_SAMPLE_SECONDS)
    self._violate(f"no step in the first {_HANG_SECONDS:g} s")
    return self._now()

  def _wait_until(self, seconds: float) -> None:
    """Waits until a time; meanwhile restarts processes that have ended."""
    while self._now() < seconds:
      status = self._learner.poll()
      if status is not None:
        self._resume(status)
      if self._now() - self._moved_seconds > _HANG_SECONDS:
        self._violate(f"no step for {_HANG_SECONDS:g} s at {self._now():.0f} s")
        self._moved_seconds = self._now()
      if self._joiner is not None and self._joiner.poll() is not None:
        self._join()
      time.sleep(_SAMPLE_SECONDS)

  def _resume(self, status: int) -> None:
    """Resumes a run that has ended; only faults of environments may end it."""
    if self._plan.environments_fail and any(
      fault in line for line in self.stderr for fault in environment.FAULTS
    ):
      self._note(ENVIRONMENT, f"status {status}")
    else:
      errors = "; ".join(line for line in self.stderr if "error: " in line)
      self._violate(f"the learner ended with status {status}: {errors}")
      self._note("end", f"status {status}")
    self.stderr.clear()
    self._start()

  def _start(self) -> None:
    resumes = any(self._run_dir.glob("checkpoints/*"))
    if not resumes:
      # The run may have been killed before its first checkpoint.
      (self._run_dir / "config.json").unlink(missing_ok=True)
    words = ["--resume" if resumes else "--run-dir", str(self._run_dir)]
    if self._address:
      words += ["--address", self._address]
    self._starts += 1
    self._moved_seconds = self._now()
    if self._metrics.exists():
      self._old_bytes = self._metrics.stat().st_size
    words = [self._plan.experiment, *words, *self._plan.options]
    self._learner = self._popen("tests.chaos.program", *words)
    self._note("start", "resumed" if resumes else "new")
    if self._serves and self._joiner is None:
      self._join()

  def _join(self) -> None:
    """Starts one process more than needed; it replaces one that dies."""
    if isinstance(self._config, seed.Config | pool.Config):
      words = ["seedx.join", self._address, "--role", "actor"]
    else:
      has_workers = isinstance(self._config, gorila.Config | evolution.Config)
      role = "worker" if has_workers else "actor"
      words = ["tests.chaos.program", self._plan.experiment]
      words += ["--role", role, "--address", self._address]
    words += ["--env", program.ENV, "--give-up-seconds", f"{_GIVE_UP_SECONDS}"]
    self._joiner = self._popen(*words)

  def _popen(self, *words: str) -> psutil.Popen:
    process = psutil.Popen(
      [sys.executable, "-m", *words],
      env=self._environment,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      text=True,
    )
    threading.Thread(target=self._read, args=(process,), daemon=True).start()
    return process

  def _read(self, process: psutil.Popen) -> None:
    audited = 0
    for line in process.stderr:
      line = line.rstrip()
      if line.startswith(audit.VIOLATION):
        self._violate(line)
      elif line.startswith(audit.AUDITED):
        audited = max(audited, int(line.split()[-1]))
      else:
        self.stderr.append(f"{self._now():.1f} {line}")
    self.audited += audited

  def _note(self, kind: str, target: str) -> None:
    self.faults.append(Fault(self._now(), kind, target))

  def _violate(self, violation: str) -> None:
    if violation not in self.violations:
      self.violations.append(violation)

  def _roles(self) -> list[psutil.Process]:
    """Returns the processes of actors, workers and servers."""
    roles = []
    if self._learner is not None:
      roles += [x for x in _children(self._learner) if _is_role(x)]
    if self._joiner is not None and self._joiner.poll() is None:
      roles.append(self._joiner)
    return roles

  def _environments(self) -> list[psutil.Process]:
    """Returns all processes of environments, including the learner's."""
    parents = [self._learner, *self._roles()]
    children = [child for parent in parents for child in _children(parent)]
    return [child for child in children if not _is_role(child)]

  def _kill(self) -> None:
    self._signal("kill", self._roles(), signal.SIGKILL)

  def _kill_environment(self) -> None:
    self._signal(ENVIRONMENT, self._environments(), signal.SIGKILL)

  def _pause(self) -> None:
    processes = [self._learner, *self._roles(), *self._environments()]
    self._signal("pause", processes, signal.SIGSTOP, signal.SIGCONT)

  def _signal(
    self, kind: str, processes: Sequence[Any], *signals: signal.Signals
  ) -> None:
    """Sends signals, some seconds apart, to a random process."""
    if not processes:
      return
    target = self._rng.choice(processes)
    with contextlib.suppress(psutil.NoSuchProcess):
      words = _words(target)
      kind = SERVER if "server-" in words else kind
      for k, number in enumerate(signals):
        time.sleep(_PAUSE_SECONDS if k else 0.0)
        target.send_signal(number)
      if signals[-1] == signal.SIGKILL:
        psutil.wait_procs([target], timeout=1.0)
      self._note(kind, LEARNER if target is self._learner else words)

  def _kill_learner(self) -> None:
    others = self._learner.children(recursive=True)
    self._learner.kill()
    self._learner.wait()
    self._end_all(others, " by a killed learner")
    self._note("learner", LEARNER)
    self._start()

  def _fill_disk(self) -> None:
    """Lets the learner's writes fail for some seconds, as on a full disk."""
    self._wait_for_start()  # A run cannot start on a full disk.
    self._note("disk", "full")
    pid = self._learner.pid
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    with contextlib.suppress(ProcessLookupError):
      resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, limits[1]))
      time.sleep(_FULL_SECONDS)
      resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    self._check_written("a full disk")

  def _hang(self) -> None:
    """Stops all environments for a while; the run must report the hang."""
    self._wait_for_start()
    self._note("hang", "all environments")
    stopped = self._environments()
    _signal_all(stopped, signal.SIGSTOP)
    reported = self._reports(_HANGS, _STILL_SECONDS)
    _signal_all(stopped, signal.SIGCONT)
    if not reported:
      self._violate("no report of environments that stood still")
    self._moved_seconds = self._now()

  def _hang_update(self) -> None:
    """Makes an update hang; Ctrl-C must still save and end the run."""
    self._wait_for_start()
    self._note("hang", "an update")
    others = self._learner.children(recursive=True)
    self._learner.send_signal(signal.SIGRTMIN)
    if not self._reports(_HANGS, _REPORT_SECONDS):
      self._violate("no report of an update that did not return")
    self._learner.send_signal(signal.SIGINT)
    try:
      status = self._learner.wait(_LEAVE_SECONDS)
    except psutil.TimeoutExpired:
      status = f"none within {_LEAVE_SECONDS:g} s"
      self._learner.kill()
    if status != 128 + signal.SIGINT:
      self._violate(f"a run whose update hung ended with status {status}")
    self._end_all(others, " by a learner that hung")
    newest = self._newest_checkpoint()
    line = _newest_line(self._metrics, self._old_bytes)
    if line is not None and newest != line["env_steps"]:
      self._violate(
        f"expected a checkpoint at {line['env_steps']} steps, found {newest}"
      )
    self._note("learner", LEARNER)
    self._start()

  def _connect_idly(self) -> None:
    """Opens many connections that send nothing for a while."""
    self._wait_for_start()
    self._note("idle", f"{_IDLE_CONNECTIONS} connections")
    host, _, port = self._address.rpartition(":")
    with contextlib.ExitStack() as opened:
      for _ in range(_IDLE_CONNECTIONS):
        with contextlib.suppress(OSError):
          opened.enter_context(socket.create_connection((host, int(port)), 5))
      self._wait_until(self._now() + _STILL_SECONDS / 2)
      self._check_written("idle connections")

  def _check_written(self, fault: str) -> None:
    size, newest = self._metrics.stat().st_size, self._newest_checkpoint()
    deadline = self._now() + _STILL_SECONDS
    while self._now() < deadline:
      grown = self._metrics.stat().st_size > size
      if grown and self._newest_checkpoint() > newest:
        return
      self._wait_until(self._now() + _SAMPLE_SECONDS)
    self._violate(
      f"no line or no checkpoint in {_STILL_SECONDS:g} s after {fault}"
    )

  def _newest_checkpoint(self) -> int:
    steps = checkpoint.Checkpoints(self._run_dir / "checkpoints").steps()
    return steps[-1] if steps else 0

  def _wait_for_start(self) -> None:
    """Waits until the newest learner process learns."""
    first = None
    while self._now() < self._moved_seconds + _HANG_SECONDS:
      line = _newest_line(self._metrics, self._old_bytes)
      has_metrics = self.samples and self.samples[-1].start == self._starts
      if line is not None and has_metrics:
        first = line["learner_steps"] if first is None else first
        if line["learner_steps"] != first:
          return
      self._wait_until(self._now() + _SAMPLE_SECONDS)

  def _reports(self, words: str, seconds: float) -> bool:
    begin = self._now()
    while self._now() < begin + seconds:
      time.sleep(_SAMPLE_SECONDS)
      for line in list(self.stderr):
        at, _, text = line.partition(" ")
        if words in text and float(at) > begin:
          return True
    return False

  def _attack(self) -> None:
    methods = peers.methods(self._config)
    is_gorila = isinstance(self._config, gorila.Config)
    shards = peers.shards(self._config) if is_gorila else []
    while not self._over.wait(1.0 / self._plan.streams_per_second):
      addresses = self._server_addresses() if shards else []
      k = self._rng.randrange(1 + len(addresses))
      if k == 0:
        self._peers.attack(self._address, methods)
      else:
        self._peers.attack(addresses[k - 1], shards[k - 1])

  def _server_addresses(self) -> list[str]:
    with wire.Client(self._address) as client:
      try:
        stream = client.stream(reports.SERVERS, (), wire.NOTHING, wire.NOTHING)
      except wire.WireError:
        return []
      stream.close()
      return list(stream.welcome["addresses"])

  def _sample(self) -> None:
    while not self._over.wait(_SAMPLE_SECONDS):
      learner, start = self._learner, self._starts
      line = _newest_line(self._metrics, self._old_bytes)
      if line is None or learner is None:
        continue
      value = line["episode_return"]
      if value not in (None, environment.RETURN):
        self._violate(f"expected a return of 10, found {value}")
      env_steps = int(line["env_steps"])
      if not self.samples or env_steps != self.samples[-1].env_steps:
        self._moved_seconds = self._now()
      with contextlib.suppress(psutil.Error), learner.oneshot():
        self.samples.append(
          Sample(
            self._now(),
            start,
            env_steps,
            learner.memory_info().rss,
            learner.num_threads(),
            learner.num_fds(),
          )
        )

  def _end(self) -> None:
    """Ends the run as a cluster does, and checks that nothing is left."""
    if self._learner is None:
      return
    joined = self._joiner is not None and self._joiner.poll() is None
    with contextlib.suppress(psutil.NoSuchProcess):
      self._learner.send_signal(signal.SIGTERM)
    status = self._wait_for(self._learner, LEARNER)
    if status not in (None, *_ENDED):
      self._violate(f"the learner ended with {status} after SIGTERM, not 143")
    try:
      metrics.read_lines(self._metrics)
    except (OSError, KeyError) as error:
      self._violate(f"metrics.jsonl cannot be read: {error!r}")
    if self._joiner is not None and joined:
      status = self._wait_for(self._joiner, "a process that had joined")
      if status not in (None, *_LEFT):
        self._violate(f"a process that had joined ended with {status}")
    self._end_all(_marked(self._environment[_MARK]))
    if left := sorted(self._sockets.rglob("*")):
      self._violate(f"left behind: {', '.join(path.name for path in left)}")
    if self._address and _listens(self._address):
      self._violate(f"left behind: a server at {self._address}")

  def _end_all(self, processes: Sequence[psutil.Process], by: str = "") -> None:
    """Reports the processes that do not end, and kills them."""
    # A process of environments notices its parent's end only after it has
    # imported its modules.
    _, left = psutil.wait_procs(processes, timeout=_END_SECONDS / 4)
    for process in left:
      self._violate(f"left behind{by}: {_words(process)}")
      process.kill()

  def _wait_for(self, process: psutil.Popen, name: str) -> int | None:
    try:
      return process.wait(_END_SECONDS)
    except psutil.TimeoutExpired:
      self._violate(f"{name} did not end in {_END_SECONDS:g} s")
      process.kill()
      return None


def recoveries(
  trial: Trial, of_all: Sequence[str]
) -> tuple[list[tuple[Fault, float]], list[tuple[Fault, float]]]:
  """Returns the seconds from each fault until the rate recovered.

  Seconds are infinite if the rate never recovered. A fault is left out if the
  next fault or the trial's end prevents its recovery. A fault of one process is
  also left out if it falls into the recovery of the whole run. A recovery of
  the whole run does not count hangs, nor pauses that stop the run: pauses of
  the learner, and of any process if `of_all` contains the environments' faults.

  Args:
    trial: trial that has ended.
    of_all: kinds of faults that stop the whole run until it restarts.

  Returns:
    Faults of one process, and faults of the whole run, each with its seconds.
  """
  faults = [fault for fault in trial.faults if fault.kind != "start"]
  if not trial.samples:
    return [], []
  all_back = -np.inf
  of_one: list[tuple[Fault, float]] = []
  of_whole: list[tuple[Fault, float]] = []
  for k, fault in enumerate(faults):
    whole = fault.kind in of_all
    if not whole and (fault.kind not in _OF_ONE or fault.seconds < all_back):
      continue
    next_ones = (
      x.seconds for x in faults[k + 1 :] if not whole or x.kind in of_all
    )
    end = next(next_ones, trial.samples[-1].seconds)
    seconds = _back(trial.samples, fault.seconds, end)
    if whole:
      all_back = min(end, fault.seconds + (seconds or np.inf))
    if seconds is None:
      continue
    if whole:
      seconds -= sum(
        _STILL_SECONDS if x.kind == "hang" else _PAUSE_SECONDS
        for x in faults
        if (
          x.kind == "hang"
          or (
            x.kind == "pause" and (x.target == LEARNER or ENVIRONMENT in of_all)
          )
        )
        and 0.0 < x.seconds - fault.seconds < seconds
      )
    if seconds < np.inf or end - fault.seconds > _HANG_SECONDS:
      (of_whole if whole else of_one).append((fault, seconds))
  return of_one, of_whole


def _back(
  samples: Sequence[Sample], since: float, until: float
) -> float | None:
  """Returns the seconds until the rate recovers; None without earlier rates."""
  earlier = _rates(samples, since - 15.0, since)
  if not earlier:
    return None
  threshold = _BACK * float(np.median([rate for _, rate in earlier]))
  later = _rates(samples, since, until)
  return next((at - since for at, rate in later if rate >= threshold), np.inf)


def cold_start(trial: Trial) -> float:
  """Returns the seconds until the first start reaches half its median rate."""
  first = [s for s in trial.samples if s.start == 1]
  rates = [(at, x) for at, x in _rates(first, 0.0, np.inf) if x > 0.0]
  threshold = _BACK * float(np.median([rate for _, rate in rates] or [np.inf]))
  return next((at for at, rate in rates if rate >= threshold), np.inf)


def growth(trial: Trial) -> dict[str, float]:
  """Returns growth since minute 2: memory as a ratio, threads, and files."""
  start = trial.samples[-1].start if trial.samples else 0
  same = [s for s in trial.samples if s.start == start]
  end = trial.samples[-1].seconds if trial.samples else 0.0
  early = _medians(trial.samples, 90.0, 120.0)
  late = _medians(same, end - 30.0, end)
  if not early or not late:
    return {}
  return {
    "memory": late["memory_bytes"] / early["memory_bytes"],
    "threads": late["threads"] - early["threads"],
    "files": late["files"] - early["files"],
  }


def _medians(
  samples: Sequence[Sample], since: float, until: float
) -> dict[str, float]:
  chosen = [s for s in samples if since <= s.seconds <= until]
  if not chosen:
    return {}
  columns = np.median(np.array(chosen), axis=0).tolist()
  return dict(zip(Sample._fields, columns, strict=True))


def _rates(
  samples: Sequence[Sample], since: float, until: float
) -> list[tuple[float, float]]:
  """Returns the ends of intervals of about a second, and their rates."""
  chosen = [s for s in samples if since <= s.seconds <= until]
  rates = []
  first = 0
  for last in chosen:
    while last.seconds - chosen[first].seconds > _BACK_SECONDS + 0.5:
      first += 1
    seconds = last.seconds - chosen[first].seconds
    if seconds < _BACK_SECONDS or chosen[first].start != last.start:
      continue
    steps = last.env_steps - chosen[first].env_steps
    rates.append((last.seconds, steps / seconds))
  return rates


def _newest_line(path: pathlib.Path, after: int) -> dict[str, Any] | None:
  try:
    with open(path, "rb") as file:
      size = file.seek(0, os.SEEK_END)
      file.seek(max(after, size - _LINE_BYTES))
      *_, line, _ = file.read().split(b"\n")
    return json.loads(line)
  except (OSError, ValueError):
    return None


def _marked(mark: str) -> list[psutil.Process]:
  processes = []
  for process in psutil.process_iter():
    with contextlib.suppress(psutil.Error):
      if process.environ().get(_MARK) == mark:
        processes.append(process)
  return processes


def _signal_all(
  processes: Sequence[psutil.Process], number: signal.Signals
) -> None:
  for process in processes:
    with contextlib.suppress(psutil.NoSuchProcess):
      process.send_signal(number)


def _children(process: Any) -> list[psutil.Process]:
  with contextlib.suppress(psutil.Error):
    return process.children()
  return []


def _is_role(process: psutil.Process) -> bool:
  return "seedx.launch" in _words(process)


def _words(process: psutil.Process) -> str:
  """Returns the command of a process without the interpreter."""
  with contextlib.suppress(psutil.Error):
    return " ".join(process.cmdline()[2:]).split("\n")[0][:40]
  return str(process.pid)


def _listens(address: str) -> bool:
  host, _, port = address.rpartition(":")
  with socket.socket() as probe:
    return probe.connect_ex((host, int(port))) == 0


def _free_port() -> int:
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]
