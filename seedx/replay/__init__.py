"""Experience replay: pure functions over arrays on a device."""

from seedx.replay.config import Batches, Config, PrioritizedConfig
from seedx.replay.mixed import Mixed
from seedx.replay.prioritized import Prioritized, PrioritizedState, Windows
from seedx.replay.ratios import Ratio
from seedx.replay.uniform import Replay, State, Uniform

__all__ = [
  "Batches",
  "Config",
  "Mixed",
  "Prioritized",
  "PrioritizedConfig",
  "PrioritizedState",
  "Ratio",
  "Replay",
  "State",
  "Uniform",
  "Windows",
]
