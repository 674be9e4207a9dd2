"""Random permutations: each number occurs once, in any place equally often."""

import jax
import numpy as np
import pytest
from scipy import stats

from seedx.on_cpu import permutations


@pytest.mark.parametrize("size", [1, 8192, 65_537])
def test_each_number_occurs_once(size):
  permute = jax.jit(lambda key: permutations.random(key, size))
  np.testing.assert_array_equal(
    np.sort(permute(jax.random.key(size))), np.arange(size)
  )


@pytest.mark.slow
def test_every_place_is_equally_likely():
  size = 8193
  keys = jax.random.split(jax.random.key(0), 128)
  permute = jax.jit(jax.vmap(lambda key: permutations.random(key, size)))
  drawn = np.asarray(permute(keys))
  ordered = np.broadcast_to(np.arange(size), drawn.shape)
  np.testing.assert_array_equal(np.sort(drawn), ordered)
  # Each of these numbers is in each 16th of the places equally often.
  for number in (0, 1, size // 2, size - 1):
    places = np.argmax(drawn == number, axis=1) * 16 // size
    counts = np.bincount(places, minlength=16)
    assert stats.chisquare(counts).pvalue > 1e-4
  # A number is independent of the next number and of its own place.
  for one, other in ((drawn[:, :-1], drawn[:, 1:]), (drawn, ordered)):
    correlation = np.corrcoef(one.ravel(), other.ravel())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(one.size)
  assert np.mean(drawn[0] == drawn[1]) < 0.01
