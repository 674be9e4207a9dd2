"""Acts for environments of the same process, and assembles their unrolls."""

import jax
import numpy as np

from seedx import envs, metrics, types
from seedx.agents import base
from seedx.runtime import unrolls


class Programs:
  """The jitted functions of local actors, which any number of them share.

  Attributes:
    agent: what acts.
    spec: of the environments.
    layout: the unroll store of each actor.
  """

  def __init__(
    self,
    agent: base.Agent,
    spec: types.EnvironmentSpec,
    layout: unrolls.Layout,
  ) -> None:
    """Compiles nothing before the first step."""
    self.agent = agent
    self.spec = spec
    self.layout = layout

    def act(
      store: unrolls.Store,
      acting: types.Tree,
      version: jax.Array,
      rng_key: jax.Array,
      batch: unrolls.Batch,
    ) -> tuple[unrolls.Store, jax.Array]:
      step_key = jax.random.fold_in(rng_key, batch.count[0])
      return unrolls.act(agent, layout, store, acting, version, step_key, batch)

    def unrolled(store: unrolls.Store, *arguments: types.Tree) -> types.Unroll:
      slot, count = arguments[-1].slot, arguments[-1].count
      store, _ = act(store, *arguments)
      empty = unrolls.empty_unrolls(store, layout.num_slots)
      return unrolls.collect(layout, store, empty, slot, count, slot)

    self.act = jax.jit(act, donate_argnums=0)
    self.unrolled = jax.jit(unrolled)

  def empty(self) -> unrolls.Store:
    """A store of zeros."""
    agent = self.agent
    acting = jax.eval_shape(
      lambda key: agent.acting(agent.init(key)), jax.random.key(0)
    )
    return unrolls.empty(
      agent, base.zero_inputs(self.spec, 1), acting, self.layout
    )

  @property
  def window(self) -> int | None:
    """The agent's window, if its actors say how much each one is worth."""
    return self.agent.window if self.agent.priorities else None

  def item(self) -> types.Unroll:
    """The shapes of the unrolls `[L, N, ...]` that finish together."""
    return jax.eval_shape(
      lambda: unrolls.empty_unrolls(self.empty(), self.layout.num_slots)
    )


class LocalActor:
  """Environments that step all together, and the store of their unrolls.

  Call `observe` and `act` in turn.

  Attributes:
    device: where it acts.
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
  ) -> None:
    """Starts the environments.

    Args:
      programs: what it runs; their layout says how many environments.
      env: which environment.
      seed: environment k is seeded with `seed + k`.
      rng_key: of this actor alone.
      device: where it acts.
      waits: counts the time that is spent waiting for environments.
      exploration: `[N]`, see `types.Inputs`; None for `Agent.exploration`.
      num_threads: threads that step the environments.

    Raises:
      types.ConfigError: the environment cannot be made.
    """
    num_envs = programs.layout.num_slots
    self.device = device
    self._environment = envs.make(
      env, num_envs, seed=seed, num_threads=num_threads
    )
    self._programs = programs
    self._waits = waits
    self._slot = np.arange(num_envs, dtype=np.int32)
    self._count = np.zeros(num_envs, np.int32)
    self._rng_key = jax.device_put(rng_key, device)
    store = programs.empty()
    if exploration is not None:
      store = store._replace(exploration=exploration)
    self._store = jax.device_put(store, device)
    self._environment.reset()

  def observe(
    self, acting: types.Tree, version: np.int32
  ) -> tuple[types.Rows, types.Unroll | None]:
    """Waits for all environments' next time steps.

    Args:
      acting: the newest parameters that this actor has, on its device.
      version: theirs.

    Returns:
      The rows `[N, ...]`, and the unrolls `[L, N, ...]` that end with them,
      if any do. The last step of an unroll needs no action: what is put there
      is thrown away, so that the action proper can come from what is learned
      meanwhile.
    """
    with self._waits.timed(metrics.WAIT_REQUESTS):
      rows = self._environment.recv()
    self._rows = rows
    unroll = None
    if self._programs.layout.finished(self._count[:1])[0]:
      unroll = self._programs.unrolled(
        self._store, acting, version, self._rng_key, self._batch()
      )
    return rows, unroll

  def act(self, acting: types.Tree, version: np.int32) -> None:
    """Acts on what was observed."""
    self._store, action = self._programs.act(
      self._store, acting, version, self._rng_key, self._batch()
    )
    self._count += 1
    self._environment.send(self._rows.index, np.asarray(action))

  def close(self) -> None:
    """Ends the environments."""
    self._environment.close()

  def _batch(self) -> unrolls.Batch:
    # JAX reads its arguments later, when these counts have gone on.
    return unrolls.Batch(self._slot, self._count.copy(), self._rows.timestep)
