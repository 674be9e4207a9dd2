"""One pipeline, run while its processes, peers and disk fail."""

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
from seedx.app.chaos import audit, environment, peers, program
from seedx.pipelines import gorila, seed
from seedx.pipelines.gorila import reports

# Lines of stderr that are kept.
_SAID = 200
# The fault of a parameter server, for which all workers wait.
SERVER = "server"
# That of an environment; it ends a run that has no actors.
ENVIRONMENT = "environment"
_OF_ONE = ("kill", "pause", ENVIRONMENT)
# Whom a fault of the learner hits.
LEARNER = "the learner"
# Marks every process of a trial, in its environment.
_MARK = "SEEDX_CHAOS"
_SAMPLE_SECONDS = 0.25
# A pipeline that makes no step for so long, and is not stopped, hangs.
_HANG_SECONDS = 90.0
_PAUSE_SECONDS = 3.0
_FULL_SECONDS = 20.0
# How long environments, or idle connections, stand still; how soon a run says
# so (see `main`), and the time from Ctrl-C to the end of one whose update
# hangs, on a machine that is busy.
_STILL_SECONDS = 20.0
_REPORT_SECONDS = 30.0
_LEAVE_SECONDS = 12.0
_HANGS = "no env step and no update"
_IDLE_CONNECTIONS = 1500
_END_SECONDS = 60.0
# How long a process that joins waits for a learner that starts again.
_GIVE_UP_SECONDS = 45.0
# Exit statuses after SIGTERM, by seedx, and where it has not begun to handle
# it; and of a process that joins, at the run's end or without a learner.
_ENDED = (128 + signal.SIGTERM, -signal.SIGTERM)
_LEFT = (0, 3)
# The rate that a fault ends, as a part of the rate before, and over how long.
_BACK = 0.5
_BACK_SECONDS = 1.0
# More than a line of metrics has.
_LINE_BYTES = 8192


@dataclasses.dataclass(frozen=True)
class Plan:
  """What happens in a trial.

  Attributes:
    experiment: that trains.
    seconds: how long.
    seed: of what happens.
    kills: of actors, workers and servers.
    environment_kills: of the processes of their environments. Six deaths of an
      actor that follow from them in ten minutes would end the run.
    pauses: of those, or of the learner, each for some seconds.
    learner_kills: of the learner, which resumes.
    full_disks: times in which nothing can be written.
    hangs: times in which all environments stand still.
    hanging_updates: updates that do not return, until Ctrl-C ends the run.
    idle_connections: times in which many connections are open and silent.
    streams_per_second: of hostile peers.
    environments_fail: whether faults of environments end the run.
    options: of the experiment.
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
  """What is seen of the learner at a moment.

  Attributes:
    seconds: when, since the trial's start.
    start: the number of the learner's start.
    env_steps: in its newest line of metrics.
    memory_bytes: resident.
    threads: of the process.
    files: open, sockets and pipes included.
  """

  seconds: float
  start: int
  env_steps: int
  memory_bytes: int
  threads: int
  files: int


class Fault(NamedTuple):
  """What was done, to whom, and when it ended, since the trial's start."""

  seconds: float
  kind: str
  whom: str


class Trial:
  """A run of a pipeline, and all that is done to it.

  Attributes:
    violations: what must not be.
    faults: what was done.
    samples: of the learner.
    audited: windows that were looked at.
    said: the newest lines on stderr.
  """

  def __init__(self, plan: Plan, folder: pathlib.Path) -> None:
    """Starts nothing yet; `folder` is for the run and its temporary files."""
    self.violations: list[str] = []
    self.faults: list[Fault] = []
    self.samples: list[Sample] = []
    self.audited = 0
    self.said: collections.deque[str] = collections.deque(maxlen=_SAID)
    self._plan = plan
    self._rng = random.Random(plan.seed)
    self._run_dir = folder / "run"
    self._metrics = self._run_dir / "metrics.jsonl"
    # Lines of earlier starts end here.
    self._old_bytes = 0
    # When the newest env step was seen.
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
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    self._start_seconds = time.monotonic()
    self._starts = 0
    self._over = threading.Event()
    self._learner: psutil.Popen | None = None
    self._joiner: psutil.Popen | None = None

  @property
  def statuses(self) -> dict[str, int]:
    """How many hostile streams ended how."""
    return dict(self._peers.statuses)

  def run(self) -> None:
    """Runs it to its end, and checks that nothing is left."""
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
    """When each fault is, in seconds since the first step, in order.

    The learner's last start is early enough to see whether memory grows.
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
    """Waits for the first env step; returns when it was."""
    while self._now() < _HANG_SECONDS:
      for sample in self.samples[-1:]:
        if sample.env_steps > 0:
          return sample.seconds
      time.sleep(_SAMPLE_SECONDS)
    self._violate(f"no step in the first {_HANG_SECONDS:g} s")
    return self._now()

  def _wait_until(self, seconds: float) -> None:
    """Waits, and looks after the processes."""
    while self._now() < seconds:
      assert self._learner is not None
      status = self._learner.poll()
      if status is not None:
        self._resume(status)
      self._look_for_hang()
      if self._joiner is not None and self._joiner.poll() is not None:
        self._join()
      time.sleep(_SAMPLE_SECONDS)

  def _resume(self, status: int) -> None:
    """Goes on with a run that ended, as only its environments may end it."""
    if self._plan.environments_fail and any(
      fault in line for line in self.said for fault in environment.FAULTS
    ):
      self._note(ENVIRONMENT, f"status {status}")
    else:
      why = "; ".join(line for line in self.said if "error: " in line)
      self._violate(f"the learner ended with status {status}: {why}")
      self._note("end", f"status {status}")
    self.said.clear()
    self._start()

  def _start(self) -> None:
    """Starts the learner, or resumes its run."""
    resumes = (self._run_dir / "checkpoints").exists() and any(
      (self._run_dir / "checkpoints").iterdir()
    )
    if not resumes:
      # Killed before its first checkpoint.
      with contextlib.suppress(FileNotFoundError):
        (self._run_dir / "config.json").unlink()
    words = ["--resume" if resumes else "--run-dir", str(self._run_dir)]
    if self._address:
      words += ["--address", self._address]
    self._starts += 1
    self._moved_seconds = self._now()
    if self._metrics.exists():
      self._old_bytes = self._metrics.stat().st_size
    self._learner = self._popen(
      "seedx.app.chaos.program",
      self._plan.experiment,
      *words,
      *self._plan.options,
    )
    self._note("start", "resumed" if resumes else "new")
    if self._serves and self._joiner is None:
      self._join()

  def _join(self) -> None:
    """One process more than there are places for; it takes over from others."""
    if isinstance(self._config, seed.Config):
      words = ["seedx.join", self._address]
    else:
      role = "worker" if isinstance(self._config, gorila.Config) else "actor"
      words = ["seedx.app.chaos.program", self._plan.experiment]
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
    """Reads what a process and its children say."""
    seen = 0
    for line in process.stderr:
      line = line.rstrip()
      if line.startswith(audit.VIOLATION):
        self._violate(line)
      elif line.startswith(audit.AUDITED):
        seen = max(seen, int(line.split()[-1]))
      else:
        self.said.append(f"{self._now():.1f} {line}")
    self.audited += seen

  def _note(self, kind: str, whom: str) -> None:
    self.faults.append(Fault(self._now(), kind, whom))

  def _violate(self, violation: str) -> None:
    if violation not in self.violations:
      self.violations.append(violation)

  def _roles(self) -> list[psutil.Process]:
    """The actors, workers and servers."""
    found = []
    if self._learner is not None:
      found += [x for x in _children(self._learner) if _is_role(x)]
    if self._joiner is not None and self._joiner.poll() is None:
      found.append(self._joiner)
    return found

  def _environments(self) -> list[psutil.Process]:
    """The processes of environments, those of the learner included."""
    parents = [self._learner, *self._roles()]
    found = [child for parent in parents for child in _children(parent)]
    return [child for child in found if not _is_role(child)]

  def _kill(self) -> None:
    self._signal("kill", self._roles(), signal.SIGKILL)

  def _kill_environment(self) -> None:
    self._signal(ENVIRONMENT, self._environments(), signal.SIGKILL)

  def _pause(self) -> None:
    processes = [self._learner, *self._roles(), *self._environments()]
    self._signal("pause", processes, signal.SIGSTOP, signal.SIGCONT)

  def _signal(
    self, kind: str, whom: Sequence[Any], *signals: signal.Signals
  ) -> None:
    """Sends signals, some seconds apart, to one of some processes."""
    if not whom:
      return
    one = self._rng.choice(whom)
    with contextlib.suppress(psutil.NoSuchProcess):
      words = _words(one)
      kind = SERVER if "server-" in words else kind
      for k, number in enumerate(signals):
        time.sleep(_PAUSE_SECONDS if k else 0.0)
        one.send_signal(number)
      self._note(kind, LEARNER if one is self._learner else words)

  def _kill_learner(self) -> None:
    assert self._learner is not None
    others = self._learner.children(recursive=True)
    self._learner.kill()
    self._learner.wait()
    _, left = psutil.wait_procs(others, timeout=_END_SECONDS / 4)
    for process in left:
      self._violate(f"left behind by a killed learner: {_words(process)}")
      process.kill()
    self._note("learner", LEARNER)
    self._start()

  def _fill_disk(self) -> None:
    """No file may grow for some seconds: writes fail as on a full disk."""
    assert self._learner is not None
    self._wait_for_start()  # None starts on a full disk.
    self._note("disk", "full")
    pid = self._learner.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    with contextlib.suppress(ProcessLookupError):
      resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
      time.sleep(_FULL_SECONDS)
      resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    self._check_written("a full disk")

  def _hang(self) -> None:
    """All environments stand still, which the run has to report."""
    self._wait_for_start()
    self._note("hang", "all environments")
    stopped = self._environments()
    for process in stopped:
      with contextlib.suppress(psutil.NoSuchProcess):
        process.suspend()
    reported = self._says(_HANGS, _STILL_SECONDS)
    for process in stopped:
      with contextlib.suppress(psutil.NoSuchProcess):
        process.resume()
    if not reported:
      self._violate("no report of environments that stood still")
    self._moved_seconds = self._now()

  def _hang_update(self) -> None:
    """An update does not return: Ctrl-C still saves and ends the run."""
    assert self._learner is not None
    self._wait_for_start()
    self._note("hang", "an update")
    others = self._learner.children(recursive=True)
    self._learner.send_signal(signal.SIGUSR1)
    if not self._says(_HANGS, _REPORT_SECONDS):
      self._violate("no report of an update that did not return")
    self._learner.send_signal(signal.SIGINT)
    try:
      status = self._learner.wait(_LEAVE_SECONDS)
    except psutil.TimeoutExpired:
      status = f"none within {_LEAVE_SECONDS:g} s"
      self._learner.kill()
    if status != 128 + signal.SIGINT:
      self._violate(f"a run whose update hung ended with status {status}")
    _, left = psutil.wait_procs(others, timeout=_END_SECONDS / 4)
    for process in left:
      self._violate(f"left behind by one that hung: {_words(process)}")
      process.kill()
    newest = self._newest_checkpoint()
    line = _newest_line(self._metrics, self._old_bytes)
    if line is not None and newest != line["env_steps"]:
      self._violate(
        f"checkpoint {newest} of a run of {line['env_steps']} steps"
      )
    self._note("learner", LEARNER)
    self._start()

  def _connect_idly(self) -> None:
    """Many connections are open, and say nothing."""
    self._wait_for_start()
    self._note("idle", f"{_IDLE_CONNECTIONS} connections")
    host, _, port = self._address.rpartition(":")
    with contextlib.ExitStack() as opened:
      for _ in range(_IDLE_CONNECTIONS):
        with contextlib.suppress(OSError):
          opened.enter_context(socket.create_connection((host, int(port)), 5))
      self._wait_until(self._now() + _STILL_SECONDS / 2)
      self._check_written("idle connections")

  def _check_written(self, what: str) -> None:
    """Checks that lines and checkpoints are written."""
    lines, newest = self._metrics.stat().st_size, self._newest_checkpoint()
    deadline = self._now() + _STILL_SECONDS
    while self._now() < deadline:
      more = self._metrics.stat().st_size > lines
      if more and self._newest_checkpoint() > newest:
        return
      self._wait_until(self._now() + _SAMPLE_SECONDS)
    self._violate(f"no line or no checkpoint in {_STILL_SECONDS:g} s of {what}")

  def _newest_checkpoint(self) -> int:
    found = checkpoint.Checkpoints(self._run_dir / "checkpoints").steps()
    return found[-1] if found else 0

  def _wait_for_start(self) -> None:
    """Waits until the newest start of the learner learns."""
    first = None
    while self._now() < self._moved_seconds + _HANG_SECONDS:
      line = _newest_line(self._metrics, self._old_bytes)
      if line is not None and self._newest_start() == self._starts:
        first = line["learner_steps"] if first is None else first
        if line["learner_steps"] != first:
          return
      self._wait_until(self._now() + _SAMPLE_SECONDS)

  def _says(self, words: str, seconds: float) -> bool:
    """Waits so long; whether the processes wrote some words meanwhile."""
    begin = self._now()
    while self._now() < begin + seconds:
      time.sleep(_SAMPLE_SECONDS)
      for line in list(self.said):
        at, _, text = line.partition(" ")
        if words in text and float(at) > begin:
          return True
    return False

  def _newest_start(self) -> int:
    """The newest start of which metrics have been seen."""
    return self.samples[-1].start if self.samples else 0

  def _attack(self) -> None:
    """Makes hostile streams until the trial is over."""
    known = peers.methods(self._config)
    servers = []
    if isinstance(self._config, gorila.Config):
      servers = peers.shards(self._config)
    while not self._over.wait(1.0 / self._plan.streams_per_second):
      addresses = self._server_addresses() if servers else []
      k = self._rng.randrange(1 + len(addresses))
      if k == 0:
        self._peers.attack(self._address, known)
      else:
        self._peers.attack(addresses[k - 1], servers[k - 1])

  def _server_addresses(self) -> list[str]:
    with wire.Client(self._address) as client:
      try:
        stream = client.stream(reports.SERVERS, (), wire.NOTHING, wire.NOTHING)
      except wire.WireError:
        return []
      stream.close()
      return list(stream.welcome["addresses"])

  def _sample(self) -> None:
    """Samples the learner until the trial is over."""
    while not self._over.wait(_SAMPLE_SECONDS):
      learner, start = self._learner, self._starts
      line = _newest_line(self._metrics, self._old_bytes)
      if line is None or learner is None:
        continue
      self._check_line(line)
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

  def _check_line(self, line: dict[str, Any]) -> None:
    found = line["episode_return"]
    if found not in (None, environment.RETURN):
      self._violate(f"a return of {found}, where every episode's is 10")

  def _look_for_hang(self) -> None:
    if self._now() - self._moved_seconds > _HANG_SECONDS:
      self._violate(f"no step for {_HANG_SECONDS:g} s at {self._now():.0f} s")
      self._moved_seconds = self._now()

  def _end(self) -> None:
    """Ends the run as a cluster does, and looks for what is left."""
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
    # A process of environments may still import what it needs before it sees
    # that its parent has ended.
    _, left_behind = psutil.wait_procs(
      _marked(self._environment[_MARK]), timeout=_END_SECONDS / 4
    )
    for process in left_behind:
      self._violate(f"left behind: {_words(process)}")
      process.kill()
    if left := sorted(self._sockets.rglob("*")):
      self._violate(f"left behind: {', '.join(path.name for path in left)}")
    if self._address and _listens(self._address):
      self._violate(f"left behind: a server at {self._address}")

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
  """Seconds from each fault until the rate was back; infinite for never.

  Those that are overtaken by the next fault of their kind, or by the trial's
  end, are left out, and those of one process while all are not yet back. That
  the learner, or an environment without which it cannot go on, is stopped
  meanwhile does not count.

  Args:
    trial: that has ended.
    of_all: kinds of faults that stop the whole run until it starts again.

  Returns:
    Those of one process, and those of all.
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
            x.kind == "pause" and (x.whom == LEARNER or ENVIRONMENT in of_all)
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
  """Seconds until the rate is back before `until`; None if there was none."""
  before = _rates(samples, since - 15.0, since)
  if not before:
    return None
  wanted = _BACK * float(np.median([rate for _, rate in before]))
  after = _rates(samples, since, until)
  return next((at - since for at, rate in after if rate >= wanted), np.inf)


def cold_start(trial: Trial) -> float:
  """Seconds from the learner's first start until it had half of its rate.

  Some pipelines step their environments before they have compiled all.
  """
  first = [s for s in trial.samples if s.start == 1]
  rates = [(at, x) for at, x in _rates(first, 0.0, np.inf) if x > 0.0]
  wanted = _BACK * float(np.median([rate for _, rate in rates] or [np.inf]))
  return next((at for at, rate in rates if rate >= wanted), np.inf)


def growth(trial: Trial) -> dict[str, float]:
  """How much memory, threads and files are more than at minute 2.

  Memory is a ratio, the others are differences.
  """
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
  """Env steps per second over a second, with the end of each."""
  chosen = [s for s in samples if since <= s.seconds <= until]
  found = []
  first = 0
  for last in chosen:
    while last.seconds - chosen[first].seconds > _BACK_SECONDS + 0.5:
      first += 1
    seconds = last.seconds - chosen[first].seconds
    if seconds < _BACK_SECONDS or chosen[first].start != last.start:
      continue
    steps = last.env_steps - chosen[first].env_steps
    found.append((last.seconds, steps / seconds))
  return found


def _newest_line(path: pathlib.Path, after: int) -> dict[str, Any] | None:
  """The last whole line of a file, if there is one after so many bytes."""
  try:
    with open(path, "rb") as file:
      size = file.seek(0, os.SEEK_END)
      file.seek(max(after, size - _LINE_BYTES))
      *_, line, _ = file.read().split(b"\n")
    return json.loads(line)
  except (OSError, ValueError):
    return None


def _marked(mark: str) -> list[psutil.Process]:
  found = []
  for process in psutil.process_iter():
    with contextlib.suppress(psutil.Error):
      if process.environ().get(_MARK) == mark:
        found.append(process)
  return found


def _children(process: Any) -> list[psutil.Process]:
  with contextlib.suppress(psutil.Error):
    return process.children()
  return []


def _is_role(process: psutil.Process) -> bool:
  return "seedx.launch" in _words(process)


def _words(process: psutil.Process) -> str:
  """How a process was called, without the interpreter."""
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
