"""Experience replay: pure functions over arrays on a device."""

from seedx.replay.prioritized import Prioritized, PrioritizedState, Windows
from seedx.replay.ratio import Ratio
from seedx.replay.uniform import State, Uniform

__all__ = [
  "Prioritized",
  "PrioritizedState",
  "Ratio",
  "State",
  "Uniform",
  "Windows",
]
