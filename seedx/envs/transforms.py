"""An example of an observation transform.

`--observation-transform MODULE:FUNCTION` names a transform in a module of the
current directory or an installed one. The transform runs in NumPy, in the
process that receives the environments' observations.
"""

import numpy as np


def hide_velocities(observation: np.ndarray) -> np.ndarray:
  """Returns CartPole's position and angle, `[B, 2]`, without velocities."""
  return observation[:, [0, 2]]
