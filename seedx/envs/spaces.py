"""The spaces of an environment, on which a policy depends."""

from typing import Any

import numpy as np

from seedx import trees, types


def check_same(
  trained: types.EnvironmentSpec, other: types.EnvironmentSpec, env: str
) -> None:
  """Checks that a policy can play in another environment, of the name `env`.

  Raises:
    types.ConfigError: observations or actions differ.
  """
  for name, old, new in differences(trained, other):
    raise types.ConfigError(
      f"expected an environment whose {name} is {old}, as in training, found"
      f" {new} in {env}; choose one with the same observations and actions"
    )


def differences(
  spec: types.EnvironmentSpec, other: types.EnvironmentSpec
) -> list[tuple[str, str, str]]:
  """Returns the parts that differ: name, and both specs' values in words."""
  old, new = _spaces(spec), _spaces(other)
  return [
    (name, old.get(name, "missing"), new.get(name, "none"))
    for name in {**old, **new}
    if old.get(name) != new.get(name)
  ]


def _spaces(spec: types.EnvironmentSpec) -> dict[str, str]:
  """Returns the parts of a spec that a policy depends on, in words by name."""

  def in_words(leaf: Any, has_bounds: bool) -> str:
    words = f"{leaf.dtype} {list(leaf.shape)}"
    if has_bounds and hasattr(leaf, "minimum"):
      words += f" from {leaf.minimum.tolist()} to {leaf.maximum.tolist()}"
    return words

  spaces = {}
  for path, leaf in trees.named_leaves(spec.observation):
    # The bounds of floats have no effect; those of integers are sizes.
    whole = np.issubdtype(leaf.dtype, np.integer)
    name = f"observation {path!r}" if path else "observation"
    spaces[name] = in_words(leaf, has_bounds=whole)
  spaces["action"] = in_words(spec.action, has_bounds=True)
  spaces["action mask"] = spec.action_mask or "none"
  return spaces
