"""A2C with an auxiliary head, which predicts the next observation.

  seedx train examples/auxiliary_head.py --run-dir runs/auxiliary

The head is a part of the torso's module, so its parameters and the torso's
learn from the sum of both losses. (Others predict rewards or pixels' changes,
arxiv.org/abs/1611.05397.)
"""

import dataclasses

import dm_env
import flax.linen as nn
import jax
import jax.numpy as jnp

from seedx import app, losses, types
from seedx.agents import a2c, base
from seedx.pipelines import sync


class Torso(nn.Module):
  size: int = 64

  def setup(self):
    self.layers = [nn.Dense(self.size), nn.Dense(self.size)]
    self.head = nn.Dense(4)

  def __call__(self, observation):
    for layer in self.layers:
      features = observation = nn.tanh(layer(observation))
    if self.is_initializing():
      self.head(features)  # Makes the head's parameters.
    return features

  def predict(self, observation):
    return self.head(self(observation))


@dataclasses.dataclass(frozen=True)
class Config(a2c.Config):
  torso: nn.Module | None = Torso()
  auxiliary_cost: float = types.setting(1.0, changes="run_time", low=0.0)

  def make(self, spec, axis_name=None, horizon=None):
    agent = super().make(spec, axis_name, horizon)

    def auxiliary(params, costs, timestep):
      torso = {"params": params["params"]["torso"]}
      seen = timestep.observation
      error = self.torso.apply(torso, seen[:-1], method="predict") - seen[1:]
      error = jnp.mean(jnp.square(error), axis=-1)
      follows = timestep.step_type[1:] != int(dm_env.StepType.FIRST)
      mean = losses.mean_share(error, follows.astype(jnp.float32), axis_name)
      return costs["auxiliary_cost"] * mean, mean

    def gradients(state, key, batch):
      of_agent, output = agent.gradients(state, key, batch)
      arguments = state.params, state.hyperparameters, batch.inputs.timestep
      shares = jax.grad(auxiliary, has_aux=True)(*arguments)
      added, error = losses.sum_over_cores(shares, axis_name)
      params = jax.tree.map(jnp.add, of_agent.params, added)
      output = output._replace(metrics=output.metrics | {"prediction": error})
      return of_agent._replace(params=params), output

    update = base.composed_update(gradients, agent.apply)
    return dataclasses.replace(agent, gradients=gradients, update=update)


EXPERIMENT = app.Experiment(sync.Config(agent=Config(), total_steps=100_000))
