"""Evolution on the devices: members, their environments and the update.

    on each core:  members <-> environments -- returns --> update
                      ^------------ centre <-----------------'

Environments are JAX functions, see `envs.functional`. Each core plays an
episode of each member of its pairs in one program, and the update is that of
the pipeline `evolution`. Both members of a pair have the same random numbers.
"""

import dataclasses
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import tree
from jax.sharding import PartitionSpec

from seedx import envs, sharding, types
from seedx.acting import perturbed
from seedx.agents import base, evolution
from seedx.envs import env_specs, functional
from seedx.learning import learner as learner_lib
from seedx.pipelines.evolution import training
from seedx.runtime import process

_LAST = int(dm_env.StepType.LAST)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.Config):
  """The options of an evolution run on devices, which has one learner host.

  Attributes:
    env: the environment, made of JAX functions.
    pairs: number of pairs in an iteration.
    max_episode_steps: number of env steps after which an episode is cut; its
      return so far counts.
    learner: the devices, which play and compute updates.
  """

  env: envs.Config = envs.Config("seedx:CartPole-v1")
  pairs: int = types.setting(256, low=1, high=2**20)
  max_episode_steps: int = types.setting(100_000, low=1, high=2**31 - 1)
  learner: learner_lib.DevicesConfig = learner_lib.DevicesConfig()

  def __post_init__(self) -> None:
    super().__post_init__()
    types.check_range("hosts", self.learner.hosts, 1, 1)
    training.check_divides(self.learner, self.pairs)

  def learn(self, context: process.Context) -> process.Process:
    """Returns the only process: programs that play and update."""
    population = perturbed.Config(
      pairs=self.pairs, num_workers=0, pairs_per_worker=self.pairs
    )
    centre = training.Centre(self, context, self.learner, population)
    mesh = sharding.mesh(centre.learning.cores)
    one, each = PartitionSpec(), PartitionSpec(sharding.CORES)
    program = sharding.per_core(
      Episodes(self.agent.make(centre.spec), self), mesh, (one, each), each
    )

    def play(
      state: base.AgentState, version: int, pair: np.ndarray
    ) -> perturbed.Results:
      on_cores = sharding.replicate(jax.device_get(state), mesh)
      returns, lengths, totals = jax.device_get(program(on_cores, pair))
      totals = jax.tree.map(lambda x: x.sum(axis=0), totals)
      return perturbed.Results(
        np.int32(version), pair, returns, lengths, totals
      )

    return centre.process(play)


class Episodes:
  """The episodes of a core's members, as a function of the agent's state."""

  def __init__(self, agent: base.Agent, config: Config) -> None:
    """Makes the environment.

    Raises:
      types.ConfigError: it is not made of JAX functions.
    """
    self._agent, self._cap = agent, config.max_episode_steps
    self._environment = functional.make(config.env)
    self._spec = envs.spec(config.env)

  def __call__(self, state: base.AgentState, pair: jax.Array) -> Any:
    """Returns returns and lengths `[P, 2]`, and totals `[1, ...]`."""
    members = evolution.population(self._agent, self._spec, state, pair)
    size = 2 * len(pair)
    keys = jax.vmap(jax.random.key)(jnp.repeat(pair, 2))
    env = functional.init(self._environment, keys)
    spec, zeros = self._spec.action, jnp.zeros(size)
    action = jnp.zeros((size, *spec.shape), spec.dtype)
    env, timestep = self._step(env, action, keys, jnp.int32(0))
    alive, count = jnp.ones(size, bool), jnp.zeros(size, jnp.int32)

    def step(carry: Any) -> Any:
      env, timestep, population, alive, returns, lengths, time = carry
      action, population = evolution.act(
        self._agent,
        self._spec,
        population,
        state.statistics,
        timestep,
        alive,
      )
      env, timestep = self._step(env, action, keys, time)
      returns += jnp.where(alive, timestep.reward, 0.0)
      lengths += alive
      alive &= (timestep.step_type != _LAST) & (time < self._cap)
      return env, timestep, population, alive, returns, lengths, time + 1

    *_, population, _, returns, lengths, _ = jax.lax.while_loop(
      lambda carry: jnp.any(carry[3]),
      step,
      (env, timestep, members, alive, zeros, count, jnp.int32(1)),
    )
    totals = jax.tree.map(lambda x: x[None], population.totals)
    return returns.reshape(-1, 2), lengths.reshape(-1, 2), totals

  def _step(
    self, env: types.Tree, action: jax.Array, keys: jax.Array, time: jax.Array
  ) -> tuple[types.Tree, dm_env.TimeStep]:
    times = jnp.full(len(keys), time, jnp.int32)
    env, timestep = functional.step(self._environment, env, action, keys, times)
    observation = tree.map_structure(
      env_specs.seen, self._spec.observation, timestep.observation
    )
    return env, timestep._replace(observation=observation)
