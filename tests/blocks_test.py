"""Work in blocks is the work on the whole batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx.agents import blocks

AXES = {"steps": 1, "first": 0}


def batch_of(entries, steps):
  keys = jax.random.split(jax.random.key(0))
  return {
    "steps": jax.random.normal(keys[0], (steps, entries, 3)),
    "first": jax.random.normal(keys[1], (entries,)),
  }


def loss(params, part):
  values = jnp.tanh(part["steps"] @ params + part["first"])
  return jnp.sum(values), {"values": values, "input": part["steps"]}


# Of 3 x 2,000 steps in blocks of 3 x 1,000; 4 x 3,584 in 4 x 896; 8,191 is a
# prime, and 10 x 5 few.
SIZES = [(2000, 3, 2), (3584, 4, 4), (8191, 1, 1), (10, 5, 1)]


@pytest.mark.parametrize(("entries", "steps", "number"), SIZES)
def test_blocks_give_what_the_whole_gives(entries, steps, number):
  batch, params = batch_of(entries, steps), jnp.array([0.5, -1.0, 2.0])
  whole = jax.grad(loss, has_aux=True)(params, batch)
  assert len(jax.tree.leaves(whole)) == 3
  differentiate = jax.jit(lambda p, b: blocks.gradient(loss, p, b, AXES))
  for found in (
    differentiate(params, batch),
    blocks.gradient(loss, params, batch, None),
  ):
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), found, whole
    )
  outputs = blocks.outputs(lambda part: loss(params, part)[1], batch, AXES)
  jax.tree.map(np.testing.assert_array_equal, outputs["input"], batch["steps"])
  np.testing.assert_allclose(outputs["values"], whole[1]["values"], rtol=1e-5)
  text = differentiate.lower(params, batch).as_text()
  assert f"tensor<{number}x{steps}x{entries // number}x3xf32>" in text or (
    number == 1 and "while" not in text
  )
