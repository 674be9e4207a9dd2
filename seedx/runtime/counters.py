"""What a run counts: of acting, and of learning by many workers."""

import collections
import dataclasses
import math
import threading
import time
from collections.abc import Mapping

import dm_env
import numpy as np

from seedx import metrics, types


class Acted:
  """Counts of experience; any thread may add to them.

  Attributes:
    returns: raw returns of whole games.
    lengths: env steps of whole games.
  """

  def __init__(
    self, frames_per_step: int = 1, total_steps: float = math.inf
  ) -> None:
    """Starts at 0, and the clock with the first experience.

    Args:
      frames_per_step: emulator frames in an env step.
      total_steps: env steps after which the run is done.
    """
    self._total_steps = total_steps
    self.returns: metrics.Latest | metrics.MeanOfSeeds = metrics.Latest()
    self.lengths = metrics.Latest()
    self._rounds = _Rounds()
    self._frames_per_step = frames_per_step
    self._lock = threading.Lock()
    self._env_steps = 0
    self._unrolls_discarded = 0
    self._started_seconds: float | None = None
    self._past_seconds = 0.0
    # When the last line was measured, and the env steps of then.
    self._last = (time.monotonic(), 0)

  def add(
    self, env_steps: int, returns: np.ndarray, lengths: np.ndarray
  ) -> None:
    """Counts experience; the first starts the clock.

    Args:
      env_steps: how many.
      returns: `[...]`, raw, of games that ended; NaN is none.
      lengths: `[...]`, their env steps.
    """
    self.start()
    ended = ~np.isnan(returns)
    if ended.any():
      self.returns.add(returns[ended])
      self.lengths.add(lengths[ended])
    with self._lock:
      self._env_steps += env_steps

  def join(self, reported: np.ndarray) -> "Environments":
    """Adds environments, whose experience the result counts.

    Args:
      reported: `[N]`, whether an environment's games count, see
        `explores_least`.
    """
    return Environments(self, self._rounds, reported)

  def start(self) -> None:
    """Starts the clock, unless it runs."""
    with self._lock:
      if self._started_seconds is None:
        self._started_seconds = time.monotonic()

  def add_discarded(self, unrolls: int) -> None:
    """Counts unrolls that were lost because their actor disconnected."""
    with self._lock:
      self._unrolls_discarded += unrolls

  @property
  def env_steps(self) -> int:
    """Agent decisions carried out; resets are none."""
    return self._env_steps

  @property
  def is_done(self) -> bool:
    """Whether the run has all of its env steps."""
    return self._env_steps >= self._total_steps

  @property
  def are_of_all(self) -> bool:
    """Whether `returns` and `lengths` are of episodes of any length.

    The short ones end first: before each environment has ended an episode, the
    others have ended more of those.
    """
    return self._rounds.have_all_ended

  def score(self) -> float | None:
    """The mean of `returns` for decisions; None where it does not count.

    It counts where `are_of_all`, and only as long as episodes go on to end.
    """
    if not self.are_of_all or self._rounds.is_overdue(self._env_steps):
      return None
    return self.returns.mean()

  @property
  def wall_seconds(self) -> float:
    """Seconds since the first observation, of earlier starts as well."""
    if self._started_seconds is None:
      return self._past_seconds
    return self._past_seconds + time.monotonic() - self._started_seconds

  def measure(self) -> dict[str, metrics.Value]:
    """What it adds to a line of metrics; the rate is since the last call."""
    now, env_steps = time.monotonic(), self._env_steps
    (then, env_steps_then), self._last = self._last, (now, env_steps)
    are_of_all = self.are_of_all
    return {
      "wall_seconds": self.wall_seconds,
      "env_steps": env_steps,
      "env_frames": env_steps * self._frames_per_step,
      "steps_per_second": (env_steps - env_steps_then) / (now - then),
      "episodes": self.returns.count,
      "episode_return": self.returns.mean() if are_of_all else None,
      "episode_length": self.lengths.mean() if are_of_all else None,
      "steps_without_episode": self._rounds.steps_without(env_steps),
      "unrolls_discarded": self._unrolls_discarded,
    }

  def saved(self) -> types.Tree:
    """What a checkpoint keeps of it."""
    return {
      "returns": self.returns.saved(),
      "lengths": self.lengths.saved(),
      "env_steps": np.int64(self._env_steps),
      "unrolls_discarded": np.int64(self._unrolls_discarded),
      "wall_seconds": np.float64(self.wall_seconds),
    }

  def restore(self, saved: types.Tree) -> None:
    """Goes on from what was saved; before the clock starts."""
    self.returns.restore(saved["returns"])
    self.lengths.restore(saved["lengths"])
    self._env_steps = int(saved["env_steps"])
    self._last = (self._last[0], self._env_steps)
    self._rounds.start(self._env_steps)
    self._unrolls_discarded = int(saved["unrolls_discarded"])
    self._past_seconds = float(saved["wall_seconds"])


class Environments:
  """Counts what some environments do, such as those of an actor."""

  def __init__(
    self, acted: Acted, rounds: "_Rounds", reported: np.ndarray
  ) -> None:
    """Counts nothing yet; see `Acted.join`."""
    self._acted = acted
    self._rounds = rounds
    self._reported = reported
    self._member = rounds.join(reported)

  def add(
    self,
    env_steps: int,
    index: np.ndarray | slice,
    returns: np.ndarray,
    lengths: np.ndarray,
  ) -> None:
    """Counts experience.

    Args:
      env_steps: number of env steps, of all of these environments.
      index: `[B]`, the environments of the rows that follow, each once.
      returns: `[B, ...]`, raw, of games that ended; NaN is none.
      lengths: `[B, ...]`, their env steps.
    """
    ended = ~np.isnan(returns)
    if ended.any():
      ended[~self._reported[index]] = False
    # The oldest first.
    self._acted.add(env_steps, returns.T[ended.T], lengths.T[ended.T])
    if ended.any():
      episodes = np.count_nonzero(ended.reshape(len(ended), -1), axis=1)
      self._rounds.add(self._member, index, episodes, self._acted.env_steps)

  def leave(self) -> None:
    """Ends their part in the run; what they have done still counts."""
    self._rounds.leave(self._member)


class Played:
  """Counts what the environments of this process do."""

  def __init__(self, acted: Acted, reported: np.ndarray) -> None:
    """Counts nothing yet; see `Acted.join`."""
    self._environments = acted.join(reported)
    self._lengths = np.zeros(len(reported), np.int64)

  def add(self, rows: types.Rows) -> None:
    """Counts observations `[B, ...]`."""
    index = rows.index
    steps = rows.timestep.step_type != dm_env.StepType.FIRST
    self._lengths[index] += steps
    self._environments.add(
      int(np.count_nonzero(steps)),
      index,
      rows.episode_return,
      self._lengths[index],
    )
    self._lengths[index[~np.isnan(rows.episode_return)]] = 0


# Episodes of a round, at least.
_ROUND_EPISODES = 100
# A round that takes this many times as long as the one before is overdue.
_OVERDUE = 3


@dataclasses.dataclass(eq=False)
class _Member:
  """Environments that take part in rounds.

  Attributes:
    counts: `[N]`, whether an environment takes part.
    ended: `[N]`, the last round in which it ended an episode; -1 before.
  """

  counts: np.ndarray
  ended: np.ndarray


class _Rounds:
  """Whether episodes of all environments end; any thread may use it.

  In a round, every environment ends an episode, and all of them together end at
  least `_ROUND_EPISODES`.
  """

  def __init__(self) -> None:
    """There are no environments."""
    self._lock = threading.Lock()
    self._round = 0
    self._envs = 0
    # Environments that have ended no episode at all, and none in this round.
    self._never = self._not_yet = 0
    self._have_all_ended = False
    self._left: list[_Member] = []
    self._episodes = 0
    # Env steps when this round began, and of the round before.
    self._began_steps, self._took_steps = 0, math.inf
    self._last_steps = 0

  @property
  def have_all_ended(self) -> bool:
    """Whether there was a time when every environment had ended an episode.

    What joins later, such as an actor that was started again, changes the mean
    little: the others end episodes of any length.
    """
    return self._never == 0 or self._have_all_ended

  def start(self, env_steps: int) -> None:
    """Begins the first round at these env steps of a run that is resumed."""
    with self._lock:
      self._began_steps = self._last_steps = env_steps

  def is_overdue(self, env_steps: int) -> bool:
    """Whether this round takes much longer than the one before."""
    with self._lock:
      return env_steps - self._began_steps > _OVERDUE * self._took_steps

  def steps_without(self, env_steps: int) -> int:
    """Env steps since an episode ended; 0 for less than a round's."""
    with self._lock:
      since = env_steps - self._last_steps
      return since if since > self._took_steps else 0

  def join(self, counts: np.ndarray) -> _Member:
    """Adds environments, see `_Member`."""
    joined = int(np.count_nonzero(counts))
    with self._lock:
      self._envs += joined
      self._never += joined
      self._not_yet += joined
    return _Member(counts, ended=np.full(len(counts), -1))

  def leave(self, member: _Member) -> None:
    """Removes environments, once another ends an episode.

    Not at once: where all leave, a mean that was not of all is so still.
    """
    with self._lock:
      self._left.append(member)

  def add(
    self,
    member: _Member,
    index: np.ndarray | slice,
    episodes: np.ndarray,
    env_steps: int,
  ) -> None:
    """Adds episodes that ended.

    Args:
      member: environments that take part.
      index: `[B]`, those of the rows that follow, each once.
      episodes: `[B]`, how many ended; 0 where an environment takes no part.
      env_steps: env steps of the run so far.
    """
    some = np.arange(len(member.counts))[index][episodes > 0]
    with self._lock:
      while self._left:
        left = self._left.pop()
        self._envs -= int(np.count_nonzero(left.counts))
        self._have_ended(left.ended[left.counts])
      self._have_ended(member.ended[some])
      member.ended[some] = self._round
      self._episodes += int(np.sum(episodes))
      self._last_steps = env_steps
      if self._not_yet <= 0 and self._episodes >= _ROUND_EPISODES:
        self._round += 1
        self._not_yet, self._episodes = self._envs, 0
        # Of several hosts, env steps rise with updates only.
        took = env_steps - self._began_steps
        self._took_steps = took or self._took_steps
        self._began_steps = env_steps

  def _have_ended(self, before: np.ndarray) -> None:
    """Waits no longer for environments; `before` is `_Member.ended` of each."""
    self._never -= int(np.count_nonzero(before < 0))
    self._have_all_ended |= self._never == 0
    self._not_yet -= int(np.count_nonzero(before < self._round))


# So many skipped updates in a row end a run.
_MOST_SKIPPED = 100


class Skipped:
  """Counts updates that were skipped because they were not finite.

  Attributes:
    updates: so far.
  """

  def __init__(self) -> None:
    """Counts none yet."""
    self.updates = 0
    self._in_a_row = 0

  def add(self, skipped: int, applied: int) -> None:
    """Counts the newest updates: those that were skipped, and the others."""
    self.updates += skipped
    self._in_a_row = 0 if applied else self._in_a_row + skipped

  def check(self) -> None:
    """Ends a run that does not learn any more.

    Raises:
      RuntimeError: many updates in a row were skipped.
    """
    if self._in_a_row >= _MOST_SKIPPED:
      raise RuntimeError(
        "expected updates with finite results, found a NaN or an infinity in"
        f" {self._in_a_row} in a row; all of them were skipped, and the"
        " checkpoints are good. Look for observations or rewards that are not"
        " finite or very large, then --resume with a smaller --learning-rate or"
        f" --reward-scale{types.see('numbers-that-are-not-finite')}"
      )


class Learned:
  """Counts of gradients; any thread may add to them.

  Attributes:
    steps: gradients applied so far.
    learned_steps: env steps learned from; resets are none.
  """

  def __init__(self, window: int = 100) -> None:
    """`window`: how many of the latest additions the means are over."""
    self.steps = 0
    self.learned_steps = 0.0
    self._skipped = Skipped()
    self._lock = threading.Lock()
    self._newest: Mapping[str, float] = {}
    self._latest: collections.deque[tuple[int, float]] = collections.deque(
      maxlen=window
    )

  def add(
    self,
    learned_steps: float,
    staleness: float,
    metrics: Mapping[str, float],
    gradients: int = 1,
  ) -> None:
    """Counts gradients that have been applied.

    Args:
      learned_steps: env steps that they are of.
      staleness: how many updates the parameters had seen, on average, since
        those that a gradient was computed with.
      metrics: what else is said of the newest of them.
      gradients: how many.
    """
    with self._lock:
      self._skipped.add(0, gradients)
      self.steps += gradients
      self.learned_steps += learned_steps
      self._latest.append((gradients, staleness))
      self._newest = dict(metrics)

  def skip(self, gradients: int) -> None:
    """Counts gradients that were not applied, because they were not finite."""
    with self._lock:
      self._skipped.add(gradients, 0)

  def check(self) -> None:
    """Ends a run that does not learn any more; see `Skipped.check`."""
    with self._lock:
      self._skipped.check()

  def measure(self) -> dict[str, metrics.Value]:
    """What it adds to a line of metrics."""
    with self._lock:
      line: dict[str, metrics.Value] = {
        "learner_steps": self.steps,
        "learned_steps": int(self.learned_steps),
        "updates_skipped": self._skipped.updates,
        "policy_lag": None,
        **self._newest,
      }
      if self._latest:
        gradients, staleness = np.transpose(self._latest)
        mean = float(np.average(staleness, weights=gradients))
        line["gradient_staleness"] = mean
      return line

  def saved(self) -> types.Tree:
    """What a checkpoint keeps of it."""
    with self._lock:
      return {
        "steps": np.int64(self.steps),
        "learned_steps": np.float64(self.learned_steps),
        "updates_skipped": np.int64(self._skipped.updates),
      }

  def restore(self, saved: types.Tree) -> None:
    """Goes on from what was saved."""
    with self._lock:
      self.steps = int(saved["steps"])
      self.learned_steps = float(saved["learned_steps"])
      self._skipped.updates = int(saved["updates_skipped"])


def explores_least(exploration: np.ndarray) -> np.ndarray:
  """Which environments' returns are reported: those that explore least.

  Args:
    exploration: `[N]`, see `base.Agent.exploration`.

  Returns:
    `[N]`, True for the quarter that explores least; all of them where they
    explore alike.
  """
  return exploration <= np.quantile(exploration, 0.25)
