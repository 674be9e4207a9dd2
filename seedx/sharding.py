"""The mesh of learner cores, its arrays, and programs for each core."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import (
  Mesh,
  NamedSharding,
  PartitionSpec,
  SingleDeviceSharding,
)

from seedx import types

CORES = "cores"

REPLICATED = PartitionSpec()
# An unroll's batch axis is the second; its core state has no time axis.
_STEPS: Any = PartitionSpec(None, CORES)
_BATCH: Any = PartitionSpec(CORES)
UNROLL = types.Unroll(
  inputs=_STEPS,
  action=_STEPS,
  extras=_STEPS,
  version=_STEPS,
  core_state=_BATCH,
)
SAMPLE = types.Sample(unroll=UNROLL, importance_weight=_BATCH)
SHARE = types.Share(data=UNROLL, priorities=_BATCH, origin=_BATCH)


def devices(indices: Sequence[int], purpose: str) -> list[jax.Device]:
  """Returns the local devices with these indices.

  Args:
    indices: one or more different indices.
    purpose: purpose of the devices in error messages, such as "learner".

  Raises:
    types.ConfigError: a device does not exist, or occurs twice.
  """
  local = jax.local_devices()
  if not indices or sorted(set(indices)) != sorted(indices):
    raise types.ConfigError(
      f"expected one or more different {purpose} devices, found {list(indices)}"
    )
  if min(indices) < 0 or max(indices) >= len(local):
    raise types.ConfigError(
      f"expected {purpose} devices from 0 to {len(local) - 1}, found"
      f" {list(indices)}: this machine has {len(local)} {local[0].platform}"
      " devices"
    )
  return [local[i] for i in indices]


def mesh(cores: Sequence[jax.Device]) -> Mesh:
  """Returns a mesh with one axis, `CORES`."""
  return Mesh(np.asarray(cores), (CORES,))


def replicate(nest: types.Tree, over: Mesh) -> types.Tree:
  """Copies a nest to all cores of a mesh; all hosts must have equal nests."""
  on_all = NamedSharding(over, REPLICATED)
  if on_all.is_fully_addressable:
    return jax.device_put(nest, on_all)

  # `jax.device_put` would compare the values of all hosts; all would have to
  # call it at the same time.
  def copies(leaf: jax.Array) -> jax.Array:
    local = [jax.device_put(leaf, core) for core in over.local_devices]
    return jax.make_array_from_single_device_arrays(leaf.shape, on_all, local)

  return jax.tree.map(copies, nest)


def put(nest: types.Tree, device: jax.Device) -> types.Tree:
  """Moves a nest of JAX or NumPy arrays to a device of this process.

  Arrays that are already there are returned unchanged, because for them
  `jax.device_put` takes 20 times as long as this check.
  """
  target = SingleDeviceSharding(device)

  def move(leaf: jax.typing.ArrayLike) -> jax.Array:
    if (
      isinstance(leaf, jax.Array) and leaf.committed and leaf.sharding == target
    ):
      return leaf
    return jax.device_put(leaf, device)

  return jax.tree.map(move, nest)


def begin_copy(array: jax.Array, device: jax.Device) -> None:
  """Begins the copy of an accelerator's array; `np.asarray` then waits for it.

  The copy thus begins as soon as the array is computed, not when a thread asks
  for it. On CPU, where nothing is copied, the call would take 8 us.
  """
  if device.platform != "cpu":
    array.copy_to_host_async()


def own_shards(array: jax.Array) -> dict[jax.Device, jax.Array]:
  """Returns the shards of an array on the devices of this process."""
  return {x.device: x.data for x in array.addressable_shards}


def local(nest: types.Tree) -> types.Tree:
  """Returns the copy of a replicated nest on this host's first core."""
  return jax.tree.map(lambda leaf: leaf.addressable_data(0), nest)


def per_core(
  function: Callable[..., Any],
  over: Mesh,
  in_specs: types.Tree,
  out_specs: types.Tree,
  donate_argnums: int | tuple[int, ...] = (),
) -> jax.stages.Wrapped:
  """Returns a jitted function that runs `function` on every core's shards.

  Outputs that `out_specs` replicates must be equal on all cores, for example by
  `jax.lax.psum`. JAX's check of this (`check_vma`) is off, because it refuses
  every `scan` that starts from a constant, as RLax's do.

  Args:
    function: function of one core's arrays; it may use collectives over
      `CORES`.
    over: mesh of cores.
    in_specs: tuple of partition specs, a prefix of the arguments.
    out_specs: partition specs, a prefix of the results.
    donate_argnums: indices of arguments whose memory the results may reuse.
  """
  return jax.jit(
    jax.shard_map(
      function,
      mesh=over,
      in_specs=in_specs,
      out_specs=out_specs,
      check_vma=False,
    ),
    donate_argnums=donate_argnums,
  )


def assemble(
  shards: Sequence[types.Tree], over: Mesh, specs: types.Tree
) -> types.Tree:
  """Joins the arrays of all cores into global arrays, without a copy.

  Args:
    shards: one nest of arrays per core of this host, in the mesh's order.
    over: mesh of cores.
    specs: partition specs, a prefix of the nest; each shards one axis, or none
      if JAX may regard the cores' arrays as copies of one array.
  """
  if over.devices.size == 1:
    return shards[0]

  def join(spec: PartitionSpec, *leaves: jax.Array) -> jax.Array:
    shape = list(leaves[0].shape)
    if spec != REPLICATED:
      shape[tuple(spec).index(CORES)] *= over.devices.size
    return jax.make_array_from_single_device_arrays(
      tuple(shape), NamedSharding(over, spec), list(leaves)
    )

  return jax.tree.map(
    lambda spec, *nests: jax.tree.map(functools.partial(join, spec), *nests),
    specs,
    *shards,
  )


def size(nest: types.Tree, specs: types.Tree) -> int:
  """Returns the length of the axis that the specs shard, equal in all leaves.

  Args:
    nest: nest of arrays.
    specs: partition specs, a prefix of the nest; each shards one axis.
  """
  lengths = jax.tree.map(
    lambda spec, subtree: [
      leaf.shape[tuple(spec).index(CORES)] for leaf in jax.tree.leaves(subtree)
    ],
    specs,
    nest,
  )
  return int(jax.tree.leaves(lengths)[0])


def shard(
  nest: types.Tree, specs: types.Tree, index: int | jax.Array, parts: int
) -> types.Tree:
  """Returns one of `parts` equal parts of a nest.

  Args:
    nest: nest of arrays.
    specs: partition specs, a prefix of the nest; each leaf is split along the
      axis that its spec shards, or is in each part if its spec shards none.
    index: index of the part, from 0; may be traced.
    parts: number of parts.

  Raises:
    types.ConfigError: `parts` does not divide an axis.
  """

  def part(spec: PartitionSpec, leaf: jax.Array) -> jax.Array:
    if spec == REPLICATED:
      return leaf
    axis = tuple(spec).index(CORES)
    if leaf.shape[axis] % parts:
      raise types.ConfigError(
        f"expected a batch that {parts} parts divide, found"
        f" {leaf.shape[axis]} unrolls"
      )
    if parts == 1:
      return leaf
    size = leaf.shape[axis] // parts
    return jax.lax.dynamic_slice_in_dim(leaf, index * size, size, axis)

  return jax.tree.map(
    lambda spec, subtree: jax.tree.map(functools.partial(part, spec), subtree),
    specs,
    nest,
  )
