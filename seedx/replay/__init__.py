"""Replays: experience that is learned from more than once."""

from seedx.replay.prioritized import Places, Prioritized, PrioritizedState
from seedx.replay.uniform import State, Uniform

__all__ = ["Places", "Prioritized", "PrioritizedState", "State", "Uniform"]
