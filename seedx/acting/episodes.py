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


class Episodes:
  """Follows the episodes of one peer's environments."""

  def __init__(self, num_envs: int, returns_are_sums: bool = True) -> None:
    """Every environment begins with a FIRST.

    Args:
      num_envs: of the peer.
      returns_are_sums: see `envs.returns_are_sums`.
    """
    self._returns_are_sums = returns_are_sums
    self._last = np.full(num_envs, _LAST, np.uint8)
    # Of each game so far: rewards, or what they allow its return to be.
    self._total = np.zeros(num_envs, np.float64)

  def add(self, steps: Steps, index: np.ndarray) -> tuple[int, np.ndarray]:
    """Checks steps, and takes note of them unless they are refused.

    Args:
      steps: `[B, K]`.
      index: `[B]`, the peer's environments that they are of; each once.

    Returns:
      How many of them are env steps, which resets are not; and `[B, K]`
      float32, the return of each game that ends, NaN elsewhere.

    Raises:
      wire.Refused: INVALID_ARGUMENT, a number is out of its range, or steps are
        not in order: each environment begins with a FIRST, and a FIRST follows
        each LAST and no other step.
    """
    step_type = steps.step_type
    wire.check_range("step_type", step_type, _FIRST, _LAST)
    wire.check_finite("rewards", steps.reward)
    wire.check_range("discount", steps.discount, 0, 1)
    before = np.concatenate(
      [self._last[index][:, None], step_type[:, :-1]], axis=1
    )
    _check_order(before, step_type)
    total, returns = self._returns(steps, self._total[index])
    if step_type.shape[1]:
      self._last[index] = step_type[:, -1]
    self._total[index] = total
    return int(np.count_nonzero(step_type != _FIRST)), returns

  def _returns(
    self, steps: Steps, total: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Totals `[B]` after the steps, and returns `[B, K]`."""
    reward = np.where(steps.step_type == _FIRST, 0, steps.reward)
    ended = steps.step_type == _LAST
    claimed = steps.episode_return
    if not self._returns_are_sums:
      reward = _MOST_POINTS * np.abs(reward)
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
      total = np.where(now, 0, total)
    return total, returns


def _check_order(before: np.ndarray, step_type: np.ndarray) -> None:
  """Raises where a FIRST does not follow upon a LAST, or another step does."""
  wrong = (step_type == _FIRST) != (before == _LAST)
  if wrong.any():
    found = step_type[wrong].flat[0], before[wrong].flat[0]
    raise wire.invalid(
      "a step_type of 0 at an environment's first step and after each 2, and"
      " nowhere else",
      f"{found[0]} after {found[1]} (2 stands before the first step)",
    )
