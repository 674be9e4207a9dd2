"""Computations in blocks, compared with those of the whole batch."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx.on_cpu import blocks

AXES = {"steps": 1, "first": 0}


def loss(params, part):
  values = jnp.tanh(part["steps"] @ params + part["first"])
  return jnp.sum(values), {"values": values, "input": part["steps"]}


# 2,000 entries of 3 steps are cut into 2 blocks of 1,000 entries; 3,584 of 4
# steps into 4 blocks of 896; the prime number 8,191 is not cut, nor is a batch
# that fits into one block.
SIZES = [(2000, 3, 2), (3584, 4, 4), (8191, 1, 1), (10, 5, 1)]


@pytest.mark.parametrize(("entries", "steps", "number"), SIZES)
def test_blocks_give_the_results_of_the_whole_batch(entries, steps, number):
  random, params = np.random.default_rng(0), np.float32([0.5, -1.0, 2.0])
  batch = {
    "steps": random.normal(size=(steps, entries, 3)).astype(np.float32),
    "first": random.normal(size=entries).astype(np.float32),
  }
  values = np.tanh(batch["steps"] @ params + batch["first"])
  expected = (
    np.einsum("tn,tnk->k", 1 - values**2, batch["steps"], dtype=np.float64),
    {"values": values, "input": batch["steps"]},
  )
  lowered = jax.jit(lambda p, b: blocks.gradient(loss, p, b, AXES)).lower(
    params, batch
  )
  program = jax.jit(
    lambda p, b: (
      blocks.gradient(loss, p, b, None),
      blocks.outputs(lambda part: loss(p, part)[1], b, AXES),
    )
  )
  whole, outputs = program(params, batch)
  for actual in (lowered.compile()(params, batch), whole):
    chex.assert_trees_all_close(actual, expected, rtol=1e-4)
  np.testing.assert_array_equal(outputs["input"], batch["steps"])
  np.testing.assert_allclose(outputs["values"], whole[1]["values"], rtol=1e-5)
  text = lowered.as_text()
  assert f"tensor<{number}x{steps}x{entries // number}x3xf32>" in text or (
    number == 1 and "while" not in text
  )
