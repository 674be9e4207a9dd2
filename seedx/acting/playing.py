"""How a policy plays whole episodes; importing it needs no JAX."""

import dataclasses

from seedx import types


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """How episodes are played.

  Attributes:
    greedy: take the best action; if not, sample actions as in training, without
      each environment's own exploration.
    num_envs: number of environments that step in parallel, at most; no more
      than there are episodes.
    max_episode_steps: env steps after which an episode is cut; its return so
      far counts.
  """

  greedy: bool = True
  num_envs: int = types.setting(16, low=1, high=2**16)
  max_episode_steps: int = types.setting(100_000, low=1, high=2**63 - 1)

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    types.check_settings(self)
