"""An agent whose batches are not unrolls: a small evolution strategy.

Salimans et al. 2017, https://arxiv.org/abs/1703.03864, with antithetic noise,
on a function instead of an environment.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from seedx import losses, sharding, types
from seedx.agents import base
from seedx.learning import experience, learner

SIGMA, RATE, PAIRS = 0.1, 0.05, 32
GOAL = np.array([1.0, -2.0, 0.5], np.float32)


class Fitness(NamedTuple):
  """Seeds of noise, `[B]`; returns `[B, 2]` with noise added and subtracted."""

  seed: jax.Array
  returns: jax.Array


class Needs(base.Needs):
  """The agent's needs; each pair of returns in a batch counts as a step."""

  @property
  def specs(self):
    return Fitness(*[PartitionSpec(sharding.CORES)] * 2)

  def steps(self, batch):
    return len(batch.seed)

  def lag(self, batch, version):
    return None


def noise(seed):
  return jax.random.normal(jax.random.key(seed), GOAL.shape)


def agent_of():
  def gradients(state, rng_key, batch):
    del rng_key
    better = batch.returns[:, 0] - batch.returns[:, 1]
    steps = jax.vmap(noise)(batch.seed) * better[:, None]
    total, count = losses.sum_over_cores(
      (jnp.sum(steps, axis=0), jnp.float32(len(better))), sharding.CORES
    )
    return base.Gradients(-total / (2 * SIGMA * count)), types.LossOutput(
      count, {"fitness": jnp.float32(0)}
    )

  def apply(state, grads):
    return dataclasses.replace(
      state,
      params=state.params - RATE * grads.params,
      updates=state.updates + 1,
    )

  return base.Agent(
    init=lambda key: base.AgentState(
      jnp.zeros_like(GOAL), (), {}, jnp.int32(0)
    ),
    acting=lambda state: state.params,
    initial_core_state=lambda size: (),
    step=NotImplemented,
    gradients=gradients,
    apply=apply,
    update=base.composed_update(gradients, apply),
    needs=Needs(),
  )


@jax.jit
def returns_of(params, seed):
  """Evaluates both members of each pair."""
  eps = SIGMA * jax.vmap(noise)(seed)
  members = params + jnp.stack([eps, -eps], axis=1)
  return -jnp.sum(jnp.square(members - GOAL), axis=-1)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_learner_trains_an_agent_that_learns_from_pairs(micro_batches):
  params_by_cores = {}
  for cores in (1, 2):
    config = learner.Config(
      learner_devices=tuple(range(cores)), micro_batches=micro_batches
    )
    trainer = learner.Learner(
      agent_of(), config, experience.Once(), jax.random.key(0)
    )
    for update in range(60):
      params, version = trainer.newest()
      assert version == update
      seed = np.arange(PAIRS, dtype=np.uint32) + update * PAIRS
      pairs = Fitness(seed, np.asarray(returns_of(params, seed)))
      trainer.learn_from(
        [
          jax.device_put(
            types.Share(Fitness(*(x[k::cores] for x in pairs))), core
          )
          for k, core in enumerate(trainer.cores)
        ]
      )
      trainer.publish()
    trainer.finish()
    line = trainer.measure()
    assert (line["learner_steps"], line["learned_steps"]) == (60, 60 * PAIRS)
    assert line["policy_lag"] is None and line["fitness"] == 0
    params_by_cores[cores] = np.asarray(trainer.newest()[0])
  np.testing.assert_allclose(params_by_cores[1], GOAL, atol=0.05)
  np.testing.assert_allclose(params_by_cores[1], params_by_cores[2], atol=1e-4)
