"""An LSTM over streams of episodes."""

from typing import Any

import dm_env
import flax.linen as nn
import jax
import jax.numpy as jnp

State = tuple[jax.Array, jax.Array]


class LSTM(nn.Module):
  """A long short-term memory, reset at the start of an episode.

  Hochreiter and Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735.

  Attributes:
    size: number of units.
  """

  size: int
  dtype: Any = jnp.float32

  def initial_state(self, batch_size: int) -> State:
    """Returns cell state and output, `[batch_size, size]` float32 zeros."""
    zeros = jnp.zeros((batch_size, self.size), jnp.float32)
    return zeros, zeros

  @nn.compact
  def __call__(
    self, features: jax.Array, step_type: jax.Array, state: State
  ) -> tuple[jax.Array, State]:
    """Unrolls the LSTM over a stream.

    Args:
      features: `[T, B, F]`.
      step_type: `[T, B]`; a FIRST step starts from zeros.
      state: `[B, size]` each, before the first step.

    Returns:
      The outputs `[T, B, size]`, and the state after the last step.
    """
    scanned = nn.scan(
      _Step, variable_broadcast="params", split_rngs={"params": False}
    )
    first = step_type == int(dm_env.StepType.FIRST)
    state, outputs = scanned(self.size, self.dtype)(state, (features, first))
    return outputs, state


class _Step(nn.Module):
  size: int
  dtype: Any

  @nn.compact
  def __call__(
    self, state: State, inputs: tuple[jax.Array, jax.Array]
  ) -> tuple[State, jax.Array]:
    features, first = inputs
    kept = jax.tree.map(lambda x: jnp.where(first[:, None], 0.0, x), state)
    cell = nn.OptimizedLSTMCell(self.size, dtype=self.dtype)
    after, output = cell(kept, features)
    return jax.tree.map(lambda x: x.astype(jnp.float32), after), output
