"""The learner: takes batches of unrolls, updates, publishes parameters."""

import threading
from collections.abc import Callable, Iterable, Sequence

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from seedx import losses, sharding, types
from seedx.agents import base

Publish = Callable[[types.Tree, int], None]
# `types.Unroll`, or `types.Sample` for an agent with a `window`.
Batch = types.Unroll | types.Sample
Program = Callable[
  [base.AgentState, jax.Array, jax.Array, Batch],
  tuple[base.AgentState, types.LossOutput],
]


class Learner:
  """Updates an agent's state, sharded over the cores of a mesh.

  Attributes:
    steps: updates so far; also the version of the newest parameters.
    learned_steps: env steps learned from; resets are none.
    state: the newest state, on every core.
    cores: the devices of the mesh, in order.
    metrics: the newest update's scalars by name.
  """

  def __init__(
    self,
    agent: base.Agent,
    mesh: jax.sharding.Mesh,
    state: base.AgentState,
    rng_key: jax.Array,
    micro_batches: int = 1,
  ) -> None:
    """Compiles nothing before the first update.

    Args:
      agent: made with `axis_name=sharding.CORES`.
      mesh: the learner cores.
      state: where to start from.
      rng_key: for all updates.
      micro_batches: parts of each core's batch, learned one by one so that an
        inference step on the same device finds a gap; the gradients are those
        of the whole batch.

    Raises:
      types.ConfigError: `micro_batches` is less than 1, or more than 1 for an
        agent whose update is more than its gradients applied.
    """
    if micro_batches < 1:
      raise types.ConfigError(
        f"expected at least 1 micro-batch, found {micro_batches}"
      )
    if micro_batches > 1 and not agent.applies_once:
      raise types.ConfigError(
        "expected 1 micro-batch: this agent takes several steps on a batch and"
        f" has minibatches of its own, found {micro_batches}"
      )
    self.steps = 0
    self.learned_steps = 0.0
    self.state = sharding.replicate(state, mesh)
    # Held while the state and what is counted of it change together.
    self._changing = threading.Lock()
    self.metrics: dict[str, float] = {}
    self.cores = list(mesh.devices)
    self._acting = jax.jit(agent.acting)
    self._mesh = mesh
    self._specs = _specs(agent)
    self._rng_key = rng_key
    # Of updates under way.
    self._pending: list[types.LossOutput] = []
    self._priorities: jax.Array | None = None
    self._update = (
      _whole(agent, mesh)
      if micro_batches == 1
      else _accumulated(agent, mesh, micro_batches)
    )

  def warm_up(self, batch: Sequence[Batch]) -> None:
    """Compiles for batches of this shape; the state stays."""
    self.acting()
    whole = sharding.assemble(batch, self._mesh, self._specs)
    jax.block_until_ready(
      self._update(self.state, jnp.int32(0), self._rng_key, whole)
    )

  def run(
    self,
    batches: Iterable[Sequence[Batch]],
    publish: Publish,
    stop: threading.Event,
  ) -> None:
    """Learns until there is no next batch or it is stopped.

    Args:
      batches: of each, a share `[L, B / cores, ...]` on each core.
      publish: is given `agent.acting` of the state and its version.
      stop: ends it after the update that is under way.
    """
    for batch in batches:
      self.learn(batch)
      publish(self.acting(), self.steps)
      if stop.is_set():
        break
    self.finish()

  def learn(self, batch: Sequence[Batch]) -> None:
    """Makes one update of a batch that lies on the cores in shards."""
    whole = sharding.assemble(batch, self._mesh, self._specs)
    key = jax.random.fold_in(self._rng_key, self.steps)
    version = jnp.int32(self.steps)
    state, output = self._update(self.state, version, key, whole)
    with self._changing:
      self.state = state
      self.steps += 1
      self._pending.append(output)
    # One update may be under way while the next is prepared, and no more:
    # inference on the same device would wait for all of them.
    self._finish(keep=1)
    self._priorities = output.priorities

  def priorities(self) -> list[jax.Array]:
    """`LossOutput.priorities` of the newest batch, each core's own.

    Raises:
      ValueError: the agent, or an update in micro-batches, has none.
    """
    if self._priorities is None:
      raise ValueError("expected priorities of the newest batch, found none")
    own = {x.device: x.data for x in self._priorities.addressable_shards}
    return [own[core] for core in self.cores]

  def acting(self, state: base.AgentState | None = None) -> types.Tree:
    """What acts by a state, by the newest one if None."""
    return self._acting(self.state if state is None else state)

  def saved(self) -> types.Tree:
    """What a checkpoint keeps of it; any thread may ask."""
    with self._changing:
      state, steps, learned = self.state, self.steps, self.learned_steps
      pending = list(self._pending)
    return {
      "agent": state,
      "rng_key": jax.random.key_data(self._rng_key),
      "steps": np.int64(steps),
      "learned_steps": np.float64(
        learned + sum(float(output.weight) for output in pending)
      ),
    }

  def restore(self, saved: types.Tree) -> None:
    """Goes on from what was saved; before it learns."""
    self.state = sharding.replicate(saved["agent"], self._mesh)
    self._rng_key = jax.random.wrap_key_data(jnp.asarray(saved["rng_key"]))
    self.steps = int(saved["steps"])
    self.learned_steps = float(saved["learned_steps"])

  def finish(self) -> None:
    """Waits for the update that is under way, and reads what it says."""
    self._finish(keep=0)

  def _finish(self, keep: int) -> None:
    """Reads what all updates say but the newest `keep`."""
    while len(self._pending) > keep:
      output = jax.device_get(self._pending[0])
      self.metrics = {k: float(v) for k, v in output.metrics.items()}
      with self._changing:
        self.learned_steps += float(output.weight)
        del self._pending[0]


def _whole(agent: base.Agent, mesh: jax.sharding.Mesh) -> Program:
  """The agent's own update of the whole batch."""

  def update(
    state: base.AgentState,
    version: jax.Array,
    rng_key: jax.Array,
    batch: Batch,
  ) -> tuple[base.AgentState, types.LossOutput]:
    state, output = agent.update(state, _core_key(rng_key), batch)
    return state, _with_lag(output, version, batch)

  return sharding.per_core(
    update,
    mesh,
    (sharding.REPLICATED,) * 3 + (_specs(agent),),
    (sharding.REPLICATED, _LOSS_OUTPUT),
  )


def _accumulated(
  agent: base.Agent, mesh: jax.sharding.Mesh, micro_batches: int
) -> Program:
  """Gradients of parts of the batch, weighed, added up and applied once."""

  def part(
    state: base.AgentState,
    version: jax.Array,
    rng_key: jax.Array,
    batch: Batch,
    index: jax.Array,
  ) -> tuple[types.Tree, types.LossOutput]:
    batch = sharding.shard(batch, _specs(agent), index, micro_batches)
    key = jax.random.fold_in(_core_key(rng_key), index)
    gradients, output = agent.gradients(state, key, batch)
    output = _with_lag(output, version, batch)
    gradients, metrics = jax.tree.map(
      lambda leaf: leaf * output.weight, (gradients, output.metrics)
    )
    return gradients, types.LossOutput(output.weight, metrics)

  def finish(
    state: base.AgentState, gradients: types.Tree, output: types.LossOutput
  ) -> tuple[base.AgentState, types.LossOutput]:
    weight = jnp.maximum(output.weight, 1e-8)
    gradients, metrics = jax.tree.map(
      lambda leaf: leaf / weight, (gradients, output.metrics)
    )
    state = agent.apply(state, gradients)
    return state, types.LossOutput(output.weight, metrics)

  one = sharding.REPLICATED
  gradients_of = sharding.per_core(
    part, mesh, (one, one, one, _specs(agent), one), one
  )
  add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0)
  finish = jax.jit(finish)

  def update(
    state: base.AgentState,
    version: jax.Array,
    rng_key: jax.Array,
    batch: Batch,
  ) -> tuple[base.AgentState, types.LossOutput]:
    total = gradients_of(state, version, rng_key, batch, jnp.int32(0))
    for index in range(1, micro_batches):
      # Waiting leaves the device free for an inference step in between.
      jax.block_until_ready(total)
      more = gradients_of(state, version, rng_key, batch, jnp.int32(index))
      total = add(total, more)
    return finish(state, *total)

  return update


_LOSS_OUTPUT = types.LossOutput._make(
  [
    sharding.REPLICATED,
    sharding.REPLICATED,
    PartitionSpec(sharding.CORES),
  ]
)


def _core_key(rng_key: jax.Array) -> jax.Array:
  return jax.random.fold_in(rng_key, jax.lax.axis_index(sharding.CORES))


def _specs(agent: base.Agent) -> types.Tree:
  """How a batch of the agent lies on the cores."""
  return sharding.UNROLL if agent.window is None else sharding.SAMPLE


def _with_lag(
  output: types.LossOutput, version: jax.Array, batch: Batch
) -> types.LossOutput:
  """Adds how many updates ago, on average, the experience was acted."""
  unroll = batch.unroll if isinstance(batch, types.Sample) else batch
  first = unroll.inputs.timestep.step_type[1:] == int(dm_env.StepType.FIRST)
  weight = 1.0 - first.astype(jnp.float32)
  lag = (version - unroll.version[:-1]).astype(jnp.float32)
  share = losses.mean_share(lag, weight, sharding.CORES)
  mean = losses.sum_over_cores(share, sharding.CORES)
  return output._replace(metrics=output.metrics | {"policy_lag": mean})
