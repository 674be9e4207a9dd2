"""seedx: distributed reinforcement learning with a pipeline you can change."""

import time

__version__ = "0.3.0"
# The repository on GitHub; links in messages are made from it.
REPOSITORY = "seedx-rl/seedx"
# The time at which a program of seedx starts: it imports this module first.
STARTED_SECONDS = time.monotonic()
