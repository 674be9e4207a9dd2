"""Games and functions as users would write them."""

import dataclasses

import dm_env.specs
import jax.numpy as jnp
import numpy as np

from seedx import envs
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


class Informing(functional.CartPole):
  """CartPole with an `info`."""

  def __init__(self, fails=False):
    super().__init__()
    self._fails = fails

  def info(self, state):
    if self._fails:
      raise ValueError("no info")
    last = {"steps": state.time}
    return {"last": last, "over": state.over, "shape": jnp.zeros(2)}


def make_jax(fails=False):
  return Informing(fails)


def jax_config(*keys, **options):
  return envs.Config(f"jax:{__name__}:make_jax", options, log_info=keys)
