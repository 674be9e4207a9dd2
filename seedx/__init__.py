"""seedx: distributed reinforcement learning with a pipeline one can change."""

__version__ = "0.1.0"
