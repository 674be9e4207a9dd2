"""The episodes of a peer's environments: steps in order, returns summed here.

A peer's word is not taken for what follows from its steps: whether they are in
order, how many env steps they are, and the episodes' returns.
"""

from typing import NamedTuple

import dm_env
import numpy as np

from seedx import wire

_FIRST = int(dm_env.StepType.FIRST)
_LAST = int(dm_env.StepType.LAST)
# Raw points behind a clipped reward of 1; for what EnvPool's Atari tells.
_MOST_POINTS = 1e6
_MOST_RETURN = float(np.finfo(np.float32).max)


class Steps(NamedTuple):
  """K steps of B environments, which follow upon those before.

  Attributes:
    step_type: `[B, K]` uint8.
    reward: `[B, K]` float32.
    discount: `[B, K]` float32.
    episode_return: `[B, K]` float32, as in `types.Rows`.
  """

  step_type: np.ndarray
  reward: np.ndarray
  discount: np.ndarray
  episode_return: np.ndarray


class Ended(NamedTuple):
  """What K steps of B environments came to.

  Attributes:
    env_steps: how many of them are; resets are not.
    returns: `[B, K]` float32, of each game that ends; NaN elsewhere.
    lengths: `[B, K]` int64, env steps of each game so far.
  """

  env_steps: int
  returns: np.ndarray
  lengths: np.ndarray


class Episodes:
  """Follows the episodes of one peer's environments."""

  def __init__(self, num_envs: int, returns_are_sums: bool = True) -> None:
    """Every environment begins with a FIRST.

    Args:
      num_envs: of the peer.
      returns_are_sums: see `envs.returns_are_sums`.
    """
    self._returns_are_sums = returns_are_sums
    # Whether the step before was a LAST.
    self._ended = np.ones(num_envs, np.bool_)
    # Of each game so far: rewards, or what they allow its return to be.
    self._total = np.zeros(num_envs, np.float64)
    self._length = np.zeros(num_envs, np.int64)

  def add(self, steps: Steps, index: np.ndarray | slice) -> Ended:
    """Checks steps, and takes note of them unless they are refused.

    Args:
      steps: `[B, K]`.
      index: `[B]`, the peer's environments that they are of, each once; a
        slice for all of them in order.

    Raises:
      wire.Refused: INVALID_ARGUMENT, a number is out of its range, or steps are
        not in order: each environment begins with a FIRST, and a FIRST follows
        each LAST and no other step.
    """
    step_type = steps.step_type
    wire.check_range("step_type", step_type, _FIRST, _LAST)
    wire.check_finite("rewards", steps.reward)
    wire.check_range("discount", steps.discount, 0, 1)
    first, last = step_type == _FIRST, step_type == _LAST
    before = self._ended[index][:, None]
    if step_type.shape[1] != 1:
      before = np.concatenate([before, last], axis=1)[:, :-1]
    wrong = first != before
    if wrong.any():
      raise wire.invalid(
        f"a step_type of {_FIRST} at an environment's first step and after each"
        f" {_LAST}, and nowhere else",
        f"{step_type[wrong].flat[0]} elsewhere",
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
    return Ended(int(np.count_nonzero(no_reset)), returns, lengths)

  def _lengths(
    self, steps: np.ndarray, returns: np.ndarray, index: np.ndarray | slice
  ) -> np.ndarray:
    """`[B, K]`, and takes note of where games end."""
    if steps.shape[1] == 1:  # The same as below in a third of the time.
      lengths = self._length[index] + steps[:, 0]
      self._length[index] = np.where(np.isnan(returns[:, 0]), lengths, 0)
      return lengths[:, None]
    lengths = self._length[index][:, None] + np.cumsum(steps, axis=1)
    # Those of the games before, up to each step and with it.
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
    """Totals `[B]` after the steps, and returns `[B, K]`."""
    if not self._returns_are_sums:
      reward = _MOST_POINTS * np.abs(reward, dtype=np.float64)
      if np.any(~np.isnan(claimed) & ~ended):
        raise wire.invalid("an episode_return where an episode ends", "another")
      ended = ended & ~np.isnan(claimed)
    returns = np.full(claimed.shape, np.nan, np.float32)
    for k in range(claimed.shape[1]):
      total = total + reward[:, k]
      now = ended[:, k]
      if not now.any():
        continue
      found, most = total[now], np.full(np.count_nonzero(now), _MOST_RETURN)
      if not self._returns_are_sums:
        found, most = claimed[now, k], np.minimum(found, most)
      wire.check_range("episode_return", found, -most, most)
      returns[now, k] = found
      total[now] = 0
    return total, returns
