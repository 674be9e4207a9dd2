"""Two losses with different periods: PPO, and every 4th update a second loss.

  seedx train examples/two_losses.py --run-dir runs/two_losses

The second loss has an optimizer of its own. Here it trains the values on the
whole batch; any function of parameters and batch may take its place.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from seedx import app, losses, types
from seedx.agents import base, ppo
from seedx.pipelines import sync


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State(base.AgentState):
  second: types.Tree = ()  # State of the second loss's optimizer.


def stream_loss(values, step_type, reward, discount):
  """Returns the second loss `[T]` and the weights of a stream's T steps."""
  stream = jax.lax.stop_gradient(values), step_type, reward, discount
  errors = losses.lambda_returns(*stream, lambda_=0.95) - values[:-1]
  weight = losses.transitions(*stream[1:], values).weight
  return 0.5 * jnp.square(errors), weight


@dataclasses.dataclass(frozen=True)
class Config(ppo.Config):
  period: int = types.setting(4, low=1)

  def make(self, spec, axis_name=None, horizon=None):
    agent, policy = super().make(spec, axis_name, horizon), self.policy(spec)
    optimizer = optax.adam(self.learning_rate)

    def init(key):
      state = agent.init(key)
      return State(**vars(state), second=optimizer.init(state.params))

    def loss(params, state, batch):
      variables = agent.acting(state)._replace(params=params)
      x = policy.evaluate(variables, batch, state.hyperparameters)
      streams = x.values, x.step_type, x.reward, x.discount
      steps = jax.vmap(stream_loss, in_axes=1, out_axes=1)(*streams)
      return losses.mean_share(*steps, axis_name)

    def second(state, batch):
      gradient = jax.grad(loss)(state.params, state, batch)
      gradient = losses.sum_over_cores(gradient, axis_name)
      change, second = optimizer.update(gradient, state.second)
      params = optax.apply_updates(state.params, change)
      return dataclasses.replace(state, params=params, second=second)

    def update(state, key, batch):
      state, output = agent.update(state, key, batch)
      due = state.updates % self.period == 0
      state = jax.lax.cond(due, second, lambda x, _: x, state, batch)
      return state, output

    return dataclasses.replace(agent, init=init, update=update, start=None)


EXPERIMENT = app.Experiment(sync.Config(agent=Config(), total_steps=100_000))
