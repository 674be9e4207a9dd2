"""The atoms of distributions of returns."""

import numpy as np

from seedx import types


def spaced(num_atoms: int, low: float, high: float) -> tuple[float, ...]:
  """Returns evenly spaced returns from `low` to `high`; () for no atoms.

  The settings of these arguments are `num_atoms`, `value_min` and `value_max`.

  Raises:
    types.ConfigError: there is one atom, or no range in float32.
  """
  if num_atoms and (num_atoms == 1 or np.float32(low) >= np.float32(high)):
    raise types.ConfigError(
      "expected at least 2 num_atoms, from a value_min up to a larger"
      f" value_max, found {num_atoms} from {low} to {high}"
    )
  return tuple(map(float, np.linspace(low, high, num_atoms)))
