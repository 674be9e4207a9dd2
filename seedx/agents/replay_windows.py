"""Windows and target parameters, for agents that learn from a replay.

A window is a burn-in, which only brings the core state up to date, followed by
transitions. The last n - 1 transitions are not learned from, since their n-step
returns would be shorter. Nothing here depends on what a network returns.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import dm_env
import jax
import jax.numpy as jnp
import optax

from seedx import losses, types
from seedx.agents import base, models, optimizers


@dataclasses.dataclass(frozen=True)
class Config(models.Config):
  """Hyper-parameters of agents that learn from windows.

  Attributes:
    n_step: n of n-step returns.
    target_period: updates between two updates of the target network.
    target_rate: weight of the learned parameters when they are averaged into
      the target network (tau); 1 copies them. For Polyak averages, set
      `target_period` to 1 and this to, for example, 0.005.
    replayed: whether the agent learns from a replay; if not, from each unroll
      once, with shorter returns at the last `n_step - 1` steps.
  """

  n_step: int = types.setting(3, low=1, high=2**16)
  target_period: int = types.setting(100, low=1, high=2**31 - 1)
  target_rate: float = types.setting(1.0, low=1e-9, high=1.0)
  replayed: bool = True

  @property
  def windows(self) -> "Windows":
    """Windows of one n-step return each, or whole unrolls without a replay."""
    if not self.replayed:
      return Windows(transitions=None, n_step=self.n_step)
    return Windows(
      transitions=self.n_step,
      n_step=self.n_step,
      burn_in=self.stack_frames - 1,
    )


class Steps(NamedTuple):
  """The steps of a batch after the burn-in.

  Attributes:
    action: `[T, B, ...]`, the actions taken.
    step_type: `[T + 1, B]` int32.
    reward: `[T + 1, B]`, scaled and clipped.
    discount: `[T + 1, B]`, the environment's discount times gamma.
    at: `[T + 1, B]` int32, index of each step among all steps after the
      burn-in; None if these are all of them.
  """

  action: jax.Array
  step_type: jax.Array
  reward: jax.Array
  discount: jax.Array
  at: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class Windows:
  """The windows sampled from a replay, and which of their steps are learned.

  Attributes:
    transitions: T, number of transitions after the burn-in; None for an agent
      without a replay, which learns from all steps of each unroll once.
    n_step: n of n-step returns.
    burn_in: steps at the start that only bring the core state up to date.
    whole_unrolls: see `base.Needs`.
    stored_state: whether a window that is a whole unroll begins with the
      memory's state from acting. All other windows begin with the state at an
      episode's start.
    priority_max_share: eta; a window's priority is eta * max(|TD error|) +
      (1 - eta) * mean(|TD error|). TD errors of resets count as 0.
  """

  transitions: int | None
  n_step: int = 1
  burn_in: int = 0
  whole_unrolls: bool = False
  stored_state: bool = True
  priority_max_share: float = 0.0

  @property
  def replayed(self) -> bool:
    """Whether the windows come from a replay."""
    return self.transitions is not None

  @property
  def needs(self) -> base.Needs:
    """Requirements on the pipeline."""
    if self.transitions is None:
      return base.Needs(extras=False)
    return base.Needs(
      window=self.burn_in + self.transitions + 1,
      whole_unrolls=self.whole_unrolls,
      learned_steps=self.transitions - self.n_step + 1,
      extras=False,
    )

  def sample(self, batch: types.Tree) -> types.Sample:
    """Returns a batch as a sample, with importance weights 1 for unrolls."""
    if self.replayed:
      return batch
    ones = jnp.ones(batch.version.shape[1], jnp.float32)
    return types.Sample(batch, ones)

  def warmed_up(
    self,
    model: models.Model,
    variables: models.Variables,
    inputs: types.Inputs,
    core_state: types.Tree,
  ) -> tuple[types.Inputs, types.Tree]:
    """Runs the network over the burn-in, without a gradient.

    The inputs are `[burn_in + T + 1, B, ...]`, and the core state `[B, ...]` is
    the network's part of `Unroll.core_state`. Returns the inputs after the
    burn-in, and the core state before them.
    """
    start = model.initial_core_state(inputs.timestep.step_type.shape[1])
    if self.replayed and not self.whole_unrolls:
      core_state = start
    elif not self.stored_state:
      core_state = core_state._replace(memory=start.memory)
    if self.burn_in:
      burn_in = jax.tree.map(lambda x: x[: self.burn_in], inputs)
      core_state = jax.lax.stop_gradient(
        model.unroll(variables, burn_in, core_state).core_state
      )
    return self.after_burn_in(inputs), core_state

  def after_burn_in(self, nest: types.Tree) -> types.Tree:
    """Cuts the burn-in off a nest `[burn_in + T + 1, B, ...]`."""
    return jax.tree.map(lambda x: x[self.burn_in :], nest)

  def steps(
    self, model: models.Model, unroll: types.Unroll, discount: jax.Array
  ) -> Steps:
    """Returns the steps after the burn-in; `discount` is gamma."""
    inputs = self.after_burn_in(unroll.inputs)
    return Steps(
      action=unroll.action[self.burn_in : -1],
      step_type=inputs.timestep.step_type.astype(jnp.int32),
      reward=model.rewards(inputs),
      discount=model.discounts(inputs, discount),
    )

  def have_one_return(self, model: models.Model, steps: Steps) -> bool:
    """Returns whether windows have one learned step, and the model no memory.

    If so, `one_transition` is enough for a loss that bootstraps once.
    """
    is_one = self.replayed and len(steps.action) == self.n_step
    return is_one and not model.network.recurrent

  def one_transition(self, steps: Steps) -> Steps:
    """Returns the n-step return of each window's first step as one transition.

    The transition's reward is the sum of discounted rewards, its discount the
    product of discounts. It ends at the step from which the return bootstraps.
    """
    bootstraps = functools.partial(
      losses.n_step_bootstraps, n=self.n_step, starts=1
    )
    ends = jax.vmap(bootstraps, in_axes=1, out_axes=1)(
      steps.step_type, steps.reward, steps.discount
    )
    reward, discount, last, weight = (x[0] for x in ends)
    last_type = jnp.where(
      weight > 0,
      jnp.take_along_axis(steps.step_type, last[None], axis=0)[0],
      int(dm_env.StepType.FIRST),
    )
    return Steps(
      action=steps.action[:1],
      step_type=jnp.stack([steps.step_type[0], last_type]),
      reward=jnp.stack([jnp.zeros_like(reward), reward]),
      discount=jnp.stack([jnp.ones_like(discount), discount]),
      at=jnp.stack([jnp.zeros_like(last), last]),
    )

  def learned(self, nest: types.Tree, steps: Steps) -> types.Tree:
    """Returns the steps of a nest `[T, B]` whose returns have all n steps."""
    if not self.replayed or steps.at is not None:
      return nest
    learned_steps = len(steps.action) - self.n_step + 1
    return jax.tree.map(lambda x: x[:learned_steps], nest)

  def shares(
    self,
    loss: jax.Array,
    q_taken: jax.Array,
    per_step: losses.QLearningLoss,
    importance_weight: jax.Array,
    axis_name: str | None,
  ) -> tuple[dict[str, jax.Array], jax.Array | None]:
    """Returns this core's contribution to the metrics, and new priorities.

    The metrics include the "loss" and its "weight". The weighted `loss`, the
    Q-values of the actions taken, and the losses `per_step` are `[T, B]`;
    importance weights and priorities are `[B]`. There are no priorities without
    a replay.
    """
    weight, td_error = per_step.weight, per_step.td_error

    def mean(values: jax.Array) -> jax.Array:
      return losses.mean_share(values, weight, axis_name)

    size = jnp.abs(td_error)
    # Cores without a learned step do not count in the mean.
    learns = jnp.float32(jnp.any(weight > 0))
    p50, p95 = (
      losses.mean_share(x, learns, axis_name)
      for x in _percentiles(size, weight, (0.5, 0.95))
    )
    return {
      "loss": mean(loss),
      "q_mean": mean(q_taken),
      "weight": jnp.sum(weight),
      "td_error": mean(size),
      "td_error_p50": p50,
      "td_error_p95": p95,
      "importance_weight": mean(
        jnp.broadcast_to(importance_weight, weight.shape)
      ),
    }, self.priority(td_error) if self.replayed else None

  def priority(self, td_error: jax.Array) -> jax.Array:
    """Returns the priorities `[B]` of windows with TD errors `[T, B]`."""
    share = self.priority_max_share
    size = jnp.abs(td_error)
    mean = jnp.mean(size, axis=0)
    return share * jnp.max(size, axis=0) + (1 - share) * mean

  def priorities(self, td_error: jax.Array) -> jax.Array:
    """Returns priorities `[S, windows]` for learned steps' errors `[T, S]`."""
    if self.whole_unrolls:
      return self.priority(td_error)[:, None]
    return jnp.abs(td_error).T


class LossShare(Protocol):
  """The loss of an agent that is made by `make`."""

  def __call__(
    self,
    state: base.AgentState,
    rng_key: jax.Array,
    batch: types.Sample,
    params: types.Tree,
  ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array | None]]:
    """Returns this core's share of the loss, and of the metrics; priorities.

    The loss is differentiated with respect to the parameters only. The metrics
    have the "loss" and its "weight", see `Windows.shares`.
    """


def make(
  config: Config,
  model: models.Model,
  loss_share: LossShare,
  init: Callable[[jax.Array], models.Variables],
  horizon: base.Horizon | None,
  axis_name: str | None,
  *,
  initial_targets: Callable[[types.Tree], types.Tree],
  update_targets: Callable[[base.AgentState], base.AgentState],
  **functions: Any,
) -> base.Agent:
  """Makes an agent from its loss; see also `base.Config.make`.

  Args:
    config: hyper-parameters.
    model: model whose statistics of observations are those of the agent.
    loss_share: loss of a batch of windows.
    init: returns initial variables.
    horizon: see `base.Config.make`.
    axis_name: see `base.Config.make`.
    initial_targets: maps parameters to the initial target parameters.
    update_targets: updates the target parameters after each update.
    **functions: other functions of the agent, see `base.Agent`.
  """
  windows, spec = config.windows, model.spec
  if horizon is not None:
    horizon = horizon.with_windows(windows.needs.learned_steps)
  optimizer = optimizers.Optimizer.make(config, horizon)
  first, start = models.beginnings(config, optimizer, init, initial_targets)

  def gradients(
    state: base.AgentState, rng_key: jax.Array, batch: types.Tree
  ) -> tuple[base.Gradients, types.LossOutput]:
    batch = windows.sample(batch)
    share = functools.partial(loss_share, state, rng_key, batch)
    grads, (metrics, priorities) = jax.grad(share, has_aux=True)(state.params)
    grads, metrics = losses.sum_over_cores((grads, metrics), axis_name)
    weight = metrics.pop("weight")
    metrics |= optimizer.measure(state, grads)
    moments = model.moments(state.statistics, batch.unroll.inputs, axis_name)
    output = types.LossOutput(weight, metrics, priorities)
    return base.Gradients(grads, moments), output

  def apply(
    state: base.AgentState, gradients: base.Gradients
  ) -> base.AgentState:
    state = models.apply(optimizer, state, gradients)
    return update_targets(state)

  return base.Agent(
    init=first,
    gradients=gradients,
    apply=apply,
    update=base.composed_update(gradients, apply),
    needs=dataclasses.replace(windows.needs, unread=tuple(spec.hidden)),
    start=start,
    **functions,
  )


def update_targets(
  config: Config,
  state: base.AgentState,
  groups: Sequence[str] | None = None,
) -> base.AgentState:
  """Updates the target parameters; call it after each update.

      target = target + target_rate (params - target)

  every `target_period` updates. Lillicrap et al. 2016,
  https://arxiv.org/abs/1509.02971, section 3; with a rate of 1, Mnih et al.
  2015, https://doi.org/10.1038/nature14236.

  The target parameters are those of some `groups` of the parameters, or of all.
  """
  params = state.params
  if groups is not None:
    params = {key: params[key] for key in groups}
  if config.target_rate < 1:
    params = optax.incremental_update(
      params, state.target_params, config.target_rate
    )
  target_params = optax.periodic_update(
    params, state.target_params, state.updates, config.target_period
  )
  return dataclasses.replace(state, target_params=target_params)


def _percentiles(
  values: jax.Array, weight: jax.Array, shares: Sequence[float]
) -> jax.Array:
  """Returns percentiles of values with positive weight; 0 if there are none."""
  kept = jnp.ravel(weight > 0)
  # Values of weight 0 are sorted to the end.
  ordered = jnp.sort(jnp.where(kept, jnp.ravel(values), jnp.inf))
  count = jnp.sum(kept)
  place = jnp.int32(jnp.float32(shares) * jnp.maximum(count - 1, 0))
  return jnp.where(count > 0, ordered[place], 0.0)
