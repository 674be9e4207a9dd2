"""An environment whose observations show their origin.

Each observation has an `origin`: a number that no other environment has, and
the count of its observations. The origin shows whether the steps of an unroll
are consecutive and from one environment. Each episode returns `RETURN`.
"""

import os
import time

import dm_env
import numpy as np

# Return of every complete episode, independent of the actions.
RETURN = 10.0
# Parts of the error messages when an environment raises on purpose, when it
# returns NaN, and when it ends its process.
FAULTS = ("a fault that chaos asked for", "found nan in its", "has died with")
_MAXIMUM_STEPS = 60
_ACTIONS = 3
_HANG_SECONDS = 20.0


class Environment(dm_env.Environment):
  """An environment with random observations, episode lengths and faults."""

  def __init__(
    self,
    seed: int,
    mean_steps_to_fault: float = 0.0,
    continuous: bool = False,
  ) -> None:
    """Makes an environment.

    Args:
      seed: seed of the random numbers.
      mean_steps_to_fault: mean number of steps until the environment raises,
        returns NaN, ends its process or hangs; 0 for never.
      continuous: whether actions are vectors of one number from 0 to 2.
    """
    self._continuous = continuous
    self._rng = np.random.default_rng(seed)
    # Independent of the seed, so that origins differ even if seeds are equal.
    self._origin = 1 + int.from_bytes(os.urandom(4), "little") % (2**31 - 1)
    self._count = 0
    self._fault = None
    if mean_steps_to_fault:
      self._fault = int(self._rng.exponential(mean_steps_to_fault))
    self._left = 0
    self._paid = 0.0

  def reset(self) -> dm_env.TimeStep:
    self._left = int(self._rng.integers(1, _MAXIMUM_STEPS))
    self._paid = 0.0
    return dm_env.restart(self._observation())

  def step(self, action: int) -> dm_env.TimeStep:
    """Pays a random reward; the last reward completes `RETURN`."""
    if self._left == 0:
      return self.reset()
    if self._fault is not None and self._count >= self._fault:
      return self._fail()
    self._left -= 1
    # Multiples of 0.5, whose sums are exact in float32.
    reward = float(self._rng.integers(-2, 3)) + 0.5 * int(np.squeeze(action))
    if self._left:
      self._paid += reward
      return dm_env.transition(reward, self._observation())
    ends = dm_env.termination if self._rng.random() < 0.5 else dm_env.truncation
    return ends(RETURN - self._paid, self._observation())

  def observation_spec(self) -> dict[str, dm_env.specs.Array]:
    """Returns specs of the origin (with the count) and the agent's `state`."""
    return {
      "origin": dm_env.specs.Array((2,), np.int32),
      "state": dm_env.specs.Array((4,), np.float32),
    }

  def action_spec(self) -> dm_env.specs.BoundedArray:
    if self._continuous:
      high = _ACTIONS - 1.0
      return dm_env.specs.BoundedArray((1,), np.float32, 0.0, high)
    return dm_env.specs.DiscreteArray(_ACTIONS)

  def _observation(self) -> dict[str, np.ndarray]:
    self._count += 1
    return {
      "origin": np.array([self._origin, self._count], np.int32),
      "state": self._rng.standard_normal(4, np.float32),
    }

  def _fail(self) -> dm_env.TimeStep:
    fault = self._rng.integers(4)
    if fault == 0:
      raise RuntimeError(FAULTS[0])
    if fault == 1:
      os._exit(1)
    if fault == 2:
      time.sleep(_HANG_SECONDS)
    observation = self._observation()
    observation["state"][0] = np.nan
    return dm_env.transition(np.nan, observation)


def make(
  seed: int, mean_steps_to_fault: float = 0.0, continuous: bool = False
) -> Environment:
  return Environment(seed, mean_steps_to_fault, continuous)
