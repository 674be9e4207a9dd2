"""Steps of environments for tests."""

import dm_env
import numpy as np

from seedx.acting import episodes

NAN = np.nan


def steps_of(*texts, reward=1.0, claimed=None):
  """Returns steps; a text such as FMMLF has an environment's step types.

  Each step except FIRST has `reward`, and each LAST has the return `claimed`.
  """
  step_type = np.array([["FML".index(x) for x in text] for text in texts])
  step_type = step_type.astype(np.uint8)
  last = step_type == int(dm_env.StepType.LAST)
  return episodes.Steps(
    step_type=step_type,
    reward=np.where(step_type == 0, 0, reward).astype(np.float32),
    discount=(~last).astype(np.float32),
    episode_return=np.where(
      last, NAN if claimed is None else claimed, NAN
    ).astype(np.float32),
  )
