"""Optimizers; the learning rate is in the agent's state."""

import dataclasses
from collections.abc import Callable
from typing import Literal, Self

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
    transformation: makes an Optax optimizer that takes the place of all the
      above, learning rate and clipping included, such as
      `functools.partial(optax.lion, 1e-4)`. A function, since other processes
      make theirs. Gorila's parameter servers apply it to their part of the
      parameters, one vector.
  """

  learning_rate: float = 2e-3
  learning_rate_end: float = 0.0
  optimizer: Literal["adam", "rmsprop"] = "adam"
  adam_epsilon: float = 1e-5
  rms_decay: float = 0.99
  rms_epsilon: float = 1e-5
  max_gradient_norm: float = 0.5
  transformation: Callable[[], optax.GradientTransformation] | None = None

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
    if self.transformation is not None and not callable(self.transformation):
      raise types.ConfigError(
        "expected a transformation that makes an Optax optimizer, such as"
        " functools.partial(optax.lion, 1e-4), found one:"
        f" {type(self.transformation).__name__}"
      )


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """An optimizer whose learning rate is one of the state's hyper-parameters.

  Attributes:
    direction: Optax's, all but the factor -learning_rate; or the user's own.
    schedule: of the learning rate: maps `AgentState.clock`, in optimizer steps,
      to a factor; None for an optimizer of the user's own, which has its
      learning rate in it.
    steps_per_update: optimizer steps in an update.
  """

  direction: optax.GradientTransformation
  schedule: optax.Schedule | None
  steps_per_update: int = 1

  @classmethod
  def make(
    cls,
    config: Config,
    horizon: base.Horizon | None,
    steps_per_update: int = 1,
  ) -> Self:
    """Makes an optimizer.

    Args:
      config: the hyper-parameters.
      horizon: the run over which the learning rate decays; None keeps it
        constant.
      steps_per_update: optimizer steps in an update.
    """
    if config.transformation is not None:
      return cls(config.transformation(), None, steps_per_update)
    schedule: optax.Schedule = optax.constant_schedule(np.float32(1.0))
    if horizon is not None:
      # A float: JAX's integers end at 2^31.
      steps = float(horizon.updates * steps_per_update)
      schedule = optax.linear_schedule(1.0, config.learning_rate_end, steps)
    scale = {
      "adam": optax.scale_by_adam(eps=config.adam_epsilon),
      "rmsprop": optax.scale_by_rms(config.rms_decay, config.rms_epsilon),
    }
    direction = optax.chain(
      optax.clip_by_global_norm(config.max_gradient_norm),
      scale[config.optimizer],
      _scale_by(schedule),
    )
    return cls(direction, schedule, steps_per_update)

  def start(self, params: types.Tree, updates: int | jax.Array) -> types.Tree:
    """Its state after so many updates, which it has not seen.

    That of the user's own optimizer is its initial one.
    """
    if self.schedule is None:
      return self.direction.init(params)
    *scales, schedule = self.direction.init(params)
    steps = jnp.int32(updates * self.steps_per_update)
    return (*scales, schedule._replace(count=steps))

  def descend(
    self, state: base.AgentState, gradients: types.Tree
  ) -> base.AgentState:
    """Takes one optimizer step with the state's learning rate."""
    others = {}
    if self.schedule is not None:
      others["resets"] = state.resets * self.steps_per_update
    updates, optimizer_state = self.direction.update(
      gradients, state.optimizer_state, state.params, **others
    )
    if self.schedule is not None:
      rate = state.hyperparameters["learning_rate"]
      updates = jax.tree.map(lambda update: -rate * update, updates)
    return dataclasses.replace(
      state,
      params=optax.apply_updates(state.params, updates),
      optimizer_state=optimizer_state,
    )

  def skip(self, state: base.AgentState, steps: jax.Array) -> base.AgentState:
    """Counts steps that are not taken, so that the schedule follows the run.

    The user's own optimizer counts the steps that it takes.
    """

    def count(node: types.Tree) -> types.Tree:
      is_schedule = isinstance(node, optax.ScaleByScheduleState)
      return node._replace(count=node.count + steps) if is_schedule else node

    if self.schedule is None:
      return state
    counted = jax.tree.map(
      count,
      state.optimizer_state,
      is_leaf=lambda node: isinstance(node, optax.ScaleByScheduleState),
    )
    return dataclasses.replace(state, optimizer_state=counted)

  def measure(
    self, state: base.AgentState, gradients: types.Tree
  ) -> dict[str, jax.Array]:
    """The learning rate of the next update, and the norm before clipping.

    The user's own optimizer does not say its learning rate.
    """
    norm = optax.global_norm(gradients)
    if self.schedule is None:
      return {"gradient_norm": norm}
    scheduled = self.schedule(state.clock * self.steps_per_update)
    rate = state.hyperparameters["learning_rate"] * scheduled
    return {
      "learning_rate": jnp.maximum(rate, 0.0),  # Rounding ends below 0.
      "gradient_norm": norm,
    }


def _scale_by(
  schedule: optax.Schedule,
) -> optax.GradientTransformationExtraArgs:
  """As `optax.scale_by_schedule`, by a count without resets.

  Its `update` takes `resets`, the optimizer steps that they would fill.
  """

  def init(params: types.Tree) -> optax.ScaleByScheduleState:
    del params
    return optax.ScaleByScheduleState(count=jnp.int32(0))

  def update(
    updates: types.Tree,
    state: optax.ScaleByScheduleState,
    params: types.Tree = None,
    *,
    resets: jax.Array,
    **others: object,
  ) -> tuple[types.Tree, optax.ScaleByScheduleState]:
    del params, others
    factor = schedule(state.count - resets)
    updates = jax.tree.map(lambda x: jnp.asarray(factor, x.dtype) * x, updates)
    count = optax.safe_increment(state.count)
    return updates, optax.ScaleByScheduleState(count)

  return optax.GradientTransformationExtraArgs(init, update)
