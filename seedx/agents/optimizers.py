"""Optimizers; the learning rate is in the agent's state."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from seedx import types
from seedx.agents import base


@dataclasses.dataclass(frozen=True)
class Config:
  """Hyper-parameters of the optimizer.

  Attributes:
    learning_rate: initial learning rate.
    learning_rate_end: final learning rate as a fraction of `learning_rate`,
      with linear decay over the run; 1 keeps it constant.
    optimizer: Adam or RMSProp.
    adam_epsilon: Adam's epsilon, added to the denominator.
    rms_decay: RMSProp's decay of the mean squared gradient.
    rms_epsilon: RMSProp's epsilon, added inside the square root.
    max_gradient_norm: global gradient norm above which gradients are clipped.
  """

  learning_rate: float = 2e-3
  learning_rate_end: float = 0.0
  optimizer: Literal["adam", "rmsprop"] = "adam"
  adam_epsilon: float = 1e-5
  rms_decay: float = 0.99
  rms_epsilon: float = 1e-5
  max_gradient_norm: float = 0.5

  def __post_init__(self) -> None:
    """Raises types.ConfigError for a value out of its range."""
    types.check_ranges(
      self,
      learning_rate=(0.0, 1e3),
      learning_rate_end=(0.0, 1.0),
      adam_epsilon=(0.0, 1.0),
      rms_decay=(0.0, 1.0),
      rms_epsilon=(0.0, 1.0),
      max_gradient_norm=(1e-12, types.MOST),
    )
    types.check_choices(self, optimizer=("adam", "rmsprop"))


def make(
  config: Config, horizon: base.Horizon | None, steps_per_update: int = 1
) -> optax.GradientTransformation:
  """Makes the optimizer, all but the factor -learning_rate.

  `descend` multiplies by it: it is one of the state's hyper-parameters.

  Args:
    config: the hyper-parameters.
    horizon: the run over which the learning rate decays; None keeps it
      constant.
    steps_per_update: optimizer steps in an update.
  """
  schedule: optax.Schedule = optax.constant_schedule(np.float32(1.0))
  if horizon is not None:
    # A float: JAX's integers end at 2^31.
    steps = float(horizon.updates * steps_per_update)
    schedule = optax.linear_schedule(1.0, config.learning_rate_end, steps)
  scale = {
    "adam": optax.scale_by_adam(eps=config.adam_epsilon),
    "rmsprop": optax.scale_by_rms(config.rms_decay, config.rms_epsilon),
  }
  return optax.chain(
    optax.clip_by_global_norm(config.max_gradient_norm),
    scale[config.optimizer],
    optax.scale_by_schedule(schedule),
  )


def start(
  optimizer: optax.GradientTransformation,
  params: types.Tree,
  steps: int | jax.Array,
) -> types.Tree:
  """The initial state of `make`'s optimizer, with `steps` already counted."""
  *scales, schedule = optimizer.init(params)
  return (*scales, schedule._replace(count=jnp.int32(steps)))


def descend(
  state: base.AgentState,
  optimizer: optax.GradientTransformation,
  gradients: types.Tree,
) -> base.AgentState:
  """Takes one optimizer step with the state's learning rate."""
  updates, optimizer_state = optimizer.update(
    gradients, state.optimizer_state, state.params
  )
  rate = state.hyperparameters["learning_rate"]
  updates = jax.tree.map(lambda update: -rate * update, updates)
  return dataclasses.replace(
    state,
    params=optax.apply_updates(state.params, updates),
    optimizer_state=optimizer_state,
  )
