"""Packing of nests, which changes no bit."""

import math
from typing import NamedTuple

import jax
import numpy as np
import pytest

from seedx.on_cpu import packing


class Step(NamedTuple):
  image: np.ndarray
  numbers: dict
  small: tuple


def steps(*rows):
  """Returns a nest of random bits; only some of its leaves are packed."""
  rng = np.random.default_rng(0)

  def array(dtype, *shape):
    shape = (*rows, *shape)
    content = rng.bytes(math.prod(shape) * np.dtype(dtype).itemsize)
    return np.frombuffer(content, dtype).reshape(shape)

  return Step(
    image=array(np.uint8, 5, 13),
    numbers={
      "float": array(np.float32, 4),
      "wide": array(np.float32, 65),
      "half": array(np.float16),
      "int": array(np.int32, 2, 3),
      "none": np.zeros((*rows, 0), np.float32),
    },
    small=(array(np.uint8), array(np.uint8, 64) % 2 == 1),
  )


def assert_same_bits(actual, expected):
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  for one, other in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    # Bytes are compared, because a NaN is not equal to itself.
    assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize("rows", [(), (7,), (3, 2)])
def test_an_unpacked_nest_has_the_same_bits(rows):
  nest = steps(*rows)
  packed = jax.jit(packing.pack, static_argnums=1)(nest, len(rows))
  # As floats, the bits of NaNs and denormal numbers could change.
  assert packed.words.dtype == np.uint32
  assert packed.words.shape == (*rows, 4 + 6 + 1 + 64)
  assert [x.shape[len(rows) :] for x in packed.others] == [(5, 13), (), (65,)]
  assert_same_bits(jax.jit(packing.unpack)(packed), nest)


def test_leaves_with_different_rows_are_refused():
  nest = steps(3)._replace(image=steps(4).image)
  with pytest.raises(AssertionError, match=r"prefixes: .*\(4,\), \(3,\)"):
    packing.pack(nest, 1)


def test_indexing_packed_rows_indexes_the_rows_of_the_nest():
  def part(x):
    return x[np.array([2, 0]), 1]

  nest = steps(3, 4)
  actual = jax.jit(
    lambda nest: packing.unpack(jax.tree.map(part, packing.pack(nest, 2)))
  )(nest)
  assert_same_bits(actual, jax.tree.map(part, nest))
