"""Agents with Q-values: everything but the loss."""

import dataclasses
import functools
from typing import NamedTuple, Protocol

import dm_env
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from seedx import distributions, losses, networks, types
from seedx.agents import (
  base,
  epsilon_greedy,
  models,
  optimizers,
  replay_windows,
)


@dataclasses.dataclass(frozen=True)
class Config(replay_windows.Config):
  """Hyper-parameters that agents with Q-values add to those of windows.

  Attributes:
    double: double Q-learning, where the target network evaluates the action
      that the online network chooses.
    dueling: dueling network, with separate streams for value and advantage,
      each with a hidden layer of the last size in `hidden_sizes`, if any.
    epsilon_end: final epsilon, the probability of a random action.
    epsilon_steps: env steps over which epsilon decays linearly from 1, from the
      first update on; 0 for no decay. In a run of at least as many env steps,
      epsilon reaches its final value.
    epsilon_ladder: separate final epsilon for each environment instead of
      `epsilon_end`, from 0.4 down to 0.4 ** 8 (0.01 for a single environment).
  """

  double: bool = True
  dueling: bool = False
  epsilon_end: float = types.setting(
    0.01, changes="run_time", low=0.0, high=1.0
  )
  epsilon_steps: int = types.setting(50_000, low=0)
  epsilon_ladder: bool = False

  @property
  def stream_size(self) -> int:
    """Units of each hidden layer of the dueling network; 0 for no layer."""
    return self.hidden_sizes[-1] if self.hidden_sizes else 0


class Acting(NamedTuple):
  """The acting parameters.

  Attributes:
    variables: variables of the model.
    epsilon: `[]`, current epsilon; an environment whose `Inputs.exploration` is
      larger uses its exploration instead.
    discount: `[]`, gamma, for the initial priorities of windows.
  """

  variables: models.Variables
  epsilon: jax.Array
  discount: jax.Array


class NoisyCoreState(NamedTuple):
  """The core state of an agent with noisy layers.

  Attributes:
    network: core state of the network.
    seed: `[B]` uint32, seed of the noise, which lasts for an episode.
  """

  network: types.Tree
  seed: jax.Array


class Extras(NamedTuple):
  """The extras of `types.AgentOutput`, from which priorities are computed.

  Attributes:
    outputs: `[B, ...]`, the head's outputs.
  """

  outputs: types.Tree


class Evaluation(NamedTuple):
  """A batch of streams, evaluated with the learned and the target parameters.

  Attributes:
    outputs: `[T + 1, B, ...]`, the head's outputs with the learned parameters.
      Q-values of illegal actions are far below all others.
    target_outputs: `[T + 1, B, ...]`, outputs with the target parameters.
    action: `[T, B]` int32, the actions taken.
    step_type: `[T + 1, B]` int32.
    reward: `[T + 1, B]`, scaled and clipped.
    discount: `[T + 1, B]`, the environment's discount times gamma.
  """

  outputs: types.Tree
  target_outputs: types.Tree
  action: jax.Array
  step_type: jax.Array
  reward: jax.Array
  discount: jax.Array


class Loss(Protocol):
  """The loss of an agent with Q-values."""

  def __call__(self, evaluation: Evaluation) -> losses.QLearningLoss:
    """Returns per-step losses `[T, B]`, without importance weights.

    Only `evaluation.outputs` has a gradient.
    """


def make(
  spec: types.EnvironmentSpec,
  config: Config,
  loss: Loss,
  axis_name: str | None = None,
  horizon: base.Horizon | None = None,
  *,
  head: nn.Module | None = None,
  noisy: bool = False,
  bootstraps: bool = False,
) -> base.Agent:
  """Makes an agent from its loss; see also `base.Config.make`.

  `head` is a module from features `[T, B, F]` to Q-values `[T, B, A]`, or to a
  NamedTuple with `q_values`; None for `networks.QHead`. A head is `noisy` if it
  has noisy layers, whose noise lasts for an episode in acting, and for a window
  in learning.

  A loss `bootstraps` if it needs only two steps of an n-step return: the first
  one, and the one to bootstrap from. Then, without a memory, a window with one
  return becomes one transition (`losses.n_step_bootstraps`), and only these two
  steps are evaluated.

  Raises:
    types.ConfigError: the actions are not discrete, or the environment is
      self-play.
  """
  epsilon_greedy.check_discrete(spec)
  base.check_one_player(spec)
  windows = config.windows
  if horizon is not None:
    horizon = horizon.with_windows(windows.needs.learned_steps)
  model = models.Model.make(spec, config, head or q_head(spec, config))
  q_network = _QNetwork(model, loss, axis_name, windows, noisy, bootstraps)
  optimizer = optimizers.Optimizer.make(config, horizon)
  decay_updates = epsilon_greedy.decay_updates(config.epsilon_steps, horizon)

  init, start = models.beginnings(
    config, optimizer, model.init, lambda params: params
  )

  def acting(state: base.AgentState) -> Acting:
    variables = models.Variables(state.params, state.statistics)
    epsilon = _epsilon(config, state, decay_updates)
    return Acting(variables, epsilon, state.hyperparameters["discount"])

  def gradients(
    state: base.AgentState, rng_key: jax.Array, batch: types.Tree
  ) -> tuple[base.Gradients, types.LossOutput]:
    batch = windows.sample(batch)
    grads, output = q_network.differentiate(state, rng_key, batch)
    output.metrics.update(
      optimizer.measure(state, grads),
      epsilon=_epsilon(config, state, decay_updates),
    )
    moments = model.moments(state.statistics, batch.unroll.inputs, axis_name)
    return base.Gradients(grads, moments), output

  apply = functools.partial(_apply, config, optimizer)
  return base.Agent(
    init=init,
    acting=acting,
    initial_core_state=q_network.initial_core_state,
    step=functools.partial(_step, q_network, greedy=False),
    greedy=functools.partial(_step, q_network, greedy=True),
    gradients=gradients,
    apply=apply,
    update=base.composed_update(gradients, apply),
    needs=dataclasses.replace(windows.needs, unread=tuple(spec.hidden)),
    exploration=functools.partial(exploration, config),
    start=start,
    priorities=q_network.priorities if windows.replayed else None,
  )


def q_head(
  spec: types.EnvironmentSpec,
  config: Config,
  noise_scale: float = 0.0,
  parts: int = 0,
) -> networks.QHead:
  """Returns the head of an environment's Q-values; see `networks.QHead`."""
  return networks.QHead(
    int(spec.action.num_values),
    config.dueling,
    config.stream_size,
    jnp.dtype(config.compute_dtype),
    noise_scale,
    parts,
  )


def exploration(config: Config, num_envs: int) -> np.ndarray:
  """Returns the minimum epsilon of each environment, `[num_envs]` float32.

  Horgan et al. 2018, https://arxiv.org/abs/1803.00933, section 4.1.
  """
  if not config.epsilon_ladder:
    return np.zeros(num_envs, np.float32)
  if num_envs == 1:
    return np.array([0.01], np.float32)
  rank = np.arange(num_envs) / (num_envs - 1)
  return (0.4 ** (1 + 7 * rank)).astype(np.float32)


def _epsilon(
  config: Config, state: base.AgentState, decay_updates: float
) -> jax.Array:
  end = state.hyperparameters["epsilon_end"]
  if config.epsilon_ladder:
    end = jnp.zeros_like(end)
  return epsilon_greedy.epsilon(state, end, decay_updates)


def _step(
  q_network: "_QNetwork",
  acting: Acting,
  rng_key: jax.Array,
  inputs: types.Inputs,
  core_state: types.Tree,
  *,
  greedy: bool,
) -> tuple[types.AgentOutput, types.Tree]:
  explore_key, action_key, noise_key = jax.random.split(rng_key, 3)
  if q_network.noisy and not greedy:
    output = _noisy_step(
      q_network.model, acting.variables, noise_key, inputs, core_state
    )
  else:
    stream = jax.tree.map(lambda x: x[None], inputs)
    output = q_network.model.unroll(
      acting.variables, stream, q_network.network_state(core_state)
    )
    if q_network.noisy:
      core_state = core_state._replace(network=output.core_state)
      output = output._replace(core_state=core_state)
  outputs = jax.tree.map(lambda x: x[0], _legal(output))
  q_values = _q_values(outputs)
  if greedy:
    action = jnp.argmax(q_values, axis=-1)
  else:
    mask = None if output.action_mask is None else output.action_mask[0]
    epsilon = jnp.maximum(acting.epsilon, inputs.exploration)
    action = epsilon_greedy.explore(
      explore_key, action_key, q_values, mask, epsilon
    )
  action = action.astype(q_network.model.spec.action.dtype)
  extras = Extras(outputs) if q_network.windows.replayed else ()
  return types.AgentOutput(action, extras), output.core_state


def _noisy_step(
  q_model: models.Model,
  variables: models.Variables,
  rng_key: jax.Array,
  inputs: types.Inputs,
  core_state: NoisyCoreState,
) -> models.Output:
  """Returns the outputs of a step, each row with the noise of its episode."""
  first = inputs.timestep.step_type == int(dm_env.StepType.FIRST)
  new_seed = jax.random.bits(rng_key, first.shape)
  seed = jnp.where(first, new_seed, core_state.seed)

  def row(
    inputs: types.Inputs, core_state: types.Tree, seed: jax.Array
  ) -> models.Output:
    stream = jax.tree.map(lambda x: x[None, None], inputs)
    core_state = jax.tree.map(lambda x: x[None], core_state)
    key = jax.random.key(seed)
    head, mask, core_state = q_model.unroll(variables, stream, core_state, key)
    head, mask = jax.tree.map(lambda x: x[:, 0], (head, mask))
    core_state = jax.tree.map(lambda x: x[0], core_state)
    return models.Output(head, mask, core_state)

  axes: types.Tree = models.Output(1, None, 0)
  if q_model.spec.action_mask is not None:
    axes = axes._replace(action_mask=1)
  output = jax.vmap(row, out_axes=axes)(inputs, core_state.network, seed)
  return output._replace(core_state=NoisyCoreState(output.core_state, seed))


@dataclasses.dataclass(frozen=True)
class _QNetwork:
  model: models.Model
  loss: Loss
  axis_name: str | None
  windows: replay_windows.Windows
  noisy: bool
  bootstraps: bool

  def initial_core_state(self, batch_size: int) -> types.Tree:
    core_state = self.model.initial_core_state(batch_size)
    if not self.noisy:
      return core_state
    return NoisyCoreState(core_state, jnp.zeros(batch_size, jnp.uint32))

  def network_state(self, core_state: types.Tree) -> types.Tree:
    """Returns the part of a core state that the network uses, if any."""
    is_noisy = isinstance(core_state, NoisyCoreState)
    return core_state.network if is_noisy else core_state

  def differentiate(
    self, state: base.AgentState, rng_key: jax.Array, batch: types.Sample
  ) -> tuple[types.Tree, types.LossOutput]:
    online_key, target_key = jax.random.split(rng_key)
    discount = state.hyperparameters["discount"]
    steps = self._steps(batch.unroll, discount)
    if self.bootstraps and self.windows.have_one_return(self.model, steps):
      steps = self.windows.one_transition(steps)

    at = None if steps.at is None else steps.at[1:]
    target = jax.lax.stop_gradient(
      self._outputs(state, state.target_params, target_key, batch.unroll, at)
    )
    if at is not None:
      # No loss depends on the target outputs of the first step.
      target = jax.tree.map(lambda x: jnp.concatenate([x, x]), target)

    def loss_share(
      params: types.Tree,
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array | None]]:
      online = self._online_outputs(
        state, params, online_key, batch.unroll, steps.at
      )
      q_taken, per_step = self._losses(online, target, steps)
      shares = self.windows.shares(
        per_step.loss * batch.importance_weight,
        q_taken,
        per_step,
        batch.importance_weight,
        self.axis_name,
      )
      return shares[0]["loss"], shares

    gradients, (metrics, priorities) = jax.grad(loss_share, has_aux=True)(
      state.params
    )
    gradients, metrics = losses.sum_over_cores(
      (gradients, metrics), self.axis_name
    )
    weight = metrics.pop("weight")
    return gradients, types.LossOutput(weight, metrics, priorities)

  def priorities(self, acting: Acting, unroll: types.Unroll) -> jax.Array:
    outputs = self.windows.after_burn_in(unroll.extras.outputs)
    steps = self._steps(unroll, acting.discount)
    _, per_step = self._losses(outputs, outputs, steps)
    return self.windows.priorities(per_step.td_error)

  def _online_outputs(
    self,
    state: base.AgentState,
    params: types.Tree,
    rng_key: jax.Array,
    unroll: types.Unroll,
    at: jax.Array | None,
  ) -> types.Tree:
    if at is None:
      return self._outputs(state, params, rng_key, unroll)
    first = self._outputs(state, params, rng_key, unroll, at[:1])
    # The last output only chooses an action, so it needs no gradient.
    params = jax.lax.stop_gradient(params)
    last = self._outputs(state, params, rng_key, unroll, at[1:])
    return jax.tree.map(lambda *x: jnp.concatenate(x), first, last)

  def _outputs(
    self,
    state: base.AgentState,
    params: types.Tree,
    rng_key: jax.Array,
    unroll: types.Unroll,
    at: jax.Array | None = None,
  ) -> types.Tree:
    """Returns the head's outputs after the burn-in, or only at steps `at`."""
    variables = models.Variables(params, state.statistics)
    inputs, core_state = self.windows.warmed_up(
      self.model,
      variables,
      unroll.inputs,
      self.network_state(unroll.core_state),
    )
    output = self.model.unroll(variables, inputs, core_state, rng_key, at)
    return _legal(output)

  def _steps(
    self, unroll: types.Unroll, discount: jax.Array
  ) -> replay_windows.Steps:
    steps = self.windows.steps(self.model, unroll, discount)
    return steps._replace(action=steps.action.astype(jnp.int32))

  def _losses(
    self,
    outputs: types.Tree,
    target_outputs: types.Tree,
    steps: replay_windows.Steps,
  ) -> tuple[jax.Array, losses.QLearningLoss]:
    """Returns, for the learned steps, the actions' Q-values and the losses."""
    evaluation = Evaluation(outputs, target_outputs, *steps[:-1])
    q_taken = jnp.take_along_axis(
      _q_values(outputs)[:-1], steps.action[..., None], axis=-1
    )
    return self.windows.learned((q_taken[..., 0], self.loss(evaluation)), steps)


def _apply(
  config: Config,
  optimizer: optimizers.Optimizer,
  state: base.AgentState,
  gradients: base.Gradients,
) -> base.AgentState:
  state = models.apply(optimizer, state, gradients)
  return replay_windows.update_targets(config, state)


def _legal(output: models.Output) -> types.Tree:
  """Returns the head's outputs, with illegal actions far below all others."""
  q_values = distributions.only_legal(
    _q_values(output.head), output.action_mask
  )
  if isinstance(output.head, jax.Array):
    return q_values
  return output.head._replace(q_values=q_values)


def _q_values(outputs: types.Tree) -> jax.Array:
  return outputs if isinstance(outputs, jax.Array) else outputs.q_values
