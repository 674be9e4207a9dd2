"""The local actor: steps environments in this process, and makes unrolls."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from seedx import envs, metrics, types
from seedx.acting import episodes, unroll_store
from seedx.agents import acting_step, base
from seedx.envs.processes import restarting
from seedx.on_cpu import random_keys


@dataclasses.dataclass(frozen=True)
class WorkersConfig:
  """Settings of workers, which act and compute gradients.

  Attributes:
    num_workers: number of workers, each of which acts and learns.
    envs_per_worker: number of environments of each worker.
    unroll_length: number of env steps of each environment in an unroll (T).
  """

  num_workers: int = types.setting(4, changes="resume", low=1, high=2**10)
  envs_per_worker: int = types.setting(16, low=1, high=2**20)
  unroll_length: int = types.setting(16, low=1, high=2**20)

  def __post_init__(self) -> None:
    types.check_settings(self)

  @property
  def num_envs(self) -> int:
    """Number of environments of all workers."""
    return self.num_workers * self.envs_per_worker

  @property
  def batch_steps(self) -> int:
    """Number of env steps in a worker's batch of unrolls."""
    return self.envs_per_worker * self.unroll_length

  def programs(
    self, agent: base.Agent, spec: types.EnvironmentSpec
  ) -> "Programs":
    """Returns the jitted functions of the workers' actors."""
    return Programs.of(agent, spec, self.unroll_length, self.envs_per_worker)


class Programs:
  """The jitted functions that local actors share.

  Attributes:
    agent: the agent that acts.
    spec: specification of the environments.
    layout: layout of each actor's unroll store.
    act: `(store, acting, version, rng_key, batch) -> (store, action)`, which
      donates the store, see `unroll_store.act`. `rng_key` is the actor's;
      each step derives its key from it and the step's count.
    unrolled: function with the arguments of `act`, for a batch whose steps end
      unrolls. `unrolled` returns the unrolls, and leaves the store unchanged.
    priorities: function that computes priorities, see `base.priorities`.
  """

  def __init__(
    self,
    agent: base.Agent,
    spec: types.EnvironmentSpec,
    layout: unroll_store.Layout,
  ) -> None:
    """Makes the functions; `warm_up` compiles them."""
    self.agent = agent
    self.spec = spec
    self.layout = layout

    def act(
      agent: base.Agent,
      store: unroll_store.Store,
      acting: types.Tree,
      version: jax.Array,
      rng_key: jax.Array,
      batch: unroll_store.Batch,
    ) -> tuple[unroll_store.Store, jax.Array]:
      actor_key = random_keys.unrolled(rng_key)
      step_key = jax.random.fold_in(actor_key, batch.count[0])
      return unroll_store.act(
        agent, layout, store, acting, version, step_key, batch
      )

    def unrolled(
      store: unroll_store.Store, *arguments: types.Tree
    ) -> types.Unroll:
      slot, count = arguments[-1].slot, arguments[-1].count
      store, _ = act(base.at_last_step(agent), store, *arguments)
      return unroll_store.unrolls(layout, store, slot, count)

    self.act = jax.jit(functools.partial(act, agent), donate_argnums=0)
    self.unrolled = jax.jit(unrolled)
    self.priorities = base.priorities(agent)

  @classmethod
  def of(
    cls,
    agent: base.Agent,
    spec: types.EnvironmentSpec,
    unroll_length: int,
    num_envs: int,
  ) -> "Programs":
    """Makes the functions of actors with `num_envs` environments each."""
    layout = unroll_store.Layout.of(agent, unroll_length, num_envs)
    return cls(agent, spec, layout)

  def warm_up(self, acting: types.Tree, device: jax.Device) -> types.Unroll:
    """Compiles `act` and `unrolled` for a device; returns example unrolls.

    The acting parameters must be on the same device as in later calls.
    """
    slot = np.arange(self.layout.num_slots, dtype=np.int32)
    inputs = acting_step.zero_inputs(self.spec, len(slot))
    batch = unroll_store.Batch(slot, np.zeros_like(slot), inputs.timestep)
    key = jax.device_put(jax.random.key(0), device)
    arguments = acting, np.int32(0), key, batch
    store = jax.device_put(self.empty(), device)
    unroll = self.unrolled(store, *arguments)
    self.act(store, *arguments)
    return unroll

  def acting(self) -> types.Tree:
    """Returns the shapes and dtypes of the acting parameters."""
    agent = self.agent
    return jax.eval_shape(
      lambda key: agent.acting(agent.init(key)), jax.random.key(0)
    )

  def empty(self) -> unroll_store.Store:
    """Returns a store of zeros, with initial core states."""
    inputs = acting_step.zero_inputs(self.spec, 1)
    return unroll_store.empty(self.agent, inputs, self.acting(), self.layout)

  def example(self) -> types.Share:
    """Returns a share of zeros, see `share`."""
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), self.share())

  def share(self) -> types.Share:
    """Returns the shapes and dtypes of a share: N unrolls of one actor."""
    agent = self.agent

    def share(rng_key: jax.Array) -> types.Share:
      num_slots = self.layout.num_slots
      slot = jnp.zeros(num_slots, jnp.int32)
      unroll = unroll_store.unrolls(self.layout, self.empty(), slot, slot)
      acting = agent.acting(agent.init(rng_key))
      return types.Share(
        agent.needs.stored(unroll),
        self.priorities(acting, unroll),
        agent.needs.origin(np.zeros(num_slots, np.int32), 0),
      )

    return jax.eval_shape(share, jax.random.key(0))


class LocalActor:
  """An actor whose environments step in lock step.

  Call `observe` and `act` in turn.

  Attributes:
    device: the device that acts.
  """

  def __init__(
    self,
    programs: Programs,
    env: envs.Config,
    seed: int,
    rng_key: jax.Array,
    device: jax.Device,
    waits: metrics.Waits,
    exploration: np.ndarray | None = None,
    num_threads: int = 1,
    restarts: restarting.Restarts | None = None,
  ) -> None:
    """Starts the environments.

    Args:
      programs: jitted functions; their layout has the number N of environments.
      env: the environment.
      seed: seed of environment 0; environment k has `seed + k`.
      rng_key: random key; the actor's own key also depends on the seed.
      device: the device that acts.
      waits: measures the wait for environments.
      exploration: `[N]`, see `types.Inputs`; None for `Agent.exploration`.
      num_threads: number of threads that step EnvPool's environments, or of
        processes that step the user's own.
      restarts: restarts after failures of the user's environments; None for no
        restarts.

    Raises:
      types.ConfigError: the environment cannot be made.
    """
    num_envs = programs.layout.num_slots
    self.device = device
    self._seeds = np.arange(seed, seed + num_envs, dtype=np.int32)
    self._environment = envs.make(
      env, num_envs, seed=seed, num_threads=num_threads, restarts=restarts
    )
    self._programs = programs
    self._waits = waits
    self._slot = np.arange(num_envs, dtype=np.int32)
    self._count = np.zeros(num_envs, np.int32)
    actor_key = jax.random.fold_in(rng_key, seed)
    self._rng_key = jax.device_put(actor_key, device)
    store = programs.empty()
    if exploration is not None:
      store = store._replace(exploration=exploration)
    self._store = jax.device_put(store, device)
    self._environment.reset()

  def observe(
    self, acting: types.Tree, version: np.int32
  ) -> tuple[types.Rows, types.Unroll | None]:
    """Waits for the next time steps of all environments.

    Learning does not use the action at an unroll's last step. So `act` may
    compute that action with newer parameters, which were learned from the
    unroll.

    Args:
      acting: acting parameters, on this actor's device.
      version: version of the acting parameters.

    Returns:
      The `[N, ...]` rows; and the `[L, N, ...]` unrolls that end with them, or
      None if no unroll ends.
    """
    with self._waits.timed(metrics.WAIT_ENVIRONMENTS):
      rows = self._environment.recv()
    self._rows = rows
    unroll = None
    if self._programs.layout.finished(self._count[:1])[0]:
      unroll = self._programs.unrolled(
        self._store, acting, version, self._rng_key, self._batch()
      )
    return rows, unroll

  @property
  def origin(self) -> types.Tree:
    """Origin of the unrolls that `observe` returned, see `types.Share`.

    Valid until `act` is called. An environment's number is its initial seed.
    """
    number = self._programs.layout.number(self._count)
    return self._programs.agent.needs.origin(self._seeds, number)

  def act(self, acting: types.Tree, version: np.int32) -> None:
    """Acts on the rows that `observe` returned."""
    self._store, action = self._programs.act(
      self._store, acting, version, self._rng_key, self._batch()
    )
    self._count += 1
    self._environment.send(self._rows.index, np.asarray(action))

  def close(self) -> None:
    """Closes the environments."""
    self._environment.close()

  def _batch(self) -> unroll_store.Batch:
    # The counts are copied: JAX may read them after `act` has incremented them.
    return unroll_store.Batch(
      self._slot, self._count.copy(), self._rows.timestep
    )


class Backlog:
  """An actor's steps in N environments since its last report."""

  def __init__(self, num_envs: int, length: int, num_info: int = 0) -> None:
    """Starts without steps; `take` must follow after at most `length` steps.

    `num_info` is the number E of logged entries of `info`.
    """
    self._num_envs = num_envs
    self._num_info = num_info
    self._length = length
    self._rows: list[types.Rows] = []

  def add(self, rows: types.Rows) -> None:
    """Adds one step of all environments."""
    self._rows.append(rows)

  def take(self) -> tuple[episodes.Steps, int]:
    """Returns the added steps and clears them.

    Returns:
      `[N, length]` steps, padded at the end with zeros and with NaN as returns;
      and the number of steps of each environment.
    """
    rows, self._rows = self._rows, []
    shape = (self._num_envs, self._length)
    steps = episodes.Steps(
      step_type=np.zeros(shape, np.uint8),
      reward=np.zeros(shape, np.float32),
      discount=np.zeros(shape, np.float32),
      episode_return=np.full(shape, np.nan, np.float32),
      info=(
        np.full((*shape, self._num_info), np.nan, np.float32)
        if self._num_info
        else ()
      ),
    )
    for time, row in enumerate(rows):
      steps.step_type[:, time] = row.timestep.step_type
      steps.reward[:, time] = row.timestep.reward
      steps.discount[:, time] = row.timestep.discount
      steps.episode_return[:, time] = row.episode_return
      if self._num_info:
        steps.info[:, time] = row.info
    return steps, len(rows)
