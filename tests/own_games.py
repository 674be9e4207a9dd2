"""Games as users would write them."""

import dataclasses

import dm_env.specs
import numpy as np

from seedx.envs import functional


@dataclasses.dataclass(frozen=True)
class _HiddenState(functional.TicTacToe):
  """Tic-tac-toe whose state is an entry of its own in an observation."""

  hidden = ("state",)

  @property
  def observation(self):
    state = dm_env.specs.Array((2, 3, 3), np.int8, "state")
    return super().observation | {"state": state}

  def observe(self, state):
    return super().observe(state) | {"state": state}

  def state(self, observation):
    return observation["state"]


def hidden_state(**options):
  return functional.Match(_HiddenState(), **options)
