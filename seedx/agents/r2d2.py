"""Recurrent replay distributed DQN: a memory, trained on stored sequences.

Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed
Reinforcement Learning", https://openreview.net/forum?id=r1lyTjAqYX.
"""

import dataclasses
from typing import Self

import flax.linen as nn

from seedx import replay, types
from seedx.agents import dqn
from seedx.agents import model as model_lib
from seedx.agents import windows as windows_lib

# What it is trained with; a sequence is many steps.
REPLAY = replay.PrioritizedConfig(
  replay_batch_size=32, priority_exponent=0.9, importance_exponent=0.6
)


@dataclasses.dataclass(frozen=True)
class Config(dqn.Config):
  """R2D2's hyper-parameters, beside those of DQN.

  A window is a sequence: `burn_in` steps, then `sequence_length` transitions. A
  new one starts every `unroll_length` steps, so sequences overlap. They cross
  the ends of episodes: there the memory is reset and returns are cut, so
  nothing is padded. The loss is a mean over steps; the paper has the sum over
  the steps of a sequence. The memory also sees the previous action and reward.

  Attributes:
    lstm_size: units of the LSTM that is the memory without a `core`; 0 for
      none.
    core: your own Flax module as the memory instead of the LSTM, see
      `networks.Core`.
    burn_in: steps that only warm the memory up, with no gradient; the online
      and the target network do so each with its own parameters.
    sequence_length: transitions after the burn-in. What is to be remembered
      must fit into them: no gradient goes further back.
    stored_state: begin a sequence with the memory's state of when it was acted;
      else with that of an episode's start.
    priority_max_share: eta of the priority of a sequence, eta times its largest
      TD error plus 1 - eta times their mean.
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
  priority_max_share: float = types.setting(0.9, low=0.0, high=1.0)

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range.

    The same where a sequence is too short for n-step returns, or where there is
    to be no replay.
    """
    super().__post_init__()
    types.check_range(
      "sequence_length", self.sequence_length, self.n_step, 2**16
    )
    model_lib.check_core(self.core)
    if not self.replayed:
      raise types.ConfigError(
        "expected replayed True: R2D2 learns from sequences of a replay, found"
        " False"
      )

  def for_images(self) -> Self:
    """Returns a copy for Atari; not measured.

    It is close to Kapturowski et al. 2019, scaled to one machine: an LSTM in
    place of stacked frames, and rescaled returns in place of clipped rewards.
    """
    return dataclasses.replace(
      self,
      learning_rate=1e-4,
      adam_epsilon=1e-3,
      reward_scale=1.0,
      hidden_sizes=(512,),
      lstm_size=512,
      burn_in=40,
      sequence_length=80,
      target_period=2500,
    )

  @property
  def windows(self) -> windows_lib.Windows:
    """Its sequences."""
    return windows_lib.Windows(
      transitions=self.sequence_length,
      n_step=self.n_step,
      burn_in=self.burn_in,
      whole_unrolls=True,
      stored_state=self.stored_state,
      priority_max_share=self.priority_max_share,
    )

  @property
  def memory(self) -> nn.Module | None:
    """The core, or an LSTM."""
    return model_lib.memory(self.core, self.lstm_size, self.compute_dtype)
