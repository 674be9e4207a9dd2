"""Evolution on the devices: members, their environments and the update.

    on each core:  members <-> environments -- returns --> update
                      ^------------ centre <-----------------'

Environments are JAX functions, see `envs.functional`. Each core plays an
episode of each member of its pairs in one program, and the update is that of
the pipeline `evolution`. Both members of a pair have the same random numbers.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import tree
from jax.sharding import PartitionSpec

from seedx import envs, losses, sharding
from seedx.acting import perturbed
from seedx.agents import acting_step, base, evolution
from seedx.envs import env_specs, functional
from seedx.pipelines.evolution import training
from seedx.runtime import process

_LAST = int(dm_env.StepType.LAST)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(training.Options):
  """The options of an evolution run on devices.

  Attributes:
    env: the environment, made of JAX functions.
    population: the members.
  """

  env: envs.Config = envs.Config("seedx:CartPole-v1")
  population: perturbed.Population = perturbed.Population(pairs=256)

  def learn(self, context: process.Context) -> process.Process:
    """Returns the only process: programs that play and update."""
    centre = training.Centre(self, context)
    mesh = sharding.mesh(centre.learning.cores)
    one, each = sharding.REPLICATED, PartitionSpec(sharding.CORES)
    program = sharding.per_core(
      episodes(self.agent.make(centre.spec), self),
      mesh,
      (one, each),
      (each, each, one),
    )

    def play(
      state: base.AgentState, version: int, pair: np.ndarray
    ) -> list[evolution.Fitness]:
      played = program(sharding.replicate(jax.device_get(state), mesh), pair)
      fitness = np.int32(version), pair, *jax.device_get(played)
      return [evolution.Fitness(*fitness)]

    return centre.process(context.seeds(self.seed), play)


def episodes(
  agent: base.Agent, config: Config
) -> Callable[[base.AgentState, jax.Array], Any]:
  """Returns a function that plays the episodes of a core's members.

  The function maps the centre's state and the pairs `[P]` to returns and
  lengths `[P, 2]`, and the totals of all cores.

  Raises:
    types.ConfigError: the environment is not made of JAX functions.
  """
  environment, spec = functional.make(config.env), envs.spec(config.env)
  agent, cap = acting_step.per_row(agent), config.population.max_episode_steps

  def play(state: base.AgentState, pair: jax.Array) -> Any:
    acting, size = evolution.members(state, pair), 2 * len(pair)
    keys = jax.vmap(jax.random.key)(jnp.repeat(pair, 2))
    zeros, statistics = jnp.zeros(size), state.statistics

    def step(carry: Any) -> Any:
      env, member, totals, alive, returns, lengths, time = carry
      times = jnp.full(size, time)
      env, timestep = functional.step(
        environment, env, member.action, keys, times
      )
      observation = tree.map_structure(
        env_specs.seen, spec.observation, timestep.observation
      )
      timestep = timestep._replace(observation=observation)
      returns += jnp.where(alive, timestep.reward, 0.0)
      lengths += alive & (time > 0)  # The first step is a reset.
      alive &= (timestep.step_type != _LAST) & (time < cap)
      totals = evolution.count_observations(
        spec, statistics, totals, observation, alive
      )
      member = acting_step.take(
        agent, acting, jax.random.key(0), timestep, member, zeros
      ).acting_state
      return env, member, totals, alive, returns, lengths, time + 1

    _, _, totals, _, returns, lengths, _ = jax.lax.while_loop(
      lambda carry: jnp.any(carry[3]),
      step,
      (
        functional.init(environment, keys),
        acting_step.initial_state(agent, spec, size),
        evolution.no_totals(statistics),
        jnp.ones(size, bool),
        zeros,
        jnp.zeros(size, jnp.int32),
        jnp.int32(0),
      ),
    )
    totals = losses.sum_over_cores(totals, sharding.CORES)
    return returns.reshape(-1, 2), lengths.reshape(-1, 2), totals

  return play
