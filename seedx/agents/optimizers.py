"""Optimizers, whose learning rates are in the agent's state."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from seedx import types
from seedx.agents import base

# Decay of the mean squared gradient (A3C, Mnih et al. 2016, supplement).
_RMS_DECAY = 0.99


@dataclasses.dataclass(frozen=True)
class Config:
  """Hyper-parameters of the optimizer.

  Attributes:
    learning_rate: initial learning rate.
    learning_rate_end: final learning rate as a fraction of `learning_rate`,
      with linear decay over the run; 1 keeps it constant.
    optimizer: Adam, RAdam (Adam with smaller first steps, Liu et al. 2020,
      https://arxiv.org/abs/1908.03265), RMSProp, or the gradient as it is.
    adam_epsilon: epsilon in the denominator of Adam and RAdam.
    rms_epsilon: epsilon inside RMSProp's square root.
    max_gradient_norm: global gradient norm above which gradients are clipped; 0
      for no clipping. Networks with learning rates of their own are clipped
      separately.
    transformation: function that makes an Optax optimizer to replace all of the
      above, including learning rate and clipping, such as
      `functools.partial(optax.lion, 1e-4)`; called in each process. Gorila's
      parameter servers apply the optimizer to their shard as one vector, and
      networks with learning rates of their own have one optimizer each.
  """

  learning_rate: float = types.setting(
    2e-3, changes="run_time", low=0.0, high=1e3
  )
  learning_rate_end: float = types.setting(0.0, low=0.0, high=1.0)
  optimizer: Literal["adam", "radam", "rmsprop", "sgd"] = "adam"
  adam_epsilon: float = types.setting(1e-5, low=0.0, high=1.0)
  rms_epsilon: float = types.setting(1e-5, low=0.0, high=1.0)
  max_gradient_norm: float = types.setting(0.5, low=0.0)
  transformation: Callable[[], optax.GradientTransformation] | None = None

  def __post_init__(self) -> None:
    types.check_settings(self)
    if self.transformation is not None and not callable(self.transformation):
      raise types.ConfigError(
        "expected a transformation that makes an Optax optimizer, such as"
        " functools.partial(optax.lion, 1e-4), found one:"
        f" {type(self.transformation).__name__}"
      )


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """An optimizer whose learning rates are in the state's hyper-parameters.

  Attributes:
    direction: Optax optimizer without the factor -learning_rate; or the user's
      own optimizer, which includes its learning rate.
    schedule: function from `AgentState.clock`, in optimizer steps, to a factor
      of all learning rates; None for the user's own optimizer.
    steps_per_update: number of optimizer steps in an update.
    rates: see `make`.
    periods: see `make`.
  """

  direction: optax.GradientTransformation
  schedule: optax.Schedule | None
  steps_per_update: int = 1
  rates: Mapping[str, str] | None = None
  periods: Mapping[str, int] | None = None

  @classmethod
  def make(
    cls,
    config: Config,
    horizon: base.Horizon | None,
    steps_per_update: int = 1,
    rates: Mapping[str, str] | None = None,
    periods: Mapping[str, int] | None = None,
  ) -> Self:
    """Makes an optimizer.

    The learning rate decays over the `horizon`; None keeps it constant. An
    update has `steps_per_update` optimizer steps.

    `rates` maps a group's key in the parameters to the name of its learning
    rate among the hyper-parameters; None for one group with `learning_rate`.
    Each group has its own optimizer, and is clipped by its own norm. All groups
    share the schedule. For actor and critic:

        params = {"actor": actor_params, "critic": critic_params}
        rates = {"actor": "learning_rate", "critic": "critic_learning_rate"}

    `periods` maps a group's key to the number of updates in which it takes one
    step, see `is_due`; None for a step in each update.
    """
    periods = periods or {}
    if config.transformation is not None:
      direction = _by_group(config.transformation, rates, periods)
      return cls(direction, None, steps_per_update, rates, periods)
    schedule: optax.Schedule = optax.constant_schedule(np.float32(1.0))
    if horizon is not None:
      # A float: JAX's integers end at 2^31.
      length = float(horizon.updates * steps_per_update)
      schedule = optax.linear_schedule(1.0, config.learning_rate_end, length)
    scale = {
      "adam": optax.scale_by_adam(eps=config.adam_epsilon),
      "radam": optax.scale_by_radam(eps=config.adam_epsilon),
      "rmsprop": optax.scale_by_rms(_RMS_DECAY, config.rms_epsilon),
      "sgd": optax.identity(),
    }
    norm = config.max_gradient_norm
    clip = optax.clip_by_global_norm(norm) if norm else optax.identity()
    steps = [clip, scale[config.optimizer]]
    if rates is not None:
      clipped = optax.chain(*steps)
      steps = [_by_group(lambda: clipped, rates, periods)]
    direction = optax.chain(*steps, _scale_by(schedule))
    return cls(direction, schedule, steps_per_update, rates, periods)

  def start(self, params: types.Tree, updates: int | jax.Array) -> types.Tree:
    """Returns a fresh optimizer state with the step count after `updates`.

    The user's own optimizer starts from its initial state.

    Raises:
      types.ConfigError: the keys of the parameters are not those of `rates`.
    """
    self._check_groups(params)
    if self.schedule is None:
      return self.direction.init(params)
    *scales, schedule = self.direction.init(params)
    steps = jnp.int32(updates * self.steps_per_update)
    return (*scales, schedule._replace(count=steps))

  def descend(
    self, state: base.AgentState, gradients: types.Tree
  ) -> base.AgentState:
    """Takes one optimizer step with the state's learning rates."""
    updates, optimizer_state = self.direction.update(
      gradients,
      state.optimizer_state,
      state.params,
      count=state.updates,
      resets=state.resets * self.steps_per_update,
    )
    if self.schedule is not None:
      updates = jax.tree.map(_scaled, self._rates(state), updates)
    return dataclasses.replace(
      state,
      params=optax.apply_updates(state.params, updates),
      optimizer_state=optimizer_state,
    )

  def skip(self, state: base.AgentState, steps: jax.Array) -> base.AgentState:
    """Counts steps that are not taken, so that the schedule follows the run.

    The user's own optimizer counts only the steps that it takes.
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
    """Returns the next learning rate, and the gradient norm before clipping.

    Each group has its own rate and norm, such as `gradient_norm_critic`; the
    norm is NaN in an update that is not due. The user's own optimizer has no
    `learning_rate` here.
    """
    metrics = {}
    for key, name in (self.rates or {"": "learning_rate"}).items():
      suffix, part = (f"_{key}", gradients[key]) if key else ("", gradients)
      norm, period = optax.global_norm(part), (self.periods or {}).get(key, 1)
      if period > 1:
        norm = jnp.where(is_due(state.updates, period), norm, jnp.nan)
      metrics[f"gradient_norm{suffix}"] = norm
      if self.schedule is not None:
        scheduled = self.schedule(state.clock * self.steps_per_update)
        rate = state.hyperparameters[name] * scheduled
        # Rounding can make the last rate slightly negative.
        metrics[f"learning_rate{suffix}"] = jnp.maximum(rate, 0.0)
    return metrics

  def _rates(self, state: base.AgentState) -> types.Tree:
    values = state.hyperparameters
    if self.rates is None:
      return values["learning_rate"]
    return {key: values[name] for key, name in self.rates.items()}

  def _check_groups(self, params: types.Tree) -> None:
    if self.rates is None:
      return
    if not isinstance(params, Mapping) or set(params) != set(self.rates):
      keys = "a part of them, as Gorila's servers have; use another pipeline"
      if isinstance(params, Mapping):
        keys = str(sorted(params))
      raise types.ConfigError(
        f"expected parameters with the keys {sorted(self.rates)}, each of which"
        f" has its own learning rate, found {keys}"
      )


def is_due(updates: jax.Array, period: int) -> jax.Array:
  """Returns whether a group with a period takes a step in the next update.

  `updates` counts the updates before it, as `AgentState.updates`. With a period
  of 2, the second and the fourth update are due.
  """
  return (updates + 1) % period == 0


def _by_group(
  make: Callable[[], optax.GradientTransformation],
  rates: Mapping[str, str] | None,
  periods: Mapping[str, int],
) -> optax.GradientTransformationExtraArgs:
  """Returns an optimizer, or a separate one for each group of `rates`."""
  if rates is None:
    return optax.with_extra_args_support(make())
  groups = {key: _every(periods.get(key, 1), make()) for key in rates}
  return optax.partition(groups, {key: key for key in rates})


def _every(
  period: int, inner: optax.GradientTransformation
) -> optax.GradientTransformation:
  """Returns an optimizer that skips the updates that are not due."""
  if period == 1:
    return inner

  def due(step: jax.Array, *, count: jax.Array, **_: object) -> jax.Array:
    del step  # Updates that were not finite are not counted there.
    return is_due(count, period)

  return optax.conditionally_mask(inner, due, forward_extra_args=True)


def _scaled(rate: jax.Array, updates: types.Tree) -> types.Tree:
  return jax.tree.map(lambda update: -rate * update, updates)


def _scale_by(
  schedule: optax.Schedule,
) -> optax.GradientTransformationExtraArgs:
  """Returns an `optax.scale_by_schedule` that leaves resets out of the count.

  `update` takes `resets`, the number of optimizer steps to leave out.
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
    **extra_args: object,
  ) -> tuple[types.Tree, optax.ScaleByScheduleState]:
    del params, extra_args
    factor = schedule(state.count - resets)
    updates = jax.tree.map(lambda x: jnp.asarray(factor, x.dtype) * x, updates)
    count = optax.safe_increment(state.count)
    return updates, optax.ScaleByScheduleState(count)

  return optax.GradientTransformationExtraArgs(init, update)
