"""Settings of playing whole episodes, in a module that works without JAX."""

import dataclasses

import numpy as np

from seedx import types


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """Settings of playing whole episodes.

  Attributes:
    greedy: whether to take the best action; if not, actions are sampled as in
      training, without each environment's own exploration.
    num_envs: largest number of environments that step in parallel; at most one
      for each episode.
    max_episode_steps: number of env steps after which an episode is cut; its
      return so far counts.
  """

  greedy: bool = True
  num_envs: int = types.setting(16, low=1, high=2**16)
  max_episode_steps: int = types.setting(100_000, low=1, high=2**63 - 1)

  def __post_init__(self) -> None:
    types.check_settings(self)


def divided(num_episodes: int, max_envs: int) -> np.ndarray:
  """Returns `[N]`, the numbers of episodes of up to `max_envs` environments."""
  return np.bincount(np.arange(num_episodes) % max_envs)
