"""Updates of several epochs, which shuffle a batch into minibatches."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp

from seedx import types
from seedx.agents import base, models
from seedx.on_cpu import permutations


class Entries(Protocol):
  """A NamedTuple with a batch, or a part of it, as N entries of C steps.

  All other arrays are `[C, N, ...]`, too.

  Attributes:
    inputs: `[C, N, ...]`.
    core_state: `[N, ...]`, state of the network before each entry's first step.
    weight: `[C, N]`, 0 on resets, 1 elsewhere.
  """

  @property
  def inputs(self) -> types.Inputs: ...

  @property
  def core_state(self) -> types.Tree: ...

  @property
  def weight(self) -> jax.Array: ...

  @property
  def _replace(self) -> Callable[..., Any]: ...


E = TypeVar("E", bound=Entries)
# Takes an optimizer step on a minibatch.
Step = Callable[[base.AgentState, E], tuple[base.AgentState, types.LossOutput]]


def take_all_steps(
  step: Step[E],
  state: base.AgentState,
  draw: Callable[[jax.Array], E],
  keys: jax.Array,
) -> tuple[base.AgentState, types.LossOutput]:
  """Takes a step on every minibatch; returns means of the metrics.

  `draw` maps a key to minibatches `[M, ...]`, and `keys` has one per epoch.
  """

  def epoch(
    state: base.AgentState, rng_key: jax.Array
  ) -> tuple[base.AgentState, types.LossOutput]:
    return jax.lax.scan(step, state, draw(rng_key))

  state, outputs = jax.lax.scan(epoch, state, keys)
  metrics = {name: x.mean() for name, x in outputs.metrics.items()}
  return state, types.LossOutput(outputs.weight.sum() / len(keys), metrics)


def single_steps(
  model: models.Model, variables: models.Variables, entries: E
) -> E:
  """Cuts entries `[T, B, ...]` into single steps `[1, T * B, ...]`.

  Each has the core state, such as stacked frames, that the `variables` lead to.
  """

  def carry_on(
    core_state: types.Tree, inputs: types.Inputs
  ) -> tuple[types.Tree, types.Tree]:
    stream = jax.tree.map(lambda x: x[None], inputs)
    output = model.unroll(variables, stream, core_state)
    return output.core_state, core_state

  core_state = entries.core_state
  if jax.tree.leaves(core_state):
    # XLA drops the unused outputs of the head.
    _, core_state = jax.lax.scan(carry_on, core_state, entries.inputs)
  merged = jax.tree.map(
    lambda x: jax.lax.collapse(x, 0, 2), entries._replace(core_state=core_state)
  )
  steps = jax.tree.map(lambda x: x[None], merged._replace(core_state=()))
  return steps._replace(core_state=merged.core_state)


def shuffled(entries: E, rng_key: jax.Array, *, parts: int) -> E:
  """Divides entries into equal parts at random; returns a part in each row.

  Raises:
    types.ConfigError: the number of entries is not a multiple of `parts`.
  """
  size = entries.weight.shape[1]
  if size % parts:
    raise types.ConfigError(
      f"expected minibatches that divide the {size} entries of each core"
      f" (steps, or unrolls if recurrent), found {parts}"
    )
  order = permutations.random(rng_key, size).reshape(parts, -1)

  def draw(leaf: jax.Array) -> jax.Array:
    return jnp.moveaxis(jnp.take(leaf, order, axis=1), 1, 0)

  drawn = jax.tree.map(draw, entries._replace(core_state=()))
  return drawn._replace(
    core_state=jax.tree.map(lambda leaf: leaf[order], entries.core_state)
  )
