"""Functions of nests of NumPy arrays."""

import numpy as np
import tree

from seedx import types


def named_leaves(nest: types.Tree) -> list[tuple[str, types.Array]]:
  """Returns the leaves of a nest in order, with paths such as `a/0/b`."""
  return [
    ("/".join(str(key) for key in path), leaf)
    for path, leaf in tree.flatten_with_path(nest)
  ]


def concatenate(nests: list[types.Tree], pad_to: int) -> types.Tree:
  """Joins nests of `[B_i, ...]` into one of `[pad_to, ...]`, padded with zeros.

  Args:
    nests: one or more nests of the same structure; a single nest that needs no
      padding is not copied.
    pad_to: number of rows of the result, at least the sum of B_i.
  """
  if len(nests) == 1 and len(tree.flatten(nests[0])[0]) == pad_to:
    return nests[0]

  def join(*leaves: np.ndarray) -> np.ndarray:
    joined = np.zeros((pad_to, *leaves[0].shape[1:]), leaves[0].dtype)
    rows = sum(len(leaf) for leaf in leaves)
    np.concatenate(leaves, out=joined[:rows])
    return joined

  return tree.map_structure(join, *nests)


def zeros(specs: types.Tree, leading_shape: tuple[int, ...]) -> types.Tree:
  """Returns zeros `[*leading_shape, *spec.shape]` for a nest of specs."""
  return tree.map_structure(
    lambda spec: np.zeros((*leading_shape, *spec.shape), spec.dtype), specs
  )


def non_finite(nest: types.Tree) -> str | None:
  """Returns the path of the first leaf with NaN or infinity, or None."""
  # Paths cost more than the check, and are rarely needed.
  if all(map(_is_finite, tree.flatten(nest))):
    return None
  return next(x for x, leaf in named_leaves(nest) if not _is_finite(leaf))


def _is_finite(leaf: types.Array) -> bool:
  array = np.asarray(leaf)
  return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())
