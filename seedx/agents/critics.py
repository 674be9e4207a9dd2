"""Agents with a critic of (state, action): everything but their policy.

Actor and critics are separate networks, so that the actor's gradient changes no
critic, and a critic's gradient not the actor. A policy's actions are vectors
between -1 and 1, see `action_vectors`.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp

from seedx import losses, networks, replay, types
from seedx.agents import (
  action_vectors,
  base,
  models,
  optimizers,
  policies,
  replay_windows,
)

# The replay for training in one process: one update for each env step.
REPLAY = replay.Config(
  replay_min_steps=1_000, replay_batch_size=256, replay_ratio=256.0
)


@dataclasses.dataclass(frozen=True)
class Config(replay_windows.Config):
  """Hyper-parameters that agents with critics add to those of windows.

  Attributes:
    critic_learning_rate: initial learning rate of the critics; `learning_rate`
      is the actor's.
    num_critics: number of critics, whose smallest estimate is the target; with
      two, clipped double Q-learning.
    noise_correlation: correlation of the noise of an environment's consecutive
      steps; 0 for independent noise. Larger values explore further.
    random_start: uniformly random actions until the first update, that is for
      `replay_min_steps` env steps, also in a run with `init_from`.
  """

  learning_rate: float = 3e-4
  learning_rate_end: float = 1.0
  adam_epsilon: float = 1e-8
  max_gradient_norm: float = 0.0
  hidden_sizes: tuple[int, ...] = (256, 256)
  activation: Literal["tanh", "relu"] = "relu"
  n_step: int = 1
  target_period: int = 1
  target_rate: float = 0.005
  critic_learning_rate: float = types.setting(
    1e-3, changes="run_time", low=0.0, high=1e3
  )
  num_critics: int = types.setting(2, low=1, high=64)
  noise_correlation: float = types.setting(0.0, low=0.0, high=0.9999)
  random_start: bool = True

  def for_images(self) -> Self:
    """Returns a copy for images, which are stacked; not measured."""
    return dataclasses.replace(self, stack_frames=3)

  def for_small(self) -> Self:
    """Returns the same config, which was measured with unscaled rewards."""
    return self


class Acting(NamedTuple):
  """The acting parameters.

  Attributes:
    variables: parameters of all groups, and statistics of observations.
    hyperparameters: hyper-parameters of the `AgentState`.
    updates: `[]` int32, number of updates so far.
  """

  variables: models.Variables
  hyperparameters: Mapping[str, jax.Array]
  updates: jax.Array


class CoreState(NamedTuple):
  """The core state.

  Attributes:
    network: core state of actor and critics, which stack the same frames.
    noise: `[B, A]` float32, noise of the step before.
  """

  network: types.Tree
  noise: jax.Array


class Extras(NamedTuple):
  """The extras of `types.AgentOutput`, from which priorities are computed.

  Attributes:
    outputs: `[B, C, ...]`, outputs of the critics for the action taken.
    policy_outputs: `[B, C, ...]`, outputs for the policy's proposal.
    entropy_bonus: `[B]`, see `policies.Proposal`.
  """

  outputs: jax.Array
  policy_outputs: jax.Array
  entropy_bonus: jax.Array


def make(
  spec: types.EnvironmentSpec,
  config: Config,
  policy: policies.Policy,
  space: action_vectors.Space,
  axis_name: str | None = None,
  horizon: base.Horizon | None = None,
  *,
  atoms: Sequence[float] = (),
  first_guides: bool = False,
) -> base.Agent:
  """Makes an agent from its policy; see also `base.Config.make`.

  With `atoms`, the critics return logits of a distribution over them. With
  `first_guides`, the `q_function` of `Policy.losses` is that of the first
  critic alone, with a C of 1.

  Raises:
    types.ConfigError: the environment has an action mask, or is self-play.
  """
  _check(spec)
  windows = config.windows
  optimizer = _optimizer(config, policy, horizon)
  pair = _Pair.make(spec, config, policy, space, axis_name, atoms, first_guides)

  init, start = models.beginnings(
    config,
    optimizer,
    pair.init,
    lambda params: {key: params[key] for key in policy.target_groups},
  )

  def acting(state: base.AgentState) -> Acting:
    params = state.params
    if not windows.replayed:  # Only priorities need the critics.
      params = {key: x for key, x in params.items() if key != "critic"}
    return Acting(
      models.Variables(params, state.statistics),
      state.hyperparameters,
      state.updates,
    )

  def gradients(
    state: base.AgentState, rng_key: jax.Array, batch: types.Tree
  ) -> tuple[base.Gradients, types.LossOutput]:
    batch = windows.sample(batch)
    grads, output = pair.differentiate(state, rng_key, batch)
    output.metrics.update(optimizer.measure(state, grads))
    inputs = batch.unroll.inputs
    moments = pair.actor.moments(state.statistics, inputs, axis_name)
    return base.Gradients(grads, moments), output

  def apply(
    state: base.AgentState, gradients: base.Gradients
  ) -> base.AgentState:
    state = models.apply(optimizer, state, gradients)
    return replay_windows.update_targets(config, state, policy.target_groups)

  return base.Agent(
    init=init,
    acting=acting,
    initial_core_state=pair.initial_core_state,
    step=functools.partial(pair.step, greedy=False),
    greedy=functools.partial(pair.step, greedy=True),
    gradients=gradients,
    apply=apply,
    update=base.composed_update(gradients, apply),
    needs=dataclasses.replace(windows.needs, unread=tuple(spec.hidden)),
    start=start,
    priorities=pair.priorities if windows.replayed else None,
  )


@dataclasses.dataclass(frozen=True)
class _Pair:
  """The actor and its critics, and the windows that they learn from."""

  actor: models.Model
  critic: models.Model
  guide: models.Model  # The critics that `Policy.losses` evaluates.
  policy: policies.Policy
  space: action_vectors.Space
  windows: replay_windows.Windows
  noise_correlation: float
  random_start: bool
  axis_name: str | None
  atoms: Sequence[float]

  @classmethod
  def make(
    cls,
    spec: types.EnvironmentSpec,
    config: Config,
    policy: policies.Policy,
    space: action_vectors.Space,
    axis_name: str | None,
    atoms: Sequence[float],
    first_guides: bool,
  ) -> Self:
    # Slicing the outputs of all critics would not help: their gradients, which
    # are 0, would be computed. The first critic's parameters keep their names.
    critic, guide = (
      action_vectors.critics(
        spec, config, space, num_critics=number, parts=len(atoms)
      )
      for number in (
        config.num_critics,
        1 if first_guides else config.num_critics,
      )
    )
    return cls(
      actor=models.Model.make(
        spec, config, networks.ActorHead(policy.num_parameters)
      ),
      critic=critic,
      guide=guide,
      policy=policy,
      space=space,
      windows=config.windows,
      noise_correlation=config.noise_correlation,
      random_start=config.random_start,
      axis_name=axis_name,
      atoms=tuple(atoms),
    )

  def init(self, rng_key: jax.Array) -> models.Variables:
    actor_key, critic_key = jax.random.split(rng_key)
    actor = self.actor.init(actor_key)
    critic = action_vectors.init_critics(self.critic, self.space, critic_key)
    params = {"actor": actor.params, "critic": critic.params}
    return actor._replace(params=params | self.policy.others())

  def initial_core_state(self, batch_size: int) -> CoreState:
    noise = jnp.zeros((batch_size, self.space.size), jnp.float32)
    return CoreState(self.actor.initial_core_state(batch_size), noise)

  def step(
    self,
    acting: Acting,
    rng_key: jax.Array,
    inputs: types.Inputs,
    core_state: CoreState,
    *,
    greedy: bool,
  ) -> tuple[types.AgentOutput, CoreState]:
    noise_key, proposal_key = jax.random.split(rng_key)
    view = _View(jax.tree.map(lambda x: x[None], inputs), core_state.network)
    outputs, network = self._act(acting.variables, view)
    if greedy:  # Samples nothing.
      noise = core_state.noise
      proposal_noise = jnp.zeros((1, *noise.shape))
      action = self.policy.greedy(outputs[0])
    else:
      noise = policies.noise(
        noise_key, inputs.timestep, core_state.noise, self.noise_correlation
      )
      proposal_noise = jax.random.normal(proposal_key, (1, *noise.shape))
      action = self.policy.explore(
        outputs[0], noise, inputs.exploration, acting.hyperparameters
      )
      if self.random_start:
        # Uniform at each step, and correlated like the noise.
        uniform = jax.scipy.special.erf(noise / 2.0**0.5)
        action = jnp.where(acting.updates == 0, uniform, action)
    scaled = self.space.scaled(action).astype(self.actor.spec.action.dtype)
    core_state = CoreState(network, noise)
    if not self.windows.replayed:
      return types.AgentOutput(scaled, ()), core_state
    proposal = self.policy.propose(
      acting.variables.params, outputs, proposal_noise
    )
    taken = self.space.normalized(scaled)[None]
    extras = Extras(
      _criticize(self.critic, acting.variables, view, taken)[0],
      _criticize(self.critic, acting.variables, view, proposal.action)[0],
      proposal.entropy_bonus[0],
    )
    return types.AgentOutput(scaled, extras), core_state

  def differentiate(
    self, state: base.AgentState, rng_key: jax.Array, batch: types.Sample
  ) -> tuple[types.Tree, types.LossOutput]:
    target_key, actor_key = jax.random.split(rng_key)
    steps = self._steps(batch.unroll, state.hyperparameters["discount"])
    if self.windows.have_one_return(self.actor, steps):
      steps = self.windows.one_transition(steps)
    now, later = self._views(state, batch.unroll, steps)
    target = self._target(state, target_key, later)
    critic, metrics, priorities = self._critic_gradient(
      state, now, steps, target, batch.importance_weight
    )
    gradients, actor_metrics = self._actor_gradients(
      state, actor_key, now, steps
    )
    gradients, metrics = losses.sum_over_cores(
      (gradients | {"critic": critic}, metrics | actor_metrics), self.axis_name
    )
    weight = metrics.pop("weight")
    return gradients, types.LossOutput(weight, metrics, priorities)

  def priorities(self, acting: Acting, unroll: types.Unroll) -> jax.Array:
    extras = self.windows.after_burn_in(unroll.extras)
    steps = self._steps(unroll, acting.hyperparameters["discount"])
    per_step = self.critic_losses(
      extras.outputs[:-1], extras.policy_outputs, extras.entropy_bonus, steps
    )
    per_step = self.windows.learned(per_step, steps)
    return self.windows.priorities(per_step.td_error)

  def _views(
    self,
    state: base.AgentState,
    unroll: types.Unroll,
    steps: replay_windows.Steps,
  ) -> tuple["_View", "_View"]:
    """Returns views of the learned steps, and of those to bootstrap from."""
    core_state = unroll.core_state
    if isinstance(core_state, CoreState):  # The windows of a replay have none.
      core_state = core_state.network
    inputs, core_state = self.windows.warmed_up(
      self.actor,
      models.Variables(state.params["actor"], state.statistics),
      unroll.inputs,
      core_state,
    )
    if steps.at is not None:
      return (
        _View(inputs, core_state, steps.at[:1]),
        _View(inputs, core_state, steps.at[1:]),
      )
    now = jax.tree.map(lambda x: x[:-1], inputs)
    return _View(now, core_state), _View(inputs, core_state)

  def _target(
    self, state: base.AgentState, rng_key: jax.Array, view: "_View"
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the critics' outputs and the entropy bonus, `[T + 1, B, ...]`."""
    variables = models.Variables(
      state.params | state.target_params, state.statistics
    )
    outputs, _ = self._act(variables, view)
    noise = jax.random.normal(rng_key, (*outputs.shape[:-1], self.space.size))
    proposal = self.policy.propose(
      variables.params, outputs, noise, smooth=True
    )
    target = (
      _criticize(self.critic, variables, view, proposal.action),
      proposal.entropy_bonus,
    )
    if view.at is not None:
      # No return bootstraps from the first of the two steps.
      target = jax.tree.map(lambda x: jnp.concatenate([x, x]), target)
    return jax.lax.stop_gradient(target)

  def _critic_gradient(
    self,
    state: base.AgentState,
    view: "_View",
    steps: replay_windows.Steps,
    target: tuple[jax.Array, jax.Array],
    importance_weight: jax.Array,
  ) -> tuple[types.Tree, dict[str, jax.Array], jax.Array | None]:
    """Returns this core's gradient, its metrics, and the priorities."""

    def loss_share(
      critic: types.Tree,
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array | None]]:
      variables = models.Variables({"critic": critic}, state.statistics)
      outputs = _criticize(self.critic, variables, view, steps.action)
      q_taken = jnp.mean(self.q_values(outputs), axis=-1)
      q_taken, per_step = self.windows.learned(
        (q_taken, self.critic_losses(outputs, *target, steps)), steps
      )
      shares = self.windows.shares(
        per_step.loss * importance_weight,
        q_taken,
        per_step,
        importance_weight,
        self.axis_name,
      )
      return shares[0]["loss"], shares

    gradient, (metrics, priorities) = jax.grad(loss_share, has_aux=True)(
      state.params["critic"]
    )
    return gradient, metrics, priorities

  def _actor_gradients(
    self,
    state: base.AgentState,
    rng_key: jax.Array,
    view: "_View",
    steps: replay_windows.Steps,
  ) -> tuple[types.Tree, dict[str, jax.Array]]:
    """Returns this core's gradients of all groups but the critics, and metrics.

    In an update without a step of the actor, the gradients are 0, and the
    metrics NaN.
    """
    noise = jax.random.normal(
      rng_key, (*steps.action.shape[:2], self.space.size)
    )
    params = jax.lax.stop_gradient(state.params)
    learned = {key: x for key, x in params.items() if key != "critic"}

    def q_function(action: jax.Array) -> jax.Array:
      variables = models.Variables(params, state.statistics)
      outputs = _criticize(self.guide, variables, view, action)
      return self.q_values(outputs)

    def loss_share(
      learned: types.Tree,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
      variables = models.Variables(params | learned, state.statistics)
      outputs, _ = self._act(variables, view)
      proposal = self.policy.propose(variables.params, outputs, noise)
      by_group, diagnostics = self.policy.losses(
        variables.params, proposal, q_function, steps.step_type
      )
      weight = by_group["actor"].weight

      def mean(values: jax.Array) -> jax.Array:
        values = jnp.broadcast_to(values, weight.shape)
        return losses.mean_share(values, weight, self.axis_name)

      shares = {key: mean(x.loss) for key, x in by_group.items()}
      metrics = {f"loss_{key}": x for key, x in shares.items()}
      metrics |= {key: mean(x) for key, x in diagnostics.items()}
      return sum(shares.values(), jnp.float32(0)), metrics

    gradient = jax.grad(loss_share, has_aux=True)
    period = self.policy.actor_period
    # Without a replay, another update may apply the gradients (A3C).
    if period == 1 or not self.windows.replayed:
      return gradient(learned)
    nothing, unknown = jax.eval_shape(gradient, learned)
    return jax.lax.cond(
      optimizers.is_due(state.updates, period),
      lambda: gradient(learned),
      lambda: (
        jax.tree.map(jnp.zeros_like, nothing),
        jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), unknown),
      ),
    )

  def critic_losses(
    self,
    outputs: jax.Array,
    target_outputs: jax.Array,
    entropy_bonus: jax.Array,
    steps: replay_windows.Steps,
  ) -> losses.QLearningLoss:
    """Returns the critics' losses `[T, B]`.

    Outputs of the critics are `[T, B, C, ...]` for the actions taken, and `[T +
    1, B, C, ...]` for the policy's; so is the entropy bonus, `[T + 1, B]`.
    """
    n = self.windows.n_step if steps.at is None else 1
    stream = steps.step_type, steps.reward, steps.discount
    arguments = outputs, target_outputs, *stream
    if self.atoms:
      loss = functools.partial(
        losses.categorical_clipped_double_q_learning,
        atoms=jnp.float32(self.atoms),
        n=n,
      )
      return jax.vmap(loss, in_axes=1, out_axes=1)(*arguments)

    return jax.vmap(
      lambda bonus, *stream: losses.clipped_double_q_learning(
        *stream, n=n, entropy_bonus=bonus
      ),
      in_axes=1,
      out_axes=1,
    )(entropy_bonus, *arguments)

  def q_values(self, outputs: jax.Array) -> jax.Array:
    if not self.atoms:
      return outputs
    return jax.nn.softmax(outputs) @ jnp.float32(self.atoms)

  def _steps(
    self, unroll: types.Unroll, discount: jax.Array
  ) -> replay_windows.Steps:
    steps = self.windows.steps(self.actor, unroll, discount)
    return steps._replace(action=self.space.normalized(steps.action))

  def _act(
    self, variables: models.Variables, view: "_View"
  ) -> tuple[jax.Array, types.Tree]:
    output = self.actor.unroll(
      variables._replace(params=variables.params["actor"]),
      view.inputs,
      view.core_state,
      at=view.at,
    )
    return output.head, output.core_state


def _optimizer(
  config: Config, policy: policies.Policy, horizon: base.Horizon | None
) -> optimizers.Optimizer:
  if horizon is not None:
    horizon = horizon.with_windows(config.windows.needs.learned_steps)
  return optimizers.Optimizer.make(
    config,
    horizon,
    rates=policy.rates,
    periods=dict.fromkeys({*policy.rates} - {"critic"}, policy.actor_period),
  )


def _check(spec: types.EnvironmentSpec) -> None:
  base.check_one_player(spec)
  if spec.action_mask is not None:
    raise types.ConfigError(
      "expected an environment without an action mask, which critics of"
      f" (state, action) do not support, found {spec.action_mask!r}; use an"
      " actor-critic agent (PPO, A2C or V-trace)"
    )


class _View(NamedTuple):
  """The steps of a stream at which the networks are evaluated.

  Attributes:
    inputs: `[T, B, ...]`.
    core_state: `[B, ...]`, the networks' core state before the inputs.
    at: `[K, B]` int32, the steps; None for all.
  """

  inputs: types.Inputs
  core_state: types.Tree
  at: jax.Array | None = None


def _criticize(
  critic: models.Model,
  variables: models.Variables,
  view: _View,
  action: jax.Array,
) -> jax.Array:
  """Returns the critics' outputs `[T, B, C, ...]` for actions `[T, B, A]`."""
  return critic.unroll(
    variables._replace(params=variables.params["critic"]),
    view.inputs,
    view.core_state,
    at=view.at,
    action=action,
  ).head
