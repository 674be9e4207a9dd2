"""Exports the policy of a run as StableHLO, to be used without seedx.

  seedx export runs/ppo/20260131-120000 --output policy

leaves `policy.stablehlo`, which JAX alone can load and run on CPU, GPU or TPU,
in batches of any size, and `policy.json`, which says what it takes and gives.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import dm_env
import jax
import jax.export
import numpy as np

from seedx import types
from seedx.agents import acting_step
from seedx.app import command_line, policies

_PLATFORMS = ("cpu", "cuda", "tpu")


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line.

  Attributes:
    run_dir: the directory of the run.
    checkpoint: latest, best, or its number of env steps.
    output: the files, without .stablehlo and .json.
  """

  run_dir: str = ""
  checkpoint: str = "latest"
  output: str = "policy"


def main(argv: Sequence[str] | None = None) -> int:
  """Exports a policy; returns the exit status."""
  argv = sys.argv[1:] if argv is None else argv
  try:
    return _export(
      command_line.parse(
        Options(), argv, "seedx export", __doc__, positional=("run_dir",)
      )
    )
  except types.ConfigError as error:
    command_line.fail(error)


def _export(given: Options) -> int:
  policy = policies.load(given.run_dir, given.checkpoint)
  exported, spec = export(policy)
  try:
    pathlib.Path(f"{given.output}.stablehlo").write_bytes(exported.serialize())
    pathlib.Path(f"{given.output}.json").write_text(
      json.dumps(spec, indent=2) + "\n", encoding="utf-8"
    )
  except OSError as error:
    raise types.ConfigError(
      f"cannot write {given.output!r} ({error.strerror or error}); choose an"
      " --output that you can write"
    ) from error
  print(
    f"the policy of {policy.name} after {policy.env_steps:,} env steps is"
    f" in {given.output}.stablehlo, its inputs in {given.output}.json"
  )
  return 0


def export(
  policy: policies.Policy,
) -> tuple[jax.export.Exported, dict[str, Any]]:
  """The greedy policy as a function of a batch of any size.

  It maps `(timestep, memory)` to `(action, memory)`: `timestep` is a dict of
  `observation`, `reward`, `discount` and `step_type`, each `[B, ...]` (0 FIRST,
  1 MID, 2 LAST, as in dm_env); `memory` is a list of `[B, ...]`, of zeros
  before the first step, and then what the step before returned. Where
  `step_type` is FIRST, what was before is forgotten.

  Args:
    policy: with an agent that has a `greedy` step.

  Returns:
    The function, and as JSON the shapes and dtypes that it takes and gives.

  Raises:
    types.ConfigError: the agent cannot tell which action is best.
  """
  if policy.agent.greedy is None:
    raise types.ConfigError(
      "expected an agent with a `greedy` step to export, found one without"
    )
  example = policy.initial_state(1)
  structure = jax.tree.structure(example)
  zeros = acting_step.zero_inputs(policy.spec, 1).timestep

  def act(
    timestep: dict[str, types.Tree], memory: list[jax.Array]
  ) -> tuple[jax.Array, list[jax.Array]]:
    observation = jax.tree.unflatten(
      jax.tree.structure(zeros.observation),
      jax.tree.leaves(timestep["observation"]),
    )
    action, state = policy.act(
      dm_env.TimeStep(**timestep | {"observation": observation}),
      jax.tree.unflatten(structure, memory),
    )
    return action, jax.tree.leaves(state)

  (size,) = jax.export.symbolic_shape("b")

  def shaped(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype)

  timestep = _with_lists(zeros._asdict())
  inputs = jax.tree.map(shaped, (timestep, jax.tree.leaves(example)))
  exported = jax.export.export(jax.jit(act), platforms=_PLATFORMS)(*inputs)
  action, _ = jax.tree.unflatten(exported.out_tree, exported.out_avals)
  env = policy.env
  return exported, {
    "experiment": policy.name,
    "env": env.env,
    "env_options": dict(env.env_options),
    "observation_transform": env.observation_transform,
    "info_keys": list(env.info_keys),
    "env_steps": policy.env_steps,
    "greedy": True,
    "step_type": {kind.name: int(kind) for kind in dm_env.StepType},
    "timestep": jax.tree.map(_in_json, inputs[0]),
    "memory": [_in_json(leaf) for leaf in inputs[1]],
    "action": _in_json(action) | _bounds(policy.spec.action),
  }


def _with_lists(nest: types.Tree) -> types.Tree:
  """A nest whose tuples are lists, as JSON has them."""
  if isinstance(nest, dict):
    return {key: _with_lists(value) for key, value in nest.items()}
  if isinstance(nest, tuple | list):
    return [_with_lists(value) for value in nest]
  return nest


def _bounds(action: dm_env.specs.BoundedArray) -> dict[str, Any]:
  return {
    "minimum": np.asarray(action.minimum).tolist(),
    "maximum": np.asarray(action.maximum).tolist(),
  }


def _in_json(leaf: Any) -> dict[str, Any]:
  """A shape without its batch axis, and a dtype."""
  return {"shape": list(leaf.shape[1:]), "dtype": str(np.dtype(leaf.dtype))}
