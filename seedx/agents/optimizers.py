"""How gradients become steps; the learning rate is in the agent's state."""

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
  """Static hyper-parameters of the optimizer.

  Attributes:
    learning_rate: at the start of a run.
    learning_rate_end: share of `learning_rate` that is left at the end of the
      run, to which it falls linearly; 1 keeps it constant.
    optimizer: which one.
    adam_epsilon: added to Adam's denominator.
    rms_decay: decay of RMSProp's mean of squared gradients.
    rms_epsilon: added inside RMSProp's square root.
    max_gradient_norm: gradients with a larger global norm are scaled down.
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
  """The optimizer, whose steps still have to be multiplied by -rate.

  The rate itself is one of the state's hyper-parameters, see `descend`.

  Args:
    config: the hyper-parameters.
    horizon: over which the learning rate falls; None keeps it constant.
    steps_per_update: how often an update takes a step.
  """
  schedule: optax.Schedule = optax.constant_schedule(np.float32(1.0))
  if horizon is not None:
    schedule = optax.linear_schedule(
      1.0, config.learning_rate_end, horizon.updates * steps_per_update
    )
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
  """The state of `make`'s optimizer for parameters that took some steps."""
  *scales, schedule = optimizer.init(params)
  return (*scales, schedule._replace(count=jnp.int32(steps)))


def descend(
  state: base.AgentState,
  optimizer: optax.GradientTransformation,
  gradients: types.Tree,
) -> base.AgentState:
  """One step of the optimizer with the state's learning rate."""
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
