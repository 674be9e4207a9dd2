"""Experience replay, on the learner's devices."""

from seedx.replay.prioritized import Prioritized, PrioritizedState, Windows
from seedx.replay.uniform import State, Uniform

__all__ = ["Prioritized", "PrioritizedState", "State", "Uniform", "Windows"]
