"""Nests of arrays."""

import numpy as np

from seedx import trees


def test_non_finite_returns_the_path_of_the_first_bad_leaf():
  for bad in (np.nan, np.inf):
    nest = {
      "a": np.arange(3),
      "b": (np.ones(2, np.float32), np.array([0.0, bad], np.float16)),
      "c": np.float64(bad),
    }
    assert trees.non_finite(nest) == "b/1"
  nest = (np.full(2, np.finfo(np.float32).max), np.zeros(0), np.True_, 1j)
  assert trees.non_finite(nest) is None
