"""Rainbow: six improvements of DQN, each of which can be left out.

Hessel et al. 2018, "Rainbow: Combining Improvements in Deep Reinforcement
Learning", https://arxiv.org/abs/1710.02298.
"""

import dataclasses
import functools
from typing import Self

import jax
import jax.numpy as jnp

from seedx import losses, networks, replay, types
from seedx.agents import (
  base,
  dqn,
  epsilon_greedy,
  models,
  return_atoms,
  value_based,
)

# The replay for training; its priorities are one of Rainbow's components.
REPLAY = replay.PrioritizedConfig(
  priority_exponent=0.5, importance_exponent_rise=0.6
)


@dataclasses.dataclass(frozen=True)
class Config(dqn.Config):
  """Hyper-parameters that Rainbow adds to those of DQN.

  The components are double Q-learning (`double`), dueling networks (`dueling`),
  n-step returns (`n_step` above 1), distributional returns (`num_atoms` above
  0), noisy layers (`noise_scale` above 0), and a prioritized replay
  (`priority_exponent` above 0), which belongs to the pipeline. An environment
  keeps its noise for an episode, so that it explores consistently.

  Attributes:
    num_atoms: atoms of the distribution of returns; 0 for Q-values and the loss
      of DQN.
    value_min: lowest atom, a return of scaled rewards.
    value_max: highest atom, a return of scaled rewards.
    noise_scale: initial scale of the noise in the head's layers (sigma_0); 0
      for layers without noise.
  """

  hidden_sizes: tuple[int, ...] = (64, 64)
  dueling: bool = True
  epsilon_end: float = 0.0
  epsilon_steps: int = 0
  num_atoms: int = types.setting(51, low=0, high=2**16)
  value_min: float = types.setting(-10.0, low=-types.MAX_VALUE)
  value_max: float = types.setting(10.0, low=-types.MAX_VALUE)
  noise_scale: float = types.setting(0.1, low=0.0)

  def __post_init__(self) -> None:
    super().__post_init__()
    return_atoms.spaced(self.num_atoms, self.value_min, self.value_max)
    if self.num_atoms and (self.rescale or self.huber_delta):
      raise types.ConfigError(
        "expected rescale False and huber_delta 0 with a distribution of"
        f" returns, found {self.rescale} and {self.huber_delta}; num_atoms 0"
        " selects DQN's loss, which has both"
      )

  def for_images(self) -> Self:
    """Returns a copy for Atari; not measured.

    The values are those of Hessel et al. 2018, table 1, but the learning rate
    falls to 0. DeepMind's `dqn_zoo` has a noise scale of 0.1 instead of 0.5.
    """
    # Not `super()`: DQN's preset has a Huber loss, which Rainbow's loss lacks.
    images = models.Config.for_images(self)
    return dataclasses.replace(
      images,
      learning_rate=6.25e-5,
      adam_epsilon=1.5e-4,
      hidden_sizes=(512,),
      noise_scale=0.5,
      target_period=2000,
    )

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """Makes the agent for an environment; see `base.Config`."""
    epsilon_greedy.check_discrete(spec)
    head = value_based.q_head(spec, self, self.noise_scale, self.num_atoms)
    make = functools.partial(
      value_based.make,
      spec,
      self,
      axis_name=axis_name,
      horizon=horizon,
      noisy=self.noise_scale > 0,
      bootstraps=True,
    )
    if not self.num_atoms:
      return make(loss=dqn.loss_of(self), head=head)
    atoms = return_atoms.spaced(self.num_atoms, self.value_min, self.value_max)
    loss = functools.partial(_loss, self, jnp.float32(atoms))
    categorical = networks.CategoricalQHead(head, atoms)
    return make(loss=loss, head=categorical)


def _loss(
  config: Config,
  atoms: jax.Array,
  evaluation: value_based.Evaluation,
) -> losses.QLearningLoss:
  stream_loss = functools.partial(
    losses.categorical_q_learning,
    atoms=atoms,
    n=config.n_step,
    double=config.double,
  )
  outputs, target_outputs, *rest = evaluation
  return jax.vmap(stream_loss, in_axes=1, out_axes=1)(
    *outputs, *target_outputs, *rest
  )
