"""Experience replay: pure functions over arrays on a device."""

from seedx.replay.prioritized import Prioritized, PrioritizedState, Windows
from seedx.replay.uniform import State, Uniform

__all__ = ["Prioritized", "PrioritizedState", "State", "Uniform", "Windows"]
