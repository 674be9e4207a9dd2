"""seedx: distributed reinforcement learning with a pipeline one can change."""
