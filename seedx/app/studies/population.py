"""Population-based training: runs that copy better runs while they train.

  seedx population impala --search "learning_rate=log:1e-4..1e-2" --members 8

Each member is a run of the experiment with its own seed and its own values of
the settings. When it has made `--ready-steps` more steps, a member whose score
is too low copies the newest checkpoint of a better one (exploit), changes its
values (explore) and continues with its own count of steps. Only such members
start again, and no member waits for another. If there are fewer CPUs than
members, these take turns. A member that dies continues from its checkpoint; if
it dies again before it is ready, it counts as the worst.

The output is `lineage.jsonl` with the values of all members from their start
and from each change on, `population.png`, and a directory for each member. An
experiment may have its own options: `seedx population "impala --agent a2c"`.
"""

import contextlib
import dataclasses
import math
import pathlib
import queue
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from seedx import metrics, search_spaces, types
from seedx.app import lineage
from seedx.app.cli import command_line
from seedx.app.runs import resuming, run_folders, saved_agents
from seedx.app.studies import pool, study, sweep, trials
from seedx.learning import populations

_MEMBERS, _PICTURE = "members", "population.png"
_NAMES = run_folders.LINEAGE, _PICTURE, _MEMBERS
# A better member's checkpoint should not be much older than its score.
_OPTIONS = ("--checkpoint-every-seconds", "10")
# A member ends if it dies as often as this before it is ready again.
_DEATHS = 3
# Time for a process of a lost machine to leave its directory.
_PATIENCE = 180.0
_POLL_SECONDS = 0.2
# Time for a cluster to notice that a machine has died.
_RESTART_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(study.Options, populations.Config):
  """Options of `seedx population`; `search` has ranges only."""

  members: int = types.setting(8, low=2, high=2**10)
  total_steps: int = types.setting(1_000_000, low=1)


def main(argv: Sequence[str] | None = None) -> int:
  """Trains the population; returns its exit status."""
  return command_line.run(
    _train,
    Options(),
    "seedx population",
    __doc__,
    argv,
    positional=("experiment",),
  )


def _train(options: Options) -> int:
  options, words, config = options.checked(*_OPTIONS)
  spaces = populations.spaces(options.search, config.run.agent, "--search")
  # The accelerator belongs to the members.
  jax.config.update("jax_platforms", "cpu")
  return options.train(
    "population",
    _NAMES,
    lambda trained: _Population(options, words, spaces, trained).train(),
  )


@dataclasses.dataclass
class _Member:
  """A run of the population, at its newest line of metrics."""

  trial: trials.Trial  # Without words.
  values: Mapping[str, str]
  # The member that its next start copies, perhaps itself, and its new values.
  change: "tuple[_Member, Mapping[str, str]] | None" = None
  steps: int = 0
  score: float = math.nan  # Also if it has diverged.
  is_paused: bool = False  # To change, or to give its place to another.
  deaths: int = 0  # Since the last comparison.
  error: str = ""


class _Population:
  """The members, and what the trials of a pool need from them."""

  def __init__(
    self,
    options: Options,
    words: Sequence[str],
    spaces: populations.Spaces,
    trained: pool.Pool,
  ) -> None:
    self._options, self._words, self._spaces = options, words, spaces
    self._pool, self._stop = trained, trained.stop
    trained.prepare = self.prepare
    self._record = pool.Record(trained.run_dir, run_folders.LINEAGE)
    self._waiting = queue.SimpleQueue[trials.Trial | None]()
    # Held while members are compared.
    self._lock = threading.Lock()
    self._members: list[_Member] = []
    for k, x in enumerate(
      search_spaces.drawn(spaces, options.members, options.seed)
    ):
      name = f"{_MEMBERS}/{k:03d}"
      trial = trials.Trial(name, (), options.seed + k, resumes=True)
      self._members.append(_Member(trial, x))
      self._members[k].change = self._members[k], x
    past = {line["member"]: line for line in self._record.lines()}
    for k, line in past.items():
      member, parent = self._members[k], line["parent"]
      member.values = {n: spaces[n].word(x) for n, x in line["values"].items()}
      # The change may have been lost if no checkpoint came after the line.
      is_lost = [line["steps"]] == resuming.saved(self._folder(member))[-1:]
      other = member if parent is None else self._members[parent]
      member.change = (other, member.values) if is_lost else None
      last = trials.Result.read(member.trial, trained.run_dir).last
      member.steps, member.score = self._saved(member), self._score(last)

  def train(self) -> int:
    """Trains all members to their end; returns the exit status."""
    left = 0
    for member in self._members:
      if member.steps < self._options.total_steps:
        self._waiting.put(member.trial)
        left += 1
    if not left:
      self._waiting.put(None)
    for trial, error in self._pool.results(
      iter(self._waiting.get, None), self.ends
    ):
      member = self._member(trial)
      member.error = error
      if not self._stop.is_set() and self._goes_on(member):
        self._waiting.put(trial)
      else:
        left -= 1
      if not left or self._stop.is_set():
        self._waiting.put(None)
    for member in self._members:
      member.steps = max(member.steps, self._saved(member))
      self._note(member, member.steps, member)
    folder = self._pool.run_dir
    lineage.draw(folder, folder / _PICTURE)
    best = max(self._members, key=lambda x: (x.score == x.score, x.score))
    print(
      f"best member: {self._options.score} {best.score:.4g} after"
      f" {best.steps:,} steps, {self._folder(best)}\n{_PICTURE} is in"
      f" {folder}",
      flush=True,
    )
    return int(self._stop.is_set() or any(x.error for x in self._members))

  def ends(self, trial: trials.Trial, line: Mapping[str, Any]) -> bool:
    """Returns whether a member ends for now; see `pool.Ends`."""
    member, steps = self._member(trial), line[metrics.clock(line)]
    with self._lock:
      past = member.steps
      if steps <= past:  # A line from before its last start.
        return False
      member.steps, member.score = steps, self._score(line)
      every, total = self._options.ready_steps, self._options.total_steps
      if steps // every == past // every or steps >= total:
        return False
      member.deaths = 0
      self._compare(member)
      takes_turns = self._pool.places < len(self._members)
      others_wait = takes_turns and not self._waiting.empty()
      member.is_paused = member.change is not None or others_wait
      return member.is_paused

  def prepare(self, trial: trials.Trial) -> trials.Trial:
    """Changes a member that is about to start; returns its trial."""
    member, end_seconds = self._member(trial), time.monotonic() + _PATIENCE
    self._stop.wait(member.deaths * _RESTART_SECONDS)
    with contextlib.ExitStack() as stack:
      while self._folder(member).exists():  # Until its last process has left.
        try:
          stack.enter_context(run_folders.claimed(self._folder(member)))
          break
        except types.ConfigError:
          if time.monotonic() > end_seconds or self._stop.wait(_POLL_SECONDS):
            raise
      if member.change is not None:
        self._change(member, *member.change)
    member.steps, member.is_paused = self._saved(member), False
    words = [*self._words, *sweep.option_words(member.values)]
    return dataclasses.replace(trial, words=words)

  def _compare(self, member: _Member) -> None:
    """Decides whether a member that is ready changes."""
    rivals = [
      x
      for x in self._members
      if x is member or (not math.isnan(x.score) and self._saved(x))
    ]
    own = rivals.index(member)
    key = jax.random.key(member.trial.seed)
    key = jax.random.fold_in(key, member.steps % 2**31)
    sources, evolved = populations.evolve(
      self._options,
      key,
      jnp.array([x.score for x in rivals], jnp.float32),
      {
        name: jnp.array([float(x.values[name]) for x in rivals])
        for name in self._spaces
      },
      self._spaces,
    )
    other = rivals[int(sources[own])]
    values = {
      name: space.word(float(evolved[name][own]))
      for name, space in self._spaces.items()
    }
    if other is not member or values != member.values:
      member.change = other, values

  def _change(
    self, member: _Member, other: _Member, values: Mapping[str, str]
  ) -> None:
    """Changes a member that does not train now."""
    is_saved = bool(resuming.saved(self._folder(member)))
    steps, member.values = self._saved(member), values
    # The line comes first: after a kill, a resume makes the change again.
    self._note(member, steps, other if is_saved else member)
    if is_saved:
      saved_agents.copy(
        self._folder(member), self._folder(other), _numbers(values)
      )
      source = "" if other is member else f", a copy of {other.trial.name}"
      words = " ".join(sweep.option_words(values))
      _print(f"{member.trial.name} after {steps:,} steps{source}: {words}")
    member.change = None

  def _note(self, member: _Member, steps: int, other: _Member) -> None:
    parent = None if other is member else self._members.index(other)
    k, values = self._members.index(member), _numbers(member.values)
    change = lineage.Change(steps, k, parent, values)
    self._record.add(change._asdict())

  def _goes_on(self, member: _Member) -> bool:
    """Returns whether a member whose process has ended starts again."""
    if self._saved(member) >= self._options.total_steps:
      return False
    if not member.error:
      return member.is_paused
    member.deaths += 1
    _print(f"{member.trial.name} died: {member.error}")
    if member.deaths == _DEATHS - 1:
      with self._lock:
        member.score = math.nan
        self._compare(member)
    return member.deaths < _DEATHS

  def _score(self, line: Mapping[str, Any]) -> float:
    score: Any = line.get(self._options.score)
    return float(score) if metrics.is_number(score) else math.nan

  def _folder(self, member: _Member) -> pathlib.Path:
    return self._pool.run_dir / member.trial.name

  def _saved(self, member: _Member) -> int:
    """Returns the steps of a member's newest checkpoint; 0 without one."""
    return max(resuming.saved(self._folder(member)), default=0)

  def _member(self, trial: trials.Trial) -> _Member:
    return next(x for x in self._members if x.trial.name == trial.name)


def _numbers(values: Mapping[str, str]) -> dict[str, float]:
  return {name: float(x) for name, x in values.items()}


def _print(line: str) -> None:
  print(line, file=sys.stderr, flush=True)
