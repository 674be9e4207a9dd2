"""Exports the policy of a run as StableHLO, for use without seedx.

  seedx export runs/ppo/20260131-120000 --output policy

Writes `policy.stablehlo`, which JAX alone loads and runs on CPU, GPU or TPU
with any batch size, and `policy.json`, which describes its inputs and outputs.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dm_env
import numpy as np

from seedx import files, types
from seedx.app.cli import command_line
from seedx.app.runs import foreign_code
from seedx.app.settings import opponents

if TYPE_CHECKING:
  import jax
  import jax.export

  from seedx.app import policies

_PLATFORMS = ("cpu", "cuda", "tpu")


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of the command line.

  Attributes:
    run_dir: directory of the run.
    checkpoint: latest, best, or the env steps of a checkpoint.
    seed_index: training to export in a run with num_seeds, 0 for the first.
    trust: whether to run the code that the directory names, such as an
      environment.
    output: path of the two files, without .stablehlo and .json.
    without_search: whether the policy of an agent that searches is exported
      without its search: smaller, faster and weaker.
    sample: whether the policy samples its actions, and takes a seed.
  """

  run_dir: str = ""
  checkpoint: str = "latest"
  seed_index: int = types.setting(0, low=0)
  trust: bool = False
  output: str = "policy"
  without_search: bool = False
  sample: bool = False


def main(argv: Sequence[str] | None = None) -> int:
  """Exports a policy; returns the exit status."""
  return command_line.run(
    _export, Options(), "seedx export", __doc__, argv, positional=("run_dir",)
  )


def _export(options: Options) -> int:
  foreign_code.trusted(options.run_dir, options.trust)
  from seedx.app import policies  # Imports JAX; the check comes first.

  policy = policies.load(
    options.run_dir,
    options.checkpoint,
    trust=options.trust,
    seed_index=options.seed_index,
  )
  if options.without_search:
    policy = policy.without_search()
  exported, spec = export(policy, options.sample)
  program = pathlib.Path(f"{options.output}.stablehlo")
  description = pathlib.Path(f"{options.output}.json")
  files.write_file(program, bytes(exported.serialize()))
  files.write_file(description, json.dumps(spec, indent=2) + "\n")
  print(
    f"the policy of {policy.name} after {policy.env_steps:,} env steps is in"
    f" {program}, its description in {description}"
  )
  return 0


def export(
  policy: "policies.Policy", sample: bool = False
) -> "tuple[jax.export.Exported, dict[str, Any]]":
  """Exports the greedy policy as a function of a batch of any size.

  The function maps `(timestep, memory)` to `(action, memory)`. `timestep` is a
  dict of `observation`, `reward`, `discount` and `step_type` (0 FIRST, 1 MID,
  2 LAST, as in dm_env), each `[B, ...]`. `memory` is a list of `[B, ...]`:
  zeros at the first step, and then the memory that the last call returned. Rows
  whose `step_type` is FIRST ignore their memory. The action is the
  environment's, see `policies.Policy.act`. With `sample`, the function has a
  third argument, `[]` uint32: a seed, which should differ in each call.

  Returns:
    The function; and a JSON object with the shapes and dtypes of its inputs and
    outputs.

  Raises:
    types.ConfigError: the agent has no `greedy` step.
  """
  import jax
  import jax.export

  from seedx.agents import acting_step

  example = policy.initial_state(1)
  structure = jax.tree.structure(example)
  zeros = acting_step.zero_inputs(policy.spec, 1).timestep

  def act(
    timestep: dict[str, types.Tree],
    memory: "list[jax.Array]",
    seed: "jax.Array | None" = None,
  ) -> "tuple[types.Tree, list[jax.Array]]":
    observation = jax.tree.unflatten(
      jax.tree.structure(zeros.observation),
      jax.tree.leaves(timestep["observation"]),
    )
    action, state = policy.act(
      dm_env.TimeStep(**timestep | {"observation": observation}),
      jax.tree.unflatten(structure, memory),
      None if seed is None else jax.random.key(seed),
    )
    return action, jax.tree.leaves(state)

  (size,) = jax.export.symbolic_shape("b")

  def shaped(leaf: Any) -> "jax.ShapeDtypeStruct":
    return jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype)

  timestep = _with_lists(zeros._asdict())
  inputs = jax.tree.map(shaped, (timestep, jax.tree.leaves(example)))
  seed = [jax.ShapeDtypeStruct((), np.uint32)] if sample else []
  exported = jax.export.export(jax.jit(act), platforms=_PLATFORMS)(
    *inputs, *seed
  )
  action, _ = jax.tree.unflatten(exported.out_tree, exported.out_avals)
  env = policy.env
  return exported, {
    "experiment": policy.name,
    "env": env.env,
    "env_options": opponents.in_words(env.env_options),
    "observation_transform": env.observation_transform,
    "info_keys": list(env.info_keys),
    "env_steps": policy.env_steps,
    "greedy": not sample,
    "search": policy.agent.without_search is not None,
    "step_type": {kind.name: int(kind) for kind in dm_env.StepType},
    "timestep": jax.tree.map(_in_json, inputs[0]),
    "memory": [_in_json(leaf) for leaf in inputs[1]],
    "action": jax.tree.map(
      _bounded,
      _with_lists(action),
      _with_lists(policy.actions.native),
    ),
  }


def _with_lists(nest: types.Tree) -> types.Tree:
  """Converts the tuples of a nest to lists, which JSON keeps."""
  if isinstance(nest, dict):
    return {key: _with_lists(value) for key, value in nest.items()}
  if isinstance(nest, tuple | list):
    return [_with_lists(value) for value in nest]
  return nest


def _bounded(leaf: Any, spec: dm_env.specs.BoundedArray) -> dict[str, Any]:
  """Describes an array of actions; None stands for an infinite bound."""
  low, high = (
    np.where(np.isfinite(bound), bound.astype(object), np.array(None)).tolist()
    for bound in (spec.minimum, spec.maximum)
  )
  return {**_in_json(leaf), "minimum": low, "maximum": high}


def _in_json(leaf: Any) -> dict[str, Any]:
  """Returns an array's dtype, and its shape without the batch axis."""
  return {"shape": list(leaf.shape[1:]), "dtype": str(np.dtype(leaf.dtype))}
