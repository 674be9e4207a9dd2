"""QT-Opt: Q-learning of continuous actions without an actor.

The policy is the maximum of Q over actions, by the cross-entropy method. A
Q-value is a sigmoid between two bounds of the return, and its loss a
cross-entropy. The targets are the smaller of two lagged networks' values.

Kalashnikov et al. 2018, "QT-Opt: Scalable Deep Reinforcement Learning for
Vision-Based Robotic Manipulation", https://arxiv.org/abs/1806.10293.
"""

import dataclasses
import functools
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from seedx import losses, replay, types
from seedx.agents import action_vectors, base, cem, models, replay_windows

# The replay for training in one process.
REPLAY = replay.Config(
  replay_min_steps=1_000, replay_batch_size=128, replay_ratio=128.0
)


@dataclasses.dataclass(frozen=True)
class Config(replay_windows.Config):
  """Hyper-parameters that QT-Opt adds to those of windows.

  Attributes:
    target_lag: updates between two copies of the averaged network, which is
      the first lagged one; the second is the copy before the last, so its age
      is once to twice this number.
    value_min: smallest discounted return.
    value_max: largest discounted return.
    noise_scale: standard deviation of the noise of actions, which are between
      -1 and 1.
    cem_iterations: iterations of the cross-entropy method.
    cem_samples: samples of each iteration.
    cem_elites: best samples that are fitted in each iteration.
  """

  learning_rate: float = 1e-3
  learning_rate_end: float = 1.0
  adam_epsilon: float = 1e-8
  max_gradient_norm: float = 0.0
  activation: Literal["tanh", "relu"] = "relu"
  n_step: int = 1
  target_period: int = 1
  target_rate: float = 0.01
  target_lag: int = types.setting(100, low=1, high=2**31 - 1)
  value_min: float = types.setting(0.0, low=-types.MAX_VALUE)
  value_max: float = types.setting(1.0, low=-types.MAX_VALUE)
  noise_scale: float = types.setting(0.1, changes="run_time", low=0.0, high=1e3)
  cem_iterations: int = types.setting(2, low=1, high=100)
  cem_samples: int = types.setting(64, low=2, high=2**16)
  cem_elites: int = types.setting(6, low=2, high=2**16)

  def __post_init__(self) -> None:
    super().__post_init__()
    types.check_range("cem_elites", self.cem_elites, 2, self.cem_samples)
    if self.value_min >= self.value_max or self.stack_frames > 1:
      raise types.ConfigError(
        "expected value_min below value_max, and stack_frames 1, found"
        f" {self.value_min:g}, {self.value_max:g} and {self.stack_frames}"
      )

  def for_images(self) -> Self:
    """Returns the same config; not measured."""
    return self

  def for_small(self) -> Self:
    """Returns the same config, because bounds of returns are not scaled."""
    return self

  def make(
    self,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """Makes the agent for an environment; see `base.Config`."""
    base.check_one_player(spec)
    q_function = _QFunction.make(spec, self, axis_name)
    return replay_windows.make(
      self,
      q_function.model,
      q_function.loss_share,
      q_function.init,
      horizon,
      axis_name,
      initial_targets=lambda params: _Lagged(params, params, params),
      update_targets=functools.partial(_update_targets, self),
      acting=lambda state: Acting(
        models.Variables(state.params, state.statistics),
        state.hyperparameters["noise_scale"],
        state.updates,
      ),
      initial_core_state=q_function.model.initial_core_state,
      step=functools.partial(q_function.step, greedy=False),
      greedy=functools.partial(q_function.step, greedy=True),
      targets=q_function.targets,
      label=q_function.label,
    )


class Acting(NamedTuple):
  """The acting parameters.

  Attributes:
    variables: variables of the network.
    noise_scale: `[]`, see `Config`.
    updates: `[]` int32, number of updates so far.
  """

  variables: models.Variables
  noise_scale: jax.Array
  updates: jax.Array


class _Lagged(NamedTuple):
  """The target parameters: first and second network, and the next second."""

  first: types.Tree
  second: types.Tree
  copy: types.Tree


@dataclasses.dataclass(frozen=True)
class _QFunction:
  model: models.Model
  space: action_vectors.Box
  config: Config
  axis_name: str | None

  @classmethod
  def make(
    cls, spec: types.EnvironmentSpec, config: Config, axis_name: str | None
  ) -> Self:
    space = action_vectors.Box.of(spec)
    model = action_vectors.critics(spec, config, space)
    return cls(model, space, config, axis_name)

  def init(self, rng_key: jax.Array) -> models.Variables:
    return action_vectors.init_critics(self.model, self.space, rng_key)

  def logits(
    self, variables: models.Variables, inputs: types.Inputs, action: jax.Array
  ) -> jax.Array:
    """Returns `[T, B]` for inputs `[T, B, ...]` and actions `[T, B, A]`."""
    start = self.model.initial_core_state(action.shape[1])
    output = self.model.unroll(variables, inputs, start, action=action)
    return output.head[..., 0]

  def value(self, logits: jax.Array) -> jax.Array:
    low, high = self.config.value_min, self.config.value_max
    return low + (high - low) * jax.nn.sigmoid(logits)

  def best(
    self,
    variables: models.Variables,
    rng_key: jax.Array,
    inputs: types.Inputs,
  ) -> jax.Array:
    """Returns the actions `[T, B, A]` with about the largest Q-values."""
    # The features of a step are computed once for all of its samples.
    each = jax.vmap(functools.partial(self.logits, variables, inputs))
    shape = (*inputs.timestep.reward.shape, self.space.size)
    return cem.maximize(
      each,
      rng_key,
      shape,
      iterations=self.config.cem_iterations,
      samples=self.config.cem_samples,
      elites=self.config.cem_elites,
    )

  def step(
    self,
    acting: Acting,
    rng_key: jax.Array,
    inputs: types.Inputs,
    core_state: types.Tree,
    *,
    greedy: bool,
  ) -> tuple[types.AgentOutput, types.Tree]:
    cem_key, noise_key, random_key = jax.random.split(rng_key, 3)
    if greedy:  # The same samples, whatever the key.
      cem_key = jax.random.key(0)
    stream = jax.tree.map(lambda x: x[None], inputs)
    action = self.best(acting.variables, cem_key, stream)[0]
    if not greedy:
      noise = jax.random.normal(noise_key, action.shape)
      action = jnp.clip(action + acting.noise_scale * noise, -1.0, 1.0)
      uniform = jax.random.uniform(
        random_key, action.shape, minval=-1.0, maxval=1.0
      )
      action = jnp.where(acting.updates == 0, uniform, action)
    scaled = self.space.scaled(action).astype(self.model.spec.action.dtype)
    return types.AgentOutput(scaled, ()), core_state

  def targets(self, state: base.AgentState) -> base.Targets:
    lagged, lag = state.target_params, self.config.target_lag
    first, second = (
      models.Variables(x, state.statistics)
      for x in (lagged.first, lagged.second)
    )
    values = first, second, state.hyperparameters["discount"]
    copied = jnp.maximum(0, (state.updates // lag - 1) * lag)
    return base.Targets(copied, values)

  def label(
    self, targets: base.Targets, rng_key: jax.Array, batch: types.Sample
  ) -> jax.Array:
    """Returns the targets `[L, B]` of a batch; the last one is 0."""
    first, second, discount = targets.values
    inputs = batch.unroll.inputs
    steps = self.config.windows.steps(self.model, batch.unroll, discount)
    later = jax.tree.map(lambda x: x[1:], inputs)
    action = self.best(first, rng_key, later)
    value = self.value(
      jnp.minimum(
        self.logits(first, later, action),
        self.logits(second, later, action),
      )
    )
    # No return bootstraps from the first step.
    value = jnp.concatenate([jnp.zeros_like(value[:1]), value])
    returns = jax.vmap(
      functools.partial(losses.n_step_returns, n=self.config.n_step),
      in_axes=1,
      out_axes=1,
    )(value, steps.step_type, steps.reward, steps.discount)
    return jnp.concatenate([returns, jnp.zeros_like(returns[:1])])

  def loss_share(
    self,
    state: base.AgentState,
    rng_key: jax.Array,
    batch: types.Sample,
    params: types.Tree,
  ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array | None]]:
    """See `replay_windows.LossShare`."""
    windows, unroll = self.config.windows, batch.unroll
    label = unroll.extras
    if not isinstance(label, jax.Array):  # No other process has computed it.
      label = self.label(self.targets(state), rng_key, batch)
    label = jax.lax.stop_gradient(label[:-1])
    variables = models.Variables(params, state.statistics)
    discount = state.hyperparameters["discount"]
    steps = windows.steps(self.model, unroll, discount)
    now = jax.tree.map(lambda x: x[:-1], unroll.inputs)
    logits = self.logits(variables, now, self.space.normalized(steps.action))
    low, high = self.config.value_min, self.config.value_max
    share = jnp.clip((label - low) / (high - low), 0.0, 1.0)
    weight = losses.weights(steps.step_type)
    value = self.value(logits)
    per_step = losses.QLearningLoss(
      weight * optax.sigmoid_binary_cross_entropy(logits, share),
      weight * jax.lax.stop_gradient(jnp.abs(label - value)),
      weight,
    )
    value, per_step = windows.learned((value, per_step), steps)
    measured, priorities = windows.shares(
      per_step.loss * batch.importance_weight,
      value,
      per_step,
      batch.importance_weight,
      self.axis_name,
    )
    return measured["loss"], (measured, priorities)


def _update_targets(config: Config, state: base.AgentState) -> base.AgentState:
  lagged: _Lagged = state.target_params
  first = optax.incremental_update(
    state.params, lagged.first, config.target_rate
  )
  is_due = state.updates % config.target_lag == 0
  second, copy = (
    jax.tree.map(lambda x, y: jnp.where(is_due, x, y), new, old)
    for new, old in ((lagged.copy, lagged.second), (first, lagged.copy))
  )
  return dataclasses.replace(state, target_params=_Lagged(first, second, copy))
