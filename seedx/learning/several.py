"""Several updates in one program, which also draws their batches.

To pass a state's many arrays to a program and back takes about a tenth of the
time of a small update, so updates that are due at one time share a program.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedx import sharding, types
from seedx.agents import base
from seedx.learning import experience, replay_source, updates

# Checkpoints and the end of a run wait until a program has ended.
LIMIT = 8


class Several:
  """Program that draws batches from replays, and makes up to `LIMIT` updates.

  An update computes the same numbers in each place of the program.
  """

  def __init__(
    self,
    on_core: updates.OnCore,
    mesh: jax.sharding.Mesh,
    core_replay: replay_source.CoreReplay,
  ) -> None:
    self._on_core, self._mesh, self._replay = on_core, mesh, core_replay
    one = sharding.REPLICATED
    self._program = sharding.per_core(
      self._updates, mesh, (one,) * 5, one, donate_argnums=4
    )

  def __call__(
    self,
    state: base.AgentState,
    inputs: updates.Inputs,
    due: experience.Due,
  ) -> tuple[base.AgentState, list[Any], experience.Due]:
    """Makes the due updates, and waits for them.

    Args:
      state: state before the updates.
      inputs: inputs of the first update; its batch is not used.
      due: the due updates; the replays are donated.

    Returns:
      The new state; for each update, its `updates.Result` in NumPy, without
      state and priorities; and `due` with the new replays and batches ahead.
    """
    inputs = inputs._replace(batch=(due.count, due.index, due.clock))
    cores = (
      sharding.joined(x, self._mesh) for x in (due.keys, due.ahead, due.replays)
    )
    state, rows, *cores = self._program(state, inputs, *cores)
    rows = jax.tree.map(np.asarray, rows)
    results = [jax.tree.map(lambda x: x[i], rows) for i in range(due.count)]
    ahead, replays = (sharding.apart(x, self._mesh) for x in cores)
    return state, results, due._replace(ahead=ahead, replays=replays)

  def _updates(
    self,
    state: base.AgentState,
    inputs: updates.Inputs,
    rng_key: jax.Array,
    ahead: types.Tree,
    memory: types.Tree,
  ) -> tuple[types.Tree, ...]:
    count, first, clock = inputs.batch
    update = updates.packed(self._on_core.whole)

    def step(index: jax.Array, *carry: types.Tree) -> tuple[types.Tree, ...]:
      state, ahead, memory = carry
      drawn = self._replay.draw(memory, rng_key, first + index, clock + index)
      # Without priorities, no batch is drawn ahead.
      (sample, windows), ahead = (ahead, drawn) if ahead else (drawn, ())
      result = update(
        state, inputs._replace(version=inputs.version + index, batch=sample)
      )
      output = result.output
      memory = self._replay.replay.update(memory, windows, output.priorities)
      row = result._replace(state=(), output=output._replace(priorities=None))
      return row, result.state, ahead, memory

    def body(index: jax.Array, carry: Any) -> Any:
      rows, *carry = carry
      row, *carry = step(index, *carry)
      rows = jax.tree.map(lambda all, one: all.at[index].set(one), rows, row)
      return rows, *carry

    carry = state, ahead, memory
    shapes = jax.eval_shape(step, jnp.int32(0), *carry)[0]
    rows = jax.tree.map(lambda x: jnp.zeros((LIMIT, *x.shape), x.dtype), shapes)
    rows, state, ahead, memory = jax.lax.fori_loop(
      0, count, body, (rows, *carry)
    )
    return state, rows, ahead, memory
