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
import json
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

from seedx import files, metrics, search_spaces, signals, types
from seedx.app import lineage
from seedx.app.cli import command_line
from seedx.app.runs import resuming, run_folders, saved_agents
from seedx.app.studies import places, pool, sweep, trials
from seedx.learning import populations

_MEMBERS, _PICTURE = "members", "population.png"
_NAMES = run_folders.CONFIG, run_folders.LINEAGE, _PICTURE, _MEMBERS, pool.ENDED
# Options that may have other values when a population is resumed.
_MAY_DIFFER = {*sweep.MAY_DIFFER} - {"trials"}
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
class Options(places.Config, populations.Config):
  """Options of `seedx population`.

  Attributes:
    experiment: experiment to train; it may have its own options.
    search: hyper-parameters that differ between members, as NAME=LOW..HIGH or
      NAME=log:LOW..HIGH, with commas between them.
    env: name of the environment, for an experiment without --env of its own.
    total_steps: steps of each member.
    seed: seed of the first member; others follow. It also determines draws.
    score: metric whose newest value ranks members, larger is better:
      episode_return, or an entry that EXPERIMENT logs with --log-info.
    run_dir: output directory; runs/population/<time> if empty. All machines of
      a cluster must share this directory.
    resume: whether to continue the population in --run-dir, with the same
      options; only the machines may differ.
  """

  experiment: str = ""
  search: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  members: int = types.setting(8, low=2, high=2**10)
  env: str = ""
  total_steps: int = types.setting(1_000_000, low=1)
  seed: int = types.setting(0, low=0, high=2**29)
  score: str = "episode_return"
  run_dir: str = ""
  resume: bool = False

  def __post_init__(self) -> None:
    places.Config.__post_init__(self)


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
  words = trials.words_of(options.experiment, options.env, options.total_steps)
  words[1:1] = _OPTIONS
  config = sweep.checked(options.experiment, words)
  score = sweep.score_of(options.score, config.run.env.log_info)
  options = dataclasses.replace(options, score=score)
  spaces = populations.spaces(options.search, config.run.agent, "--search")
  if options.resume:
    pool.check_resumed(options, _MAY_DIFFER)
  names = () if options.resume else _NAMES
  run_dir = run_folders.new(options.run_dir, "population", names).absolute()
  # The accelerator belongs to the members.
  jax.config.update("jax_platforms", "cpu")
  stop = threading.Event()
  population = _Population(options, words, spaces, run_dir, stop)
  with (
    signals.stopping(stop) as ending,
    options.opened(
      run_dir, stop, waits=False, score=score, prepare=population.prepare
    ) as trained,
  ):
    text = json.dumps(dataclasses.asdict(options), indent=2)
    files.write_file(run_dir / run_folders.CONFIG, text + "\n")
    status = population.train(trained)
  return ending.status or status


@dataclasses.dataclass
class _Member:
  """A run of the population, at its newest line of metrics."""

  trial: trials.Trial  # Without words.
  values: Mapping[str, str]
  # The member that its next start copies, perhaps itself, and its new values.
  change: "tuple[_Member, Mapping[str, str]] | None" = None
  steps: int = 0
  score: float = math.nan  # Also if it has diverged.
  ready: int = 0  # Steps of the next comparison.
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
    run_dir: pathlib.Path,
    stop: threading.Event,
  ) -> None:
    self._options, self._words, self._spaces = options, words, spaces
    self._run_dir, self._stop = run_dir, stop
    self._record = pool.Record(run_dir, run_folders.LINEAGE)
    self._waiting = queue.SimpleQueue[trials.Trial | None]()
    self._takes_turns = False
    # Held while members are compared.
    self._lock = threading.Lock()
    self._members: list[_Member] = []
    for k, x in enumerate(
      search_spaces.drawn(spaces, options.members, options.seed)
    ):
      name = f"{_MEMBERS}/{k:03d}"
      member = _Member(
        trials.Trial(name, (), options.seed + k, resumes=True), x
      )
      member.change = member, x
      self._members.append(member)
    past = self._record.lines()
    self._num_comparisons = len(past)
    for line in past:
      member = self._members[line["member"]]
      values = {k: spaces[k].word(x) for k, x in line["values"].items()}
      member.values, member.change = values, None
      # The change may have been lost if no checkpoint came after the line.
      if [line["steps"]] == resuming.saved(self._folder(member))[-1:]:
        parent = line["parent"]
        other = member if parent is None else self._members[parent]
        member.change = other, member.values
    for member in self._members:
      last = trials.Result.read(member.trial, run_dir).last
      member.steps, member.score = self._saved(member), self._score(last)

  def train(self, trained: pool.Pool) -> int:
    """Trains all members to their end; returns the exit status."""
    self._takes_turns = trained.places < len(self._members)
    total = self._options.total_steps
    left = [x.trial.name for x in self._members if x.steps < total]
    for member in self._members:
      if member.trial.name in left:
        self._waiting.put(member.trial)
    if not left:
      self._waiting.put(None)
    for trial, error in trained.results(
      iter(self._waiting.get, None), self.ends
    ):
      member = self._member(trial)
      member.error = error
      if not self._stop.is_set() and self._goes_on(member):
        self._waiting.put(trial)
      else:
        left.remove(trial.name)
      if not left or self._stop.is_set():
        self._waiting.put(None)
    for member in self._members:
      member.steps = max(member.steps, self._saved(member))
      self._note(member, member.steps, member)
    picture = self._run_dir / _PICTURE
    lineage.draw(self._run_dir, picture)
    best = max(self._members, key=lambda x: (x.score == x.score, x.score))
    print(
      f"best member: {self._options.score} {best.score:.4g} after"
      f" {best.steps:,} steps, {self._folder(best)}\n{_PICTURE} is in"
      f" {self._run_dir}",
      flush=True,
    )
    return int(self._stop.is_set() or any(x.error for x in self._members))

  def ends(self, trial: trials.Trial, line: Mapping[str, Any]) -> bool:
    """Returns whether a member ends for now; see `pool.Ends`."""
    member, steps = self._member(trial), line[metrics.clock(line)]
    with self._lock:
      if steps <= member.steps:  # A line from before its last start.
        return False
      member.steps, member.score = steps, self._score(line)
      if not member.ready <= member.steps < self._options.total_steps:
        return False
      member.ready, member.deaths = self._next(member.steps), 0
      self._compare(member)
      others_wait = self._takes_turns and not self._waiting.empty()
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
    member.ready = self._next(member.steps)
    words = [*self._words, *sweep.option_words(member.values)]
    return dataclasses.replace(trial, words=words)

  def _compare(self, member: _Member) -> None:
    """Decides whether a member that is ready changes."""
    rivals = [
      x
      for x in self._members
      if x is member or (not math.isnan(x.score) and self._saved(x))
    ]
    key = jax.random.key(self._options.seed)
    copy_key, explore_key = jax.random.split(
      jax.random.fold_in(key, self._num_comparisons)
    )
    self._num_comparisons += 1
    scores = jnp.array([x.score for x in rivals], jnp.float32)
    sources = populations.exploit(self._options, copy_key, scores)
    other = rivals[int(sources[rivals.index(member)])]
    explored = populations.explore(
      self._options,
      explore_key,
      {k: jnp.array([float(x)]) for k, x in other.values.items()},
      self._spaces,
      jnp.array([other is not member]),
    )
    values = {k: self._spaces[k].word(float(x[0])) for k, x in explored.items()}
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
    return self._run_dir / member.trial.name

  def _saved(self, member: _Member) -> int:
    """Returns the steps of a member's newest checkpoint; 0 without one."""
    return max(resuming.saved(self._folder(member)), default=0)

  def _next(self, steps: int) -> int:
    return (steps // self._options.ready_steps + 1) * self._options.ready_steps

  def _member(self, trial: trials.Trial) -> _Member:
    return next(x for x in self._members if x.trial.name == trial.name)


def _numbers(values: Mapping[str, str]) -> dict[str, float]:
  return {name: float(x) for name, x in values.items()}


def _print(line: str) -> None:
  print(line, file=sys.stderr, flush=True)
