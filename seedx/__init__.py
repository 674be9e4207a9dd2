"""seedx: distributed reinforcement learning with a pipeline one can change."""

__version__ = "0.3.0"
# Its address, in one place.
REPOSITORY = "seedx-rl/seedx"
