"""Defaults by kind of environment."""

from typing import Any

import dm_env.specs
import numpy as np
import tree

from seedx import types

_ATARI = {
  "total_steps": 10_000_000,
  "envs_per_actor": 8,
  "unroll_length": 64,
  "batch_size": 4,
  "micro_batches": 4,
  "learning_rate": 5e-4,
  "td_lambda": 0.95,
  "entropy_cost": 0.003,
  "reward_scale": 1.0,
  "reward_clip": 1.0,
  "stack_frames": 4,
}
_CONTINUOUS = {
  "envs_per_actor": 32,
  "batch_size": 32,
  "learning_rate": 1e-3,
  "discount": 0.95,
  "entropy_cost": 0.0,
}


def for_spec(spec: types.EnvironmentSpec) -> dict[str, Any]:
  """The options that differ from their defaults for such environments."""
  images = [
    leaf.dtype == np.uint8 and len(leaf.shape) == 3
    for leaf in tree.flatten(spec.observation)
  ]
  if any(images):
    return _ATARI
  if not isinstance(spec.action, dm_env.specs.DiscreteArray):
    return _CONTINUOUS
  return {}
