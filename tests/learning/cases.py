"""Learners, agents and unrolls for tests of learning."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from seedx import sharding, types
from seedx.agents import base, models, ppo, vtrace
from seedx.learning import experience, learner
from tests import conftest
from tests.agents.cases import VECTOR

LENGTH, BATCH = 6, 16
SPEC = VECTOR
KEY = jax.random.key(1)


def plain(agent, rate):
  """Returns the agent with plain gradient descent in place of Adam."""

  def apply(state, gradients):
    params = jax.tree.map(
      lambda p, g: p - rate * g, state.params, gradients.params
    )
    return models.count_batch(
      dataclasses.replace(state, params=params), gradients.moments
    )

  update = base.composed_update(agent.gradients, apply)
  return dataclasses.replace(agent, apply=apply, update=update)


@functools.cache
def agent_of():
  """Returns an agent that normalizes observations.

  The metric `first` is a random number of the first core, `second` of the last.
  """
  config = vtrace.Config(
    hidden_sizes=(8,), reward_scale=1.0, normalize_observations=True
  )
  # The rate is large, so that new parameters consist mainly of gradients.
  agent = plain(config.make(SPEC, sharding.CORES), rate=1.0)

  def gradients(state, rng_key, batch):
    grads, output = agent.gradients(state, rng_key, batch)
    noise = jax.lax.all_gather(jax.random.uniform(rng_key), sharding.CORES)
    metrics = output.metrics | {"first": noise[0], "second": noise[-1]}
    return grads, output._replace(metrics=metrics)

  update = base.composed_update(gradients, agent.apply)
  return dataclasses.replace(agent, gradients=gradients, update=update)


def tiny_agent(wrong=lambda: 0.0):
  """Returns an agent whose parameter is 3, less 1 + `wrong()` for each update.

  The agent's update compiles fast, and anew for each learner.
  """

  def gradients(state, rng_key, batch):
    del state, rng_key, batch
    return base.Gradients(jnp.float32(1)), types.LossOutput(jnp.float32(1), {})

  def apply(state, gradients):
    params = state.params - gradients.params - wrong()
    return dataclasses.replace(state, params=params)

  return dataclasses.replace(
    agent_of(),
    init=lambda rng_key: base.AgentState(
      jnp.float32(3), (), {}, jnp.int32(0), jnp.float32(0)
    ),
    acting=lambda state: state.params,
    gradients=gradients,
    apply=apply,
    update=base.composed_update(gradients, apply),
  )


@functools.cache
def unroll_of(seed=0):
  # All micro-batches of all cores have different numbers of resets.
  ends = np.linspace(0.0, 0.9, BATCH) if seed == 0 else np.full(BATCH, 0.3)
  return conftest.random_unroll(agent_of(), SPEC, LENGTH, ends, seed)


def config_of(num_cores=1, micro_batches=1, **inbox):
  return learner.InboxConfig(
    unroll_length=LENGTH - 1,
    learner_devices=tuple(range(num_cores)),
    micro_batches=micro_batches,
    batch_size=BATCH,
    **inbox,
  )


def make(num_cores=1, micro_batches=1, agent=None, rng_key=KEY, **options):
  return learner.Learner(
    agent or agent_of(),
    config_of(num_cores, micro_batches),
    experience.Once(),
    rng_key,
    **options,
  )


@functools.cache
def ppo_agent():
  """Returns an agent that takes several Adam steps in an update."""
  config = ppo.Config(
    hidden_sizes=(8,), normalize_observations=True, epochs=2, minibatches=2
  )
  return config.make(SPEC, sharding.CORES)
