"""Trains PPO on a memory task; its memory is a custom GRU or transformer.

  python examples/memory.py --run-dir runs/memory

A memory is a Flax module with an initial state, see `networks.Core`. The return
is 1 if the agent remembers the bit that was shown first, and -1 otherwise.
"""

import sys

import dm_env
import flax.linen as nn
import jax
import jax.numpy as jnp

from seedx import app, envs
from seedx.agents import ppo
from seedx.learning import learner
from seedx.pipelines import sync

FIRST = int(dm_env.StepType.FIRST)

State = dict[str, jax.Array]


class GRU(nn.Module):
  """A gated recurrent unit with `size` units."""

  size: int = 32

  def initial_state(self, batch_size: int) -> jax.Array:
    """Returns the state at the start of an episode."""
    return jnp.zeros((batch_size, self.size))

  @nn.compact
  def __call__(
    self, features: jax.Array, step_type: jax.Array, state: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Unrolls the memory over features `[T, B, F]`."""

    def step(
      cell: nn.GRUCell, state: jax.Array, inputs: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
      features, first = inputs
      return cell(jnp.where(first[:, None], 0.0, state), features)

    unroll = nn.scan(
      step, variable_broadcast="params", split_rngs={"params": False}
    )
    inputs = features, step_type == FIRST
    state, outputs = unroll(nn.GRUCell(self.size), state, inputs)
    return outputs, state


class Transformer(nn.Module):
  """A causal transformer over the current step and `window` previous steps.

  Its state has, for each previous step, whether it belongs to the current
  episode, and the inputs of each layer.
  """

  size: int = 32
  heads: int = 2
  layers: int = 1
  window: int = 16

  def initial_state(self, batch_size: int) -> State:
    """Returns the state at the start of an episode, an empty window."""
    window = batch_size, self.window
    return {
      "valid": jnp.zeros(window, bool),
      "inputs": jnp.zeros((*window, self.layers, self.size)),
    }

  @nn.compact
  def __call__(
    self, features: jax.Array, step_type: jax.Array, state: State
  ) -> tuple[jax.Array, State]:
    """Unrolls the memory over `[T, B, F]`, with T queries, window + T keys."""
    first = (step_type == FIRST).T
    episode = jnp.concatenate(  # The state's episode is 0; -1 is none.
      [jnp.where(state["valid"], 0, -1), jnp.cumsum(first, axis=1)], axis=1
    )
    time = jnp.arange(episode.shape[1])
    age = time[self.window :, None] - time
    visible = (age >= 0) & (age <= self.window)
    visible &= episode[:, self.window :, None] == episode[:, None]
    x, inputs = nn.Dense(self.size)(jnp.swapaxes(features, 0, 1)), []
    for layer in range(self.layers):
      inputs.append(jnp.concatenate([state["inputs"][:, :, layer], x], axis=1))
      x += self._attend(inputs[-1], age, visible)
      hidden = nn.gelu(nn.Dense(2 * self.size)(nn.LayerNorm()(x)))
      x += nn.Dense(self.size)(hidden)
    state = {
      "valid": episode[:, -self.window :] == episode[:, -1:],
      "inputs": jnp.stack(inputs, axis=2)[:, -self.window :],
    }
    return jnp.swapaxes(nn.LayerNorm()(x), 0, 1), state

  def _attend(
    self, inputs: jax.Array, age: jax.Array, visible: jax.Array
  ) -> jax.Array:
    """Returns the attention of the last T of `[B, window + T, size]` inputs."""
    parts = self.heads, self.size // self.heads
    normed = nn.LayerNorm()(inputs)
    mixed = nn.dot_product_attention(
      query=nn.DenseGeneral(parts)(normed[:, self.window :]),
      key=nn.DenseGeneral(parts)(normed),
      value=nn.DenseGeneral(parts)(normed),
      bias=nn.Embed(self.window + 1, self.heads)(
        jnp.clip(age, 0, self.window)
      ).transpose(2, 0, 1),
      mask=visible[:, None],
    )
    return nn.DenseGeneral(self.size, axis=(-2, -1))(mixed)


AGENT = ppo.Config(
  recurrent=True,
  core=GRU(),
  hidden_sizes=(32,),
  learning_rate=1e-3,
  td_lambda=1.0,
  minibatches=2,
)

EXPERIMENT = app.Experiment(
  sync.Config(
    env=envs.Config("seedx:MemoryChain", {"length": 5}),
    agent=AGENT,
    total_steps=50_000,
    num_envs=32,
    learner=learner.Config(unroll_length=16),
  )
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
