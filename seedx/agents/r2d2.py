"""Recurrent replay distributed DQN: DQN with a core, trained on sequences.

Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed
Reinforcement Learning", https://openreview.net/forum?id=r1lyTjAqYX.
"""

import dataclasses
from typing import Self

import flax.linen as nn

from seedx import replay, types
from seedx.agents import dqn, models, replay_windows

# The replay's config. Batches are small, since a sequence has many steps.
REPLAY = replay.PrioritizedConfig(
  replay_batch_size=32, priority_exponent=0.9, importance_exponent=0.6
)
# eta, the share of the largest TD error in a priority (section 2.3).
_ETA = 0.9


@dataclasses.dataclass(frozen=True)
class Config(dqn.Config):
  """Hyper-parameters that R2D2 adds to those of DQN.

  A window is a sequence of `burn_in` steps and `sequence_length` transitions. A
  sequence starts every `unroll_length` steps, so sequences overlap. Sequences
  cross the ends of episodes, which reset the memory and cut returns, so that no
  padding is needed. The loss is a mean over steps; in SEED's R2D2 it is a sum
  over those of a sequence. The memory also sees the previous action and reward.

  Attributes:
    lstm_size: units of the LSTM, the memory if there is no `core`; 0 for no
      memory.
    core: your own Flax module as the memory, see `networks.Core`.
    burn_in: steps without a gradient at the start of a sequence, with which the
      online and the target network each bring their memory up to date.
    sequence_length: transitions after the burn-in. Gradients go no further
      back, so the memory learns to bridge at most that many steps.
    stored_state: whether a sequence begins with the memory's state from acting.
      If not, a sequence begins with the state at an episode's start.
  """

  learning_rate: float = 2e-3
  max_gradient_norm: float = 40.0
  hidden_sizes: tuple[int, ...] = (64, 64)
  target_period: int = 100
  epsilon_ladder: bool = True
  n_step: int = 5
  dueling: bool = True
  rescale: bool = True
  discount: float = 0.997
  lstm_size: int = types.setting(64, low=0, high=2**16)
  core: nn.Module | None = None
  burn_in: int = types.setting(20, low=0, high=2**16)
  sequence_length: int = 40
  stored_state: bool = True

  def __post_init__(self) -> None:
    super().__post_init__()
    types.check_range(
      "sequence_length", self.sequence_length, self.n_step, 2**16
    )
    models.check_core(self.core)
    if not self.replayed:
      raise types.ConfigError(
        "expected replayed True, since R2D2 learns from sequences of a replay,"
        " found False"
      )

  def for_images(self) -> Self:
    """Returns a copy for Atari, as in Kapturowski et al. 2019; not measured.

    The values are those of section 2.3 and table 2, except that the learning
    rate falls to 0. Frames are stacked although there is an LSTM. Returns are
    rescaled instead of clipping rewards.
    """
    return dataclasses.replace(
      self,
      stack_frames=4,
      learning_rate=1e-4,
      adam_epsilon=1e-3,
      reward_scale=1.0,
      hidden_sizes=(512,),
      lstm_size=512,
      burn_in=40,
      sequence_length=80,
      target_period=2500,
      epsilon_steps=0,
    )

  @property
  def windows(self) -> replay_windows.Windows:
    """The sequences that the agent learns from."""
    return replay_windows.Windows(
      transitions=self.sequence_length,
      n_step=self.n_step,
      burn_in=self.burn_in,
      whole_unrolls=True,
      stored_state=self.stored_state,
      priority_max_share=_ETA,
    )

  @property
  def memory(self) -> nn.Module | None:
    """The core, or an LSTM; None for no memory."""
    return models.memory(self.core, self.lstm_size, self.compute_dtype)
