"""Observation transforms, as examples of how to write one.

An experiment is given one by name: `--observation-transform MODULE:FUNCTION`,
in a module of the current directory or an installed one. It runs in NumPy, in
the process that receives the environments' observations.
"""

import numpy as np


def hide_velocities(observation: np.ndarray) -> np.ndarray:
  """CartPole's position and angle `[B, 2]`, without their velocities."""
  return observation[:, [0, 2]]
