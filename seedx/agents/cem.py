"""The cross-entropy method: a maximum over actions by repeated sampling.

Rubinstein and Kroese 2004, "The Cross-Entropy Method".
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp


def maximize(
  function: Callable[[jax.Array], jax.Array],
  rng_key: jax.Array,
  shape: Sequence[int],
  *,
  iterations: int = 2,
  samples: int = 64,
  elites: int = 6,
) -> jax.Array:
  """Returns actions between -1 and 1 with about the largest values.

  The first samples are uniform. Those of each later iteration are normal, with
  the means and the standard deviations (of samples, ddof 1) of the best ones
  before, and clipped. The result is the best of the last samples, as in the
  program of Kalashnikov et al. 2018, https://arxiv.org/abs/1806.10293.

  >>> def value(action):
  ...   return -jnp.square(action[..., 0] - 0.5)
  >>> best = maximize(value, jax.random.key(0), (3, 1))
  >>> bool(jnp.all(jnp.abs(best - 0.5) < 0.1))
  True

  Args:
    function: maps actions `[samples, *shape]` to values, without the last axis.
    rng_key: random key.
    shape: `[..., A]`, shape of the result, with A dimensions of an action.
    iterations: number of iterations, at least 1.
    samples: number of samples of each.
    elites: number of best samples that are fitted, at least 2.
  """
  keys = jax.random.split(rng_key, iterations)
  size = (samples, *shape)
  actions = jax.random.uniform(keys[0], size, minval=-1.0, maxval=1.0)
  for key in keys[1:]:
    values = jnp.moveaxis(function(actions), 0, -1)
    _, index = jax.lax.top_k(values, elites)
    index = jnp.moveaxis(index, -1, 0)[..., None]
    best = jnp.take_along_axis(actions, index, axis=0)
    noise = jax.random.normal(key, size)
    actions = best.mean(axis=0) + best.std(axis=0, ddof=1) * noise
    actions = jnp.clip(actions, -1.0, 1.0)
  index = jnp.argmax(function(actions), axis=0)[None, ..., None]
  return jnp.take_along_axis(actions, index, axis=0)[0]
