"""Counts of a run: env steps, episodes, and gradients of many workers."""

import math
import threading
import time
from collections.abc import Sequence

import dm_env
import numpy as np

from seedx import metrics, types
from seedx.runtime import clocks


class ActingCounts:
  """Counts of env steps and episodes; any thread may add to them.

  Attributes:
    returns: raw returns of whole games; in Atari, over all lives.
    lengths: lengths of whole games, in env steps.
    info: entries of the last `info` of whole games, by name.
    wall_clock: clock of the run, which is saved with the counts.
    rates_policy: whether the returns are those of the policy that is trained,
      and not of others near it.
  """

  def __init__(
    self,
    frames_per_step: int = 1,
    total_steps: float = math.inf,
    wall_clock: clocks.WallClock | None = None,
    log_info: Sequence[str] = (),
  ) -> None:
    """Starts all counts at 0.

    Args:
      frames_per_step: number of emulator frames in an env step.
      total_steps: number of env steps after which the run is done.
      wall_clock: clock of the run; None for a new one.
      log_info: see `types.EnvironmentSpec`.
    """
    self.wall_clock = wall_clock or clocks.WallClock()
    self._total_steps = total_steps
    self.rates_policy = True
    self.returns: metrics.Latest | metrics.MeanOfSeeds = metrics.Latest()
    self.lengths = metrics.Latest()
    self.info = {name: metrics.Latest() for name in log_info}
    self._rounds = _Rounds()
    self._frames_per_step = frames_per_step
    self._lock = threading.Lock()
    self._env_steps = 0
    self._unrolls_discarded = 0
    # The time and the env steps of the last line of metrics.
    self._last = (time.monotonic(), 0)

  def add(
    self,
    env_steps: int,
    returns: np.ndarray,
    lengths: np.ndarray,
    info: types.Tree = (),
  ) -> None:
    """Counts experience.

    Args:
      env_steps: number of new env steps.
      returns: `[...]`, raw returns of games that ended; NaN elsewhere.
      lengths: `[...]`, their lengths in env steps.
      info: `[..., E]`, the entries of their last `info`; NaN for no value; ()
        if no entry is logged.
    """
    ended = ~np.isnan(returns)
    if ended.any():
      self.returns.add(returns[ended])
      self.lengths.add(lengths[ended])
      for k, latest in enumerate(self.info.values()):
        values = info[ended][:, k]
        latest.add(values[~np.isnan(values)])
    with self._lock:
      self._env_steps += env_steps

  def join(self, reported: np.ndarray) -> "Environments":
    """Adds environments; returns the counter of their experience.

    Args:
      reported: `[N]` bool, whether an environment's games count in `returns`,
        see `explores_least`.
    """
    environments = self.environments(reported)
    environments.join(slice(None))
    return environments

  def environments(self, reported: np.ndarray) -> "Environments":
    """Returns a counter of environments that join later; see `join`."""
    return Environments(self, self._rounds, reported)

  def add_discarded(self, unrolls: int) -> None:
    """Counts unrolls that were lost because their actor disconnected."""
    with self._lock:
      self._unrolls_discarded += unrolls

  @property
  def clock(self) -> clocks.Clock:
    """The clock of a run that ends after a number of env steps."""
    return clocks.Clock(
      "env_steps",
      lambda: self.env_steps,
      self._total_steps,
      lambda saved: int(saved["acted"]["env_steps"]),
    )

  @property
  def env_steps(self) -> int:
    """The number of env steps so far; resets do not count."""
    return self._env_steps

  @property
  def is_done(self) -> bool:
    """Whether the run has made all of its env steps."""
    return self._env_steps >= self._total_steps

  @property
  def all_have_ended(self) -> bool:
    """Whether every reported environment has ended an episode.

    Until then, `returns` and `lengths` are biased: short episodes end first.
    """
    return self._rounds.have_all_ended

  def score(self) -> float | None:
    """Returns the mean of `returns` for decisions, such as the best checkpoint.

    The mean is None before `all_have_ended`, and while some environment has not
    ended an episode for much longer than before.
    """
    if not (self.rates_policy and self.all_have_ended):
      return None
    if self._rounds.is_overdue(self._env_steps):
      return None
    return self.returns.mean()

  def measure(self) -> dict[str, metrics.Value]:
    """Returns its metrics; `steps_per_second` is since the last call."""
    now, env_steps = time.monotonic(), self._env_steps
    (then, env_steps_then), self._last = self._last, (now, env_steps)
    all_have_ended = self.all_have_ended
    return {
      **self.wall_clock.measure(),
      "env_steps": env_steps,
      "env_frames": env_steps * self._frames_per_step,
      "steps_per_second": (env_steps - env_steps_then) / (now - then),
      "episodes": self.returns.count,
      "episode_return": self.returns.mean() if all_have_ended else None,
      "episode_length": self.lengths.mean() if all_have_ended else None,
      **{
        f"{metrics.OF_INFO}{name}": x.mean() if all_have_ended else None
        for name, x in self.info.items()
      },
      "steps_without_episode": self._rounds.steps_without(env_steps),
      "unrolls_discarded": self._unrolls_discarded,
    }

  def saved(self) -> types.Tree:
    """Returns the state for a checkpoint."""
    return {
      "returns": self.returns.saved(),
      "lengths": self.lengths.saved(),
      "info": [x.saved() for x in self.info.values()],
      "env_steps": np.int64(self._env_steps),
      "unrolls_discarded": np.int64(self._unrolls_discarded),
      "wall_seconds": np.float64(self.wall_clock.wall_seconds),
    }

  def restore(self, saved: types.Tree) -> None:
    """Continues from a saved state."""
    self.returns.restore(saved["returns"])
    self.lengths.restore(saved["lengths"])
    for latest, state in zip(self.info.values(), saved["info"], strict=True):
      latest.restore(state)
    self._env_steps = int(saved["env_steps"])
    self._last = (self._last[0], self._env_steps)
    self._rounds.start(self._env_steps)
    self._unrolls_discarded = int(saved["unrolls_discarded"])
    self.wall_clock.past_seconds = float(saved["wall_seconds"])


class Environments:
  """Counter of the experience of some environments, such as an actor's."""

  def __init__(
    self, acted: ActingCounts, rounds: "_Rounds", reported: np.ndarray
  ) -> None:
    self._acted = acted
    self._rounds = rounds
    self._reported = reported
    # `[N]`, the last round in which an environment ended an episode; -1 before.
    self._last_round = np.full(len(reported), -1)

  def join(self, index: np.ndarray | slice) -> None:
    """Adds environments to the run."""
    self._last_round[index] = -1
    self._rounds.join(int(np.count_nonzero(self._reported[index])))

  def add(
    self,
    env_steps: int,
    index: np.ndarray | slice,
    returns: np.ndarray,
    lengths: np.ndarray,
    info: types.Tree = (),
  ) -> None:
    """Counts experience, see `ActingCounts.add`.

    Args:
      env_steps: number of new env steps, summed over these environments.
      index: `[B]` numbers, or a slice: the environment of each row of `returns`
        and `lengths`; all are different, and none has left.
      returns: `[B, ...]`, as in `ActingCounts.add`; oldest first.
      lengths: `[B, ...]`, as in `ActingCounts.add`.
      info: `[B, ..., E]`, as in `ActingCounts.add`.
    """
    ended = ~np.isnan(returns)
    if ended.any():
      ended[~self._reported[index]] = False
      if len(info):
        info = np.swapaxes(info, 0, ended.ndim - 1)[ended.T]
    # Transposed, so that the oldest games come first.
    self._acted.add(env_steps, returns.T[ended.T], lengths.T[ended.T], info)
    if ended.any():
      episodes = np.count_nonzero(ended.reshape(len(ended), -1), axis=1)
      rows = np.flatnonzero(episodes)
      environments = np.arange(len(self._reported))[index][rows]
      now = self._rounds.add(
        self._last_round[environments],
        int(np.sum(episodes)),
        self._acted.env_steps,
      )
      self._last_round[environments] = now

  def leave(self, index: np.ndarray | slice = slice(None)) -> None:
    """Removes environments from the run; their experience still counts."""
    reported = self._reported[index]
    self._rounds.leave(self._last_round[index][reported])


class LocalEnvironments:
  """Counter of the experience of environments in this process."""

  def __init__(self, acted: ActingCounts, reported: np.ndarray) -> None:
    self._environments = acted.join(reported)
    self._lengths = np.zeros(len(reported), np.int64)

  def add(self, rows: types.Rows) -> None:
    """Counts the env steps and ended episodes of `[B, ...]` rows."""
    index = rows.index
    steps = rows.timestep.step_type != dm_env.StepType.FIRST
    self._lengths[index] += steps
    self._environments.add(
      int(np.count_nonzero(steps)),
      index,
      rows.episode_return,
      self._lengths[index],
      rows.info,
    )
    self._lengths[index[~np.isnan(rows.episode_return)]] = 0


# The minimum number of episodes in a round.
_ROUND_EPISODES = 100

# A round that takes this many times as long as the previous one is overdue.
_OVERDUE = 3


class _Rounds:
  """Rounds of episodes; any thread may use them.

  In a round, every reported environment ends an episode, and all of them
  together end at least `_ROUND_EPISODES`.
  """

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._round = 0
    self._envs = 0
    # Numbers of environments that have not ended any episode yet, and that have
    # not ended one in this round.
    self._never = self._not_yet = 0
    self._have_all_ended = False
    self._left: list[np.ndarray] = []
    self._episodes = 0
    # Env steps of the run when this round began, and the number that the
    # previous round took.
    self._began_steps, self._took_steps = 0, math.inf
    # Env steps of the run when the newest episode ended.
    self._last_steps = 0

  @property
  def have_all_ended(self) -> bool:
    """Whether at some time every environment had ended an episode.

    Remains True when environments join later, such as those of a restarted
    actor: they change the mean little.
    """
    return self._never == 0 or self._have_all_ended

  def start(self, env_steps: int) -> None:
    with self._lock:
      self._began_steps = self._last_steps = env_steps

  def is_overdue(self, env_steps: int) -> bool:
    with self._lock:
      return env_steps - self._began_steps > _OVERDUE * self._took_steps

  def steps_without(self, env_steps: int) -> int:
    """Returns the number of env steps since the newest episode ended.

    Returns 0 until the number exceeds the env steps of the previous round.
    """
    with self._lock:
      since = env_steps - self._last_steps
      return since if since > self._took_steps else 0

  def join(self, environments: int) -> None:
    with self._lock:
      self._envs += environments
      self._never += environments
      self._not_yet += environments

  def leave(self, last_rounds: np.ndarray) -> None:
    """Removes environments when the next episode of another one ends.

    If all left and were removed at once, a biased mean would seem unbiased.

    Args:
      last_rounds: one number for each environment that leaves, see `add`.
    """
    with self._lock:
      self._left.append(last_rounds)

  def add(self, last_rounds: np.ndarray, episodes: int, env_steps: int) -> int:
    """Counts episodes that distinct environments have ended.

    Args:
      last_rounds: the last round in which each of these environments had ended
        an episode; -1 for none.
      episodes: number of the episodes.
      env_steps: env steps of the run so far.

    Returns:
      The round that the episodes belong to.
    """
    with self._lock:
      while self._left:
        left = self._left.pop()
        self._envs -= len(left)
        self._stop_waiting(left)
      self._stop_waiting(last_rounds)
      now = self._round
      self._episodes += episodes
      self._last_steps = env_steps
      if self._not_yet <= 0 and self._episodes >= _ROUND_EPISODES:
        self._round += 1
        self._not_yet, self._episodes = self._envs, 0
        # With several hosts, env steps are summed only in updates, so that a
        # round may take 0.
        took = env_steps - self._began_steps
        self._took_steps = took or self._took_steps
        self._began_steps = env_steps
      return now

  def _stop_waiting(self, last_rounds: np.ndarray) -> None:
    self._never -= int(np.count_nonzero(last_rounds < 0))
    self._have_all_ended |= self._never == 0
    self._not_yet -= int(np.count_nonzero(last_rounds < self._round))


def explores_least(exploration: np.ndarray) -> np.ndarray:
  """Returns which environments' games are reported: those that explore least.

  Args:
    exploration: `[N]`, see `base.Agent.exploration`.

  Returns:
    `[N]`, True for the quarter that explores least; True for all environments
    if they explore alike.
  """
  return exploration <= np.quantile(exploration, 0.25)
