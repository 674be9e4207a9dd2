"""An intrinsic reward in anakin: random network distillation (RND), with PPO.

  seedx train examples/rnd.py --run-dir runs/rnd

A network learns the outputs of a random one (arxiv.org/abs/1810.12894). Its
relative error, which falls where the agent has been, is added to the rewards,
and with them scaled by `reward_scale`. Observations are vectors `[..., D]`.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from seedx import app, envs, losses, types
from seedx.agents import base, ppo
from seedx.pipelines import anakin


class Novelty(nn.Module):
  @nn.compact
  def __call__(self, seen):
    a, b = (nn.Dense(32)(nn.relu(nn.Dense(64)(seen))) for _ in range(2))
    a = jax.lax.stop_gradient(a)  # The random network, which never changes.
    return jnp.sum((a - b) ** 2, -1) / (jnp.sum(a**2, -1) + 1e-3)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State(base.AgentState):
  rnd: types.Tree = ()  # Parameters of both networks, and the state of Adam.


@dataclasses.dataclass(frozen=True)
class Config(ppo.Config):
  intrinsic_scale: float = types.setting(0.1, low=0.0, changes="resume")

  def make(self, spec, axis_name=None, horizon=None):
    agent = super().make(spec, axis_name, horizon)
    model, optimizer = Novelty(), optax.adam(1e-3)

    def init(key):
      params = model.init(key, jnp.ones(spec.observation.shape))
      rnd = params, optimizer.init(params)
      return State(**vars(agent.init(jax.random.fold_in(key, 1))), rnd=rnd)

    def loss(params, timestep):
      errors = model.apply(params, timestep.observation)
      mean = losses.mean_share(errors, jnp.ones_like(errors), axis_name)
      return mean, (mean, timestep.reward + self.intrinsic_scale * errors)

    def update(state, key, batch):
      (params, adam), timestep = state.rnd, batch.inputs.timestep
      grads, (error, reward) = jax.grad(loss, has_aux=True)(params, timestep)
      grads, error = losses.sum_over_cores((grads, error), axis_name)
      inputs = batch.inputs._replace(timestep=timestep._replace(reward=reward))
      state, output = agent.update(state, key, batch._replace(inputs=inputs))
      change, adam = optimizer.update(grads, adam)
      rnd = optax.apply_updates(params, change), adam
      output = output._replace(metrics=output.metrics | {"rnd_error": error})
      return dataclasses.replace(state, rnd=rnd), output

    return dataclasses.replace(agent, init=init, update=update, start=None)


SEA = envs.Config("seedx:DeepSea", {"size": 20})
RUN = anakin.Config(env=SEA, agent=Config(), num_envs=64, total_steps=500_000)
EXPERIMENT = app.Experiment(RUN)
