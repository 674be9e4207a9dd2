"""Check of the size of rewards, from the first returns of a run."""

import math
from typing import Any

from seedx import envs, signals
from seedx.app.settings import configs
from seedx.runtime import counters

# V-trace does not learn from returns of 0.01 at the end of a chain of ten
# states, because its entropy bonus is as large.
_SMALL = 0.05


class Check:
  """A line on stderr, at most one, if settings do not fit a run's returns.

  Attributes:
    acted: counts of the run, which have the returns.
  """

  def __init__(
    self, agent: Any, env: envs.Config, acted: counters.ActingCounts
  ) -> None:
    """Compares returns with the limits of an agent's config.

    Small returns are not reported for environments that the defaults were
    measured on.
    """
    self.acted, self._agent = acted, agent
    self._is_known = bool(envs.games(env))
    self._is_done = not _is_scaled(agent)

  def __call__(self) -> None:
    acted = self.acted
    if self._is_done or not acted.all_have_ended:
      return
    mean, length = acted.returns.mean(), acted.lengths.mean()
    if mean is None or length is None:
      return
    line = beyond_atoms(self._agent, mean, length)
    if not line and not self._is_known:
      line = too_small(self._agent, acted.returns.largest())
    if line:
      self._is_done = True
      signals.print_at_once(f"{line}\n")


def scaled(agent: Any) -> str:
  """Returns a line about scaled rewards; "" if they count as they are."""
  scale = getattr(agent, "reward_scale", 1.0)
  if scale == 1.0:
    return ""
  return f"rewards: times {scale:g} in the loss (--reward-scale)"


def beyond_atoms(agent: Any, mean: float, length: float) -> str:
  """Returns a line if an agent's atoms cannot hold its returns; "" if they can.

  In an episode of L steps with the return R, the discounted return of some step
  is at least R / (1 + (1 - gamma)(L - 1)), since R is G_0 + (1 - gamma)(G_1 +
  ... + G_L-1). The same holds for means of R and L, and for negative returns.

  Args:
    agent: config of the agent.
    mean: mean return of the latest episodes, without scaling.
    length: mean length of these episodes.
  """
  if not getattr(agent, "num_atoms", 0):
    return ""
  low, high, scale = agent.value_min, agent.value_max, agent.reward_scale
  reached = scale * mean / (1 + (1 - agent.discount) * (length - 1))
  if low <= reached <= high:
    return ""
  limit, flag = (
    (high, "--value-max") if reached > high else (low, "--value-min")
  )
  remedy = f"{flag} {2 * reached:.2g}"
  if limit * reached > 0:
    remedy = f"--reward-scale {_power_of_ten(scale * limit / reached):g}"
  return (
    f"discounted returns reach {reached:.3g} with --reward-scale {scale:g}, but"
    f" the atoms end at {limit:g}; use {remedy}"
  )


def too_small(agent: Any, largest: float) -> str:
  """Returns a line if returns are too small to learn from; "" if not.

  Args:
    agent: config of the agent.
    largest: largest absolute value of the latest returns, without scaling; 0 if
      none differs from 0.
  """
  scale = agent.reward_scale
  scaled = abs(scale) * largest
  if not 0 < scaled < _SMALL:
    return ""
  return (
    f"returns reach only {scaled:.2g} with --reward-scale {scale:g}, which is"
    f" little to learn from; use --reward-scale {_power_of_ten(1 / largest):g}"
  )


def _is_scaled(agent: Any) -> bool:
  """Returns whether only `reward_scale` changes an agent's rewards."""
  others = "reward_clip", "normalize_rewards"
  is_setting = "reward_scale" in configs.settings(agent)
  return is_setting and not any(getattr(agent, x, False) for x in others)


def _power_of_ten(value: float) -> float:
  """Returns the largest power of ten up to a value, with the value's sign."""
  # Without the addend, 1 / 0.01 would not reach 100.
  exponent = math.floor(math.log10(abs(value)) + 1e-6)
  return math.copysign(10.0**exponent, value)
