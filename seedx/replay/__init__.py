"""Replays: experience that is learned from more than once."""

from seedx.replay.uniform import State, Uniform

__all__ = ["State", "Uniform"]
