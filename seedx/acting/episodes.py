"""The episodes of peers' environments, checked and counted step by step.

The learner does not trust its peers: it checks the order of their steps, counts
env steps, and computes returns, or bounds of the returns.
"""

from typing import NamedTuple

import dm_env
import numpy as np

from seedx import types, wire

_FIRST = int(dm_env.StepType.FIRST)
_LAST = int(dm_env.StepType.LAST)
# Assumed maximum of a raw reward that EnvPool's Atari clips to 1.
_MAX_POINTS = 1e6
_MAX_RETURN = float(np.finfo(np.float32).max)


class Steps(NamedTuple):
  """The next K steps of B environments.

  Attributes:
    step_type: `[B, K]` uint8.
    reward: `[B, K]` float32.
    discount: `[B, K]` float32.
    episode_return: `[B, K]` float32, as in `types.Rows`.
    info: `[B, K, E]` float32, as in `types.Rows`; or ().
  """

  step_type: np.ndarray
  reward: np.ndarray
  discount: np.ndarray
  episode_return: np.ndarray
  info: types.Tree = ()


class Counts(NamedTuple):
  """Counts and returns of K steps of B environments.

  Attributes:
    env_steps: number of env steps; resets do not count.
    returns: `[B, K]` float32, return of each game that ends; NaN elsewhere.
    lengths: `[B, K]` int64, number of env steps of each game so far.
  """

  env_steps: int
  returns: np.ndarray
  lengths: np.ndarray


class Episodes:
  """The episodes of the environments of one or several peers."""

  def __init__(self, num_envs: int, returns_are_sums: bool = True) -> None:
    self._returns_are_sums = returns_are_sums
    # Whether the previous step was a LAST; the first step must be a FIRST.
    self._ended = np.ones(num_envs, np.bool_)
    # Sum of each game's rewards, or a bound of its return, so far.
    self._total = np.zeros(num_envs, np.float64)
    self._length = np.zeros(num_envs, np.int64)

  def start(self, index: np.ndarray) -> None:
    """Starts `[B]` environments again, before their first steps."""
    self._ended[index] = True
    self._total[index] = 0
    self._length[index] = 0

  def add(self, steps: Steps, index: np.ndarray | slice) -> Counts:
    """Checks `[B, K]` steps and counts them; refused steps change nothing.

    Args:
      steps: `[B, K]` steps.
      index: `[B]` indices of the environments, all different; a slice if the
        steps are of all environments, in order.

    Raises:
      wire.Refusal: INVALID_ARGUMENT, a number is out of its range, or steps are
        out of order: each environment begins with a FIRST, and a FIRST follows
        each LAST and no other step.
    """
    step_type = steps.step_type
    wire.check_range("step_type", step_type, _FIRST, _LAST)
    wire.check_finite("rewards", steps.reward)
    wire.check_range("discount", steps.discount, 0, 1)
    if len(steps.info) and np.isinf(steps.info).any():
      raise wire.invalid("finite numbers or NaN as info", "an infinity")
    first, last = step_type == _FIRST, step_type == _LAST
    after_last = self._ended[index][:, None]
    if step_type.shape[1] != 1:
      after_last = np.concatenate([after_last, last], axis=1)[:, :-1]
    wrong = first != after_last
    if wrong.any():
      raise wire.invalid(
        f"a step_type of {_FIRST} at an environment's first step and after each"
        f" {_LAST}, and nowhere else",
        f"a step_type of {step_type[wrong].flat[0]} in the wrong place",
      )
    reward = np.where(first, 0, steps.reward)
    total, returns = self._returns(
      reward, last, steps.episode_return, self._total[index]
    )
    if step_type.shape[1]:
      self._ended[index] = last[:, -1]
    self._total[index] = total
    no_reset = ~first
    lengths = self._lengths(no_reset, returns, index)
    return Counts(int(np.count_nonzero(no_reset)), returns, lengths)

  def _lengths(
    self, steps: np.ndarray, returns: np.ndarray, index: np.ndarray | slice
  ) -> np.ndarray:
    """Returns `[B, K]` lengths, and keeps those of unfinished games."""
    if steps.shape[1] == 1:  # Like the code below, but three times as fast.
      lengths = self._length[index] + steps[:, 0]
      self._length[index] = np.where(np.isnan(returns[:, 0]), lengths, 0)
      return lengths[:, None]
    lengths = self._length[index][:, None] + np.cumsum(steps, axis=1)
    # Env steps of finished games, up to and including each step.
    past = np.where(np.isnan(returns), 0, lengths)
    past = np.maximum.accumulate(past, axis=1)
    if steps.shape[1]:
      self._length[index] = lengths[:, -1] - past[:, -1]
    lengths[:, 1:] -= past[:, :-1]
    return lengths

  def _returns(
    self,
    reward: np.ndarray,
    ended: np.ndarray,
    claimed: np.ndarray,
    total: np.ndarray,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns `[B]` totals after the steps, and `[B, K]` returns of games."""
    if not self._returns_are_sums:
      reward = _MAX_POINTS * np.abs(reward, dtype=np.float64)
      if np.any(~np.isnan(claimed) & ~ended):
        raise wire.invalid(
          "an episode_return only where an episode ends", "one elsewhere"
        )
      ended = ended & ~np.isnan(claimed)
    returns = np.full(claimed.shape, np.nan, np.float32)
    for k in range(claimed.shape[1]):
      total = total + reward[:, k]
      ends = ended[:, k]
      if not ends.any():
        continue
      value, maximum = total[ends], np.full(np.count_nonzero(ends), _MAX_RETURN)
      if not self._returns_are_sums:
        value, maximum = claimed[ends, k], np.minimum(value, maximum)
      wire.check_range("episode_return", value, -maximum, maximum)
      returns[ends, k] = value
      total[ends] = 0
    return total, returns
