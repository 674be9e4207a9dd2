"""A training loop of one's own: A2C from `seedx.losses` on CartPole.

python examples/own_loop.py
"""

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from seedx import losses
from seedx.envs import functional

NUM_ENVS, LENGTH = 64, 16


class Network(nn.Module):
  @nn.compact
  def __call__(self, observation):  # [..., 4]
    features = nn.tanh(nn.Dense(64)(nn.tanh(nn.Dense(64)(observation))))
    return nn.Dense(2)(features), nn.Dense(1)(features)[..., 0]


def main(updates=1000):
  env, network = functional.make("CartPole-v1"), Network()
  optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2e-3))
  params = network.init(jax.random.key(0), jnp.zeros(4))
  env_keys, time = functional.keys(0, NUM_ENVS), jnp.zeros(NUM_ENVS, jnp.int32)

  def act(carry, key):
    params, state, seen, time = carry
    action = jax.random.categorical(
      key, network.apply(params, seen.observation)[0]
    )
    state, following = functional.step(env, state, action, env_keys, time)
    return (params, state, following, time + 1), (seen, action)

  def loss(params, seen, action):
    logits, values = network.apply(params, seen.observation)
    policy = distrax.Categorical(logits[:-1])
    of_policy = policy.log_prob(action), policy.entropy()
    stream = seen.step_type, 0.1 * seen.reward, 0.99 * seen.discount
    of_batch = jax.vmap(losses.a2c, in_axes=1, out_axes=1)
    terms = of_batch(values, *of_policy, *stream)
    total = terms.policy_gradient + 0.5 * terms.value + 0.01 * terms.entropy
    return total.sum() / terms.weight.sum()

  def update(carry, key):
    params, optimizer_state, *acting = carry
    keys = jax.random.split(key, LENGTH)
    (_, *acting), (seen, action) = jax.lax.scan(act, (params, *acting), keys)
    seen = jax.tree.map(lambda x, y: jnp.append(x, y[None], 0), seen, acting[1])
    change, optimizer_state = optimizer.update(
      jax.grad(loss)(params, seen, action), optimizer_state
    )
    params = optax.apply_updates(params, change)
    return (params, optimizer_state, *acting), (seen.step_type[1:] == 2).sum()

  state = functional.init(env, env_keys)
  first = functional.step(env, state, time, env_keys, time)
  carry = params, optimizer.init(params), *first, time + 1
  keys = jax.random.split(jax.random.key(1), updates)
  ends = jax.jit(lambda *x: jax.lax.scan(update, *x))(carry, keys)[1][-100:]
  return NUM_ENVS * LENGTH * len(ends) / max(int(ends.sum()), 1)


if __name__ == "__main__":
  print("env steps per episode in the last 100 updates:", main())
