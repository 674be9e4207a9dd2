"""Random permutations: each number once, each place as likely as another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from seedx.agents import permutations


@pytest.mark.parametrize("size", [1, 2, 7, 8192, 8193, 10_000, 16_384, 65_537])
def test_each_number_comes_once(size):
  found = permutations.random(jax.random.key(size), size)
  np.testing.assert_array_equal(np.sort(found), np.arange(size))


@pytest.mark.parametrize("size", [8193, 16_384])
def test_every_place_is_as_likely(size):
  keys = jax.random.split(jax.random.key(0), 400)
  found = np.asarray(
    jax.jit(jax.vmap(lambda key: permutations.random(key, size)))(keys)
  )
  # Where small, middle and last numbers come, in 16 parts of the places.
  for number in (0, 1, size // 2, size - 1):
    places = np.argmax(found == number, axis=1) * 16 // size
    counts = np.bincount(places, minlength=16)
    assert stats.chisquare(counts).pvalue > 1e-4
  # What follows a number says nothing of it, nor does its own place.
  for one, other in (
    (found[:, :-1], found[:, 1:]),
    (found, np.broadcast_to(np.arange(size), found.shape)),
  ):
    correlation = np.corrcoef(one.ravel(), other.ravel())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(one.size)


def test_other_keys_give_other_permutations():
  one, other = (permutations.random(jax.random.key(k), 9000) for k in (0, 1))
  assert jnp.mean(one == other) < 0.01
