"""Random permutations: each number once, each place as likely as another."""

import jax
import numpy as np
import pytest
from scipy import stats

from seedx.on_cpu import permutations


@pytest.mark.parametrize("size", [1, 8192, 65_537])
def test_each_number_comes_once(size):
  permute = jax.jit(lambda key: permutations.random(key, size))
  np.testing.assert_array_equal(
    np.sort(permute(jax.random.key(size))), np.arange(size)
  )


@pytest.mark.parametrize("size", [8193, 16_384])
def test_every_place_is_as_likely(size):
  keys = jax.random.split(jax.random.key(0), 128)
  permute = jax.jit(jax.vmap(lambda key: permutations.random(key, size)))
  found = np.asarray(permute(keys))
  expected = np.broadcast_to(np.arange(size), found.shape)
  np.testing.assert_array_equal(np.sort(found), expected)
  # Where small, middle and last numbers come, in 16 parts of the places.
  for number in (0, 1, size // 2, size - 1):
    places = np.argmax(found == number, axis=1) * 16 // size
    counts = np.bincount(places, minlength=16)
    assert stats.chisquare(counts).pvalue > 1e-4
  # What follows a number says nothing of it, nor does its own place.
  for one, other in ((found[:, :-1], found[:, 1:]), (found, expected)):
    correlation = np.corrcoef(one.ravel(), other.ravel())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(one.size)
  assert np.mean(found[0] == found[1]) < 0.01
