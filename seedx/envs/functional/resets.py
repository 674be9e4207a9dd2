"""Resets of few environments among many that step together."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from seedx import types

# Number of environments that share one reset at a time.
_SHARE = 64


def restarted(
  reset: Callable[[jax.Array], types.Tree],
  due: jax.Array,
  state: types.Tree,
  rng_key: jax.Array,
) -> types.Tree:
  """Replaces a state by that of a new episode, if it is due.

  With `jax.vmap`, a condition computes both of its branches, so that each step
  of an environment would cost a reset. Here, a loop resets those which are due,
  one of 64 at a time. This pays if a reset costs more than a few steps.

  Args:
    reset: function that returns the state of a new episode.
    due: `[]` bool.
    state: the state, with the same leaves as those of `reset`.
    rng_key: a key.
  """

  @jax.custom_batching.custom_vmap
  def one(due: jax.Array, state: types.Tree, rng_key: jax.Array) -> types.Tree:
    fresh = jax.tree.map(lambda x, y: x.astype(y.dtype), reset(rng_key), state)
    return jax.tree.map(lambda x, y: jnp.where(due, x, y), fresh, state)

  @one.def_vmap
  def many(size: int, is_batched: Any, *inputs: Any) -> tuple[Any, Any]:
    due, state, rng_key = jax.tree.map(
      lambda x, y: x if y else jnp.broadcast_to(x, (size, *jnp.shape(x))),
      inputs,
      tuple(is_batched),
    )
    few = max(1, size // _SHARE)

    def step(carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
      due, state = carry
      (index,) = jnp.nonzero(due, size=few, fill_value=size)
      fresh = jax.vmap(reset)(rng_key[jnp.minimum(index, size - 1)])
      state = jax.tree.map(
        lambda x, y: x.at[index].set(y.astype(x.dtype), mode="drop"),
        state,
        fresh,
      )
      return due.at[index].set(False, mode="drop"), state

    _, state = jax.lax.while_loop(lambda x: x[0].any(), step, (due, state))
    return state, jax.tree.map(lambda _: True, state)

  result: types.Tree = one(due, state, rng_key)
  return result
