"""A training loop of one's own around an agent of seedx, with several rates.

  python examples/rates_at_once.py

Any of `AgentState.hyperparameters` can vary, as the learning rate does here.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from seedx import envs, types
from seedx.agents import acting_step, base, ppo
from seedx.envs import functional

NUM_ENVS, LENGTH = 32, 64
ENV = envs.Config("seedx:CartPole-v1")
RATES = 1e-4, 1e-3, 3e-3, 3e-2


def main(updates=40):
  spec, environment = envs.spec(ENV), functional.make(ENV)
  horizon = base.Horizon.of(updates * NUM_ENVS * LENGTH, NUM_ENVS * LENGTH)
  agent = ppo.Config().for_small().make(spec, None, horizon)
  env_keys, exploration = functional.keys(0, NUM_ENVS), jnp.zeros(NUM_ENVS)
  advance = functools.partial(functional.step, environment)

  def act(state, carry, key):
    env_state, timestep, acting, time = carry
    inputs, core_state, output, acting = acting_step.take(
      agent, agent.acting(state), key, timestep, acting, exploration
    )
    version = jnp.zeros(NUM_ENVS, jnp.int32)
    step = types.Unroll(inputs, *output, version, core_state)
    following = advance(env_state, output.action, env_keys, time)
    return (*following, acting, time + 1), step

  def update(carry, key):
    state, *acting = carry
    keys = jax.random.split(key, LENGTH + 2)
    acting, steps = jax.lax.scan(
      lambda carry, key: act(state, carry, key), tuple(acting), keys[:LENGTH]
    )
    _, last = act(state, acting, keys[-1])  # Its value ends the returns.
    unroll = jax.tree.map(lambda x, y: jnp.append(x, y[None], 0), steps, last)
    core_state = jax.tree.map(lambda x: x[0], unroll.core_state)
    unroll = unroll._replace(core_state=core_state)
    state, _ = agent.update(state, keys[-2], unroll)
    ended = unroll.inputs.timestep.step_type[1:] == 2  # LAST.
    return (state, *acting), ended.sum()

  def train(rate):
    state, time = agent.init(jax.random.key(0)), jnp.zeros(NUM_ENVS, jnp.int32)
    rates = state.hyperparameters | {"learning_rate": rate}
    state = dataclasses.replace(state, hyperparameters=rates)
    env_state = functional.init(environment, env_keys)
    first = advance(env_state, time, env_keys, time)
    acting = acting_step.initial_state(agent, spec, NUM_ENVS)
    keys = jax.random.split(jax.random.key(1), updates)
    return jax.lax.scan(update, (state, *first, acting, time + 1), keys)[1]

  ends = jax.jit(jax.vmap(train))(jnp.array(RATES))[:, -20:]
  steps = NUM_ENVS * LENGTH * ends.shape[1]
  return (steps / jnp.maximum(ends.sum(1), 1)).tolist()


if __name__ == "__main__":
  print("mean lengths of the last episodes with", RATES, "are", main())
