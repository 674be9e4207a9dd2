"""Updates of SAC and TD3 as a researcher would write them for one experiment.

Each is one jitted function whose state is donated: no replay, no sharding, no
metrics and no schedules. They are a baseline for the updates of
`seedx.agents.critics`, with the same losses, sizes and optimizers.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

_SIZES = (256, 256)
_DISCOUNT, _TAU = 0.99, 0.005
_ADAM = optax.adam(3e-4)
Params = Any


class Batch(NamedTuple):
  """Transitions, `[B, ...]` each; `discount` is 0 where an episode ends."""

  observation: jax.Array
  action: jax.Array
  reward: jax.Array
  discount: jax.Array
  next_observation: jax.Array


class State(NamedTuple):
  """The parameters, their targets, Adam's states, a key and a count."""

  params: Params
  targets: Params
  adam: Params
  rng_key: jax.Array
  updates: jax.Array


Update = Callable[[State, Batch], State]


def make(name: str, batch: Batch) -> tuple[State, Update]:
  """Returns a state and the jitted update of "sac" or "td3"."""
  inputs, size = batch.observation.shape[-1], batch.action.shape[-1]
  keys = jax.random.split(jax.random.key(0), 4)
  params: dict[str, Params] = {
    "critic": [_mlp(key, inputs + size, 1) for key in keys[:2]]
  }
  if name == "sac":
    params["actor"] = _mlp(keys[2], inputs, 2 * size)
    params["temperature"] = jnp.float32(0)
    targets, update = {"critic": params["critic"]}, _sac
  else:
    params["actor"] = _mlp(keys[2], inputs, size)
    targets, update = params, _td3
  state = State(
    params=params,
    targets=jax.tree.map(jnp.copy, targets),
    adam={key: _ADAM.init(x) for key, x in params.items()},
    rng_key=keys[3],
    updates=jnp.int32(0),
  )
  return state, jax.jit(update, donate_argnums=0)


def _sac(state: State, batch: Batch) -> State:
  params, size = state.params, batch.action.shape[-1]
  rng_key, target_key, actor_key = jax.random.split(state.rng_key, 3)
  alpha = jnp.exp(params["temperature"])
  action, log_prob = _sampled(
    params["actor"], batch.next_observation, target_key
  )
  q_next = _q(state.targets["critic"], batch.next_observation, action)
  value = jnp.min(q_next, axis=0) - alpha * log_prob

  def actor_loss(actor: Params) -> tuple[jax.Array, jax.Array]:
    action, log_prob = _sampled(actor, batch.observation, actor_key)
    q = jnp.min(_q(params["critic"], batch.observation, action), axis=0)
    return jnp.mean(alpha * log_prob - q), log_prob

  actor, log_prob = jax.grad(actor_loss, has_aux=True)(params["actor"])
  gradients = {
    "critic": _critic_gradient(params["critic"], batch, value),
    "actor": actor,
    "temperature": -alpha * jnp.mean(log_prob - size),
  }
  params, adam = _descended(state, gradients)
  targets = {"critic": params["critic"]}
  targets = optax.incremental_update(targets, state.targets, _TAU)
  return State(params, targets, adam, rng_key, state.updates + 1)


def _td3(state: State, batch: Batch) -> State:
  rng_key, noise_key = jax.random.split(state.rng_key)
  noise = 0.2 * jax.random.normal(noise_key, batch.action.shape)
  action = jnp.tanh(_outputs(state.targets["actor"], batch.next_observation))
  action = jnp.clip(action + jnp.clip(noise, -0.5, 0.5), -1.0, 1.0)
  q_next = _q(state.targets["critic"], batch.next_observation, action)
  critic = _critic_gradient(
    state.params["critic"], batch, jnp.min(q_next, axis=0)
  )

  def actor_loss(actor: Params) -> jax.Array:
    action = jnp.tanh(_outputs(actor, batch.observation))
    first = state.params["critic"][:1]
    return -jnp.mean(_q(first, batch.observation, action))

  def both() -> tuple[Params, Params, Params]:
    actor = jax.grad(actor_loss)(state.params["actor"])
    params, adam = _descended(state, {"critic": critic, "actor": actor})
    targets = optax.incremental_update(params, state.targets, _TAU)
    return params, targets, adam

  def only_critics() -> tuple[Params, Params, Params]:
    params, adam = _descended(state, {"critic": critic})
    return params, state.targets, adam

  is_due = state.updates % 2 == 1
  params, targets, adam = jax.lax.cond(is_due, both, only_critics)
  return State(params, targets, adam, rng_key, state.updates + 1)


def _critic_gradient(
  critic: Params, batch: Batch, next_value: jax.Array
) -> Params:
  target = batch.reward + _DISCOUNT * batch.discount * next_value

  def loss(critic: Params) -> jax.Array:
    errors = _q(critic, batch.observation, batch.action) - target
    return 0.5 * jnp.sum(jnp.mean(jnp.square(errors), axis=1))

  return jax.grad(loss)(critic)


def _descended(state: State, gradients: Params) -> tuple[Params, Params]:
  """Returns parameters and Adam's states after a step of some groups."""
  params, adam = dict(state.params), dict(state.adam)
  for key, gradient in gradients.items():
    steps, adam[key] = _ADAM.update(gradient, adam[key])
    params[key] = optax.apply_updates(params[key], steps)
  return params, adam


def _sampled(
  actor: Params, observation: jax.Array, rng_key: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns actions of a squashed Gaussian, and their log-probabilities."""
  mean, log_scale = jnp.split(_outputs(actor, observation), 2, axis=-1)
  log_scale = jnp.clip(log_scale, -20.0, 2.0)
  noise = jax.random.normal(rng_key, mean.shape)
  before = mean + jnp.exp(log_scale) * noise
  log_prob = jax.scipy.stats.norm.logpdf(noise) - log_scale
  # log(1 - tanh(x)^2), without a difference of nearly equal numbers.
  log_prob -= 2.0 * (jnp.log(2.0) - before - jax.nn.softplus(-2.0 * before))
  return jnp.tanh(before), jnp.sum(log_prob, axis=-1)


def _q(
  critics: Sequence[Params], observation: jax.Array, action: jax.Array
) -> jax.Array:
  """Returns Q-values, `[C, B]`."""
  joined = jnp.concatenate([observation, action], axis=-1)
  return jnp.stack([_outputs(critic, joined)[:, 0] for critic in critics])


def _outputs(params: Params, inputs: jax.Array) -> jax.Array:
  *hidden, last = params
  for layer in hidden:
    inputs = jax.nn.relu(inputs @ layer["kernel"] + layer["bias"])
  return inputs @ last["kernel"] + last["bias"]


@functools.partial(jax.jit, static_argnums=(1, 2))
def _mlp(rng_key: jax.Array, inputs: int, outputs: int) -> Params:
  sizes = (inputs, *_SIZES, outputs)
  init = jax.nn.initializers.lecun_normal()
  return [
    {
      "kernel": init(key, (sizes[i], sizes[i + 1])),
      "bias": jnp.zeros(sizes[i + 1]),
    }
    for i, key in enumerate(jax.random.split(rng_key, len(sizes) - 1))
  ]
