"""One training on one core, as pure functions: act, step, learn."""

from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import tree

from seedx import envs, sharding, types
from seedx.agents import acting_step, base
from seedx.envs import env_specs, functional
from seedx.learning import learner, plans, replay_source, updates
from seedx.on_cpu import random_keys
from seedx.pipelines.anakin import fault_counts


class Keys(NamedTuple):
  """The random keys of a training, which never change.

  Attributes:
    env: `[N]` keys of the environments; each core has its environments' keys.
    acting: `[]` key.
    learner: `[...]` uint32, see `updates.Inputs.rng_key`.
    replay: `[]` key.
  """

  env: jax.Array
  acting: jax.Array
  learner: jax.Array
  replay: jax.Array


class Step(NamedTuple):
  """One step of all environments.

  Attributes:
    unroll: `[N, ...]` `types.Unroll`, with the core state before the step.
    episode_return: `[N]` float32, return of an episode that ended with this
      step; NaN elsewhere.
    episode_length: `[N]` int32, env steps of the episode so far.
    env_steps: `[]` int32, number of environments that took a step; the others
      were reset.
    info: `[N, E]` float32, see `types.Rows`.
    faults: `[N]` int32, see `fault_counts.masked`.
  """

  unroll: types.Unroll
  episode_return: jax.Array
  episode_length: jax.Array
  env_steps: jax.Array
  info: types.Tree
  faults: jax.Array


class State(NamedTuple):
  """The state of a training, all of which a checkpoint saves.

  Attributes:
    agent: the agent state.
    env: `[N, ...]` states of the environments.
    timestep: `[N, ...]` newest time steps, which have no action yet.
    acting: `[N, ...]` acting states.
    episode_return: `[N]` float32, returns of the current episodes so far.
    episode_length: `[N]` int32, env steps of the current episodes so far.
    past: `[L - T - 1, N, ...]` `types.Unroll`, the steps that the next unroll
      begins with, each with its core state.
    replay: `[cores, ...]` replays of the cores; () if there is none.
    member: `population.Member`; () without a population.
  """

  agent: base.AgentState
  env: types.Tree
  timestep: dm_env.TimeStep
  acting: acting_step.ActingState
  episode_return: jax.Array
  episode_length: jax.Array
  past: types.Tree
  replay: types.Tree
  member: types.Tree = ()


class Clock(NamedTuple):
  """The progress of a training, which is the same for all seeds.

  Attributes:
    time: number of steps of each environment so far, resets included.
    version: number of updates so far, skipped ones included.
  """

  time: types.Array
  version: types.Array


class Output(NamedTuple):
  """The results of a rollout and the updates after it, for the host's counts.

  Attributes:
    metrics: metrics of the last update, by name.
    weight: number of env steps learned from.
    skipped: number of updates that were skipped, see `updates.keep_finite`.
    episode_return: `[T, N]`, see `Step`.
    episode_length: `[T, N]`, see `Step`.
    env_steps: `[cores]`, number of env steps of the rollout on each core.
    info: `[T, N, E]`, see `Step`.
    faults: `[N]` int32, the faults of all steps.
    faulty_steps: `[cores]`, number of faulty steps on each core.
  """

  metrics: dict[str, jax.Array]
  weight: jax.Array
  skipped: jax.Array
  episode_return: jax.Array
  episode_length: jax.Array
  env_steps: jax.Array
  info: types.Tree
  faults: jax.Array
  faulty_steps: jax.Array


class Program:
  """The pure functions of one training on one core.

  Attributes:
    agent: the agent, made with the axis `sharding.CORES`.
    period: T, number of steps of a rollout.
    past: L - T - 1, number of an unroll's steps before its rollout.
    observation: spec of the environment's observation.
  """

  def __init__(
    self,
    env: envs.Config,
    agent: base.Config,
    num_envs: int,
    learner: learner.Config,
    plan: plans.Plan,
  ) -> None:
    """Makes the environment and the agent; `num_envs` is over all cores.

    Raises:
      types.ConfigError: the two cannot be made, or do not fit together.
    """
    self._environment = functional.make(env)
    if env.observation_transform or env.info_keys:
      raise types.ConfigError(
        "expected no observation_transform and no info_keys, which are not JAX"
        " functions"
      )
    self.observation = self._environment.observation
    self._spec = envs.spec(env)
    self._cores = learner.num_cores
    self._num_envs = num_envs // self._cores
    self.agent = plan.agent(agent, self._spec, sharding.CORES)
    self.period = learner.unroll_length
    self.past = self.agent.needs.time_steps(self.period) - self.period - 1
    self._exploration = self.agent.exploration(num_envs)
    self._replay: replay_source.CoreReplay | None = None
    if plan.replay is not None:
      cores = len(learner.cores())
      self._replay = plan.replay_of_core(self.agent, cores, self._spec)

  def recorded(self) -> types.Tree:
    """Returns experience from before the run, which all seeds share."""
    return () if self._replay is None else self._replay.replay.recorded()

  def init(self, agent: base.AgentState, keys: Keys) -> tuple[State, jax.Array]:
    """Returns the state of the training before its first rollout.

    The environments have already made the `past` steps before the rollout,
    whose faults are `[N]` int32.
    """
    fresh = functional.init(self._environment, keys.env)
    spec, rows = self._spec.action, (self._num_envs,)
    action = jnp.zeros((*rows, *spec.shape), spec.dtype)
    env, timestep, faults = self._step_environments(
      fresh, action, keys, 0, fresh, int(dm_env.StepType.LAST)
    )
    state = State(
      agent=agent,
      env=env,
      timestep=timestep,
      acting=acting_step.initial_state(self.agent, self._spec, self._num_envs),
      episode_return=jnp.zeros(rows),
      episode_length=jnp.zeros(rows, jnp.int32),
      past=(),
      replay=(),
    )
    state = jax.tree.map(jnp.asarray, state)
    start = Clock(jnp.int32(0), jnp.int32(0))
    state, past = self._rollout(state, keys, start, self.past)
    state = state._replace(past=past.unroll)
    faults |= jnp.bitwise_or.reduce(past.faults)
    if self._replay is None:
      return state, faults

    def share(state: State, keys: Keys) -> types.Share:
      state, unroll, _ = self._unroll(state, keys, start)
      return self._share(state, start, unroll)

    shapes = jax.eval_shape(share, state, keys)
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    replay = self._replay.replay.kept(self._replay.init(empty))
    replay = jax.tree.map(lambda x: x[None], replay)
    return state._replace(replay=replay), faults

  def advance(
    self,
    state: State,
    keys: Keys,
    clock: Clock,
    recorded: types.Tree,
    due: jax.Array,
  ) -> tuple[State, Output]:
    """Makes a rollout and one update; with a replay, `due` updates.

    `due` is `[]` int32, ignored without a replay.
    """
    state, unroll, steps = self._unroll(state, keys, clock)
    if self._replay is None:
      agent, output, skipped = self._update(
        state.agent, keys, clock.version, unroll
      )
      learned = output.metrics, output.weight, skipped.astype(jnp.int32)
      state = state._replace(agent=agent)
    else:
      state, learned = self._replayed(state, keys, clock, recorded, due, unroll)
    return state, Output(
      *learned,
      episode_return=steps.episode_return,
      episode_length=steps.episode_length,
      env_steps=jnp.sum(steps.env_steps)[None],
      info=steps.info,
      faults=jnp.bitwise_or.reduce(steps.faults),
      faulty_steps=jnp.sum(steps.faults > 0)[None],
    )

  def _unroll(
    self, state: State, keys: Keys, clock: Clock
  ) -> tuple[State, types.Unroll, Step]:
    """Makes a rollout; returns the unroll `[L, N, ...]` that ends with it."""
    state, steps = self._rollout(state, keys, clock, self.period)
    # Learning ignores the action of the last step. The next rollout acts on
    # that step again, with newer parameters.
    agent = base.at_last_step(self.agent)
    last, _ = self._act(agent, state, keys, clock, self.period)
    parts = state.past, steps.unroll, jax.tree.map(lambda x: x[None], last)
    unroll = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
    state = state._replace(
      past=jax.tree.map(
        lambda x: x[self.period : self.period + self.past], unroll
      )
    )
    core_state = jax.tree.map(lambda x: x[0], unroll.core_state)
    return state, unroll._replace(core_state=core_state), steps

  def _rollout(
    self, state: State, keys: Keys, clock: Clock, length: int
  ) -> tuple[State, Step]:
    """Steps all environments `length` times; returns `[length, ...]` steps."""
    fresh = functional.init(self._environment, keys.env)

    def step(state: State, offset: jax.Array) -> tuple[State, Step]:
      unroll, acting = self._act(self.agent, state, keys, clock, offset)
      time = clock.time + offset + 1
      previous = state.timestep.step_type
      env, timestep, faults = self._step_environments(
        state.env, unroll.action, keys, time, fresh, previous
      )
      first = timestep.step_type == int(dm_env.StepType.FIRST)
      total = jnp.where(first, 0, state.episode_return + timestep.reward)
      lengths = jnp.where(first, 0, state.episode_length + 1)
      last = timestep.step_type == int(dm_env.StepType.LAST)
      state = state._replace(
        env=env,
        timestep=timestep,
        acting=acting,
        episode_return=total,
        episode_length=lengths,
      )
      ended = jnp.where(last, total, jnp.nan)
      info = functional.last_info(
        self._environment, env, timestep, self._spec.log_info
      )
      steps = jnp.sum(~first)
      return state, Step(unroll, ended, lengths, steps, info, faults)

    return jax.lax.scan(step, state, jnp.arange(length))

  def _act(
    self,
    agent: base.Agent,
    state: State,
    keys: Keys,
    clock: Clock,
    offset: jax.Array | int,
  ) -> tuple[types.Unroll, acting_step.ActingState]:
    acting_key = random_keys.unrolled(keys.acting)
    key = jax.random.fold_in(acting_key, clock.time + offset)
    exploration = jnp.asarray(self._exploration)
    if self._cores > 1:
      core = jax.lax.axis_index(sharding.CORES)
      key = jax.random.fold_in(key, core)
      exploration = exploration.reshape(self._cores, -1)[core]
    inputs, core_state, output, acting = acting_step.take(
      agent,
      agent.acting(state.agent),
      key,
      state.timestep,
      state.acting,
      exploration,
    )
    version = jnp.full(self._num_envs, clock.version, jnp.int32)
    return types.Unroll(inputs, *output, version, core_state), acting

  def _step_environments(
    self,
    env: types.Tree,
    action: jax.Array,
    keys: Keys,
    time: jax.Array | int,
    fresh: types.Tree,
    previous: jax.Array | int,
  ) -> tuple[types.Tree, dm_env.TimeStep, jax.Array]:
    """Steps all environments, and masks faults; see `fault_counts.masked`."""
    times = jnp.full(self._num_envs, time, jnp.int32)
    env_keys = random_keys.unrolled(keys.env)
    env, timestep = functional.step(
      self._environment, env, action, env_keys, times
    )
    env, timestep, faults = fault_counts.masked(env, timestep, fresh, previous)
    observation = tree.map_structure(
      env_specs.seen, self._spec.observation, timestep.observation
    )
    return env, timestep._replace(observation=observation), faults

  def _update(
    self,
    agent: base.AgentState,
    keys: Keys,
    version: jax.Array,
    batch: types.Tree,
  ) -> Any:
    inputs = updates.Inputs(jnp.int32(version), keys.learner, batch)
    return updates.OnCore(self.agent).whole(agent, inputs)

  def _share(
    self, state: State, clock: Clock, unroll: types.Unroll
  ) -> types.Share:
    env = np.arange(self._num_envs, dtype=np.int32)
    number = jnp.int32(clock.time) // self.period
    share = types.Share(unroll, origin=self.agent.needs.origin(env, number))
    if self.agent.priorities is None:
      return share
    acting = self.agent.acting(state.agent)
    return share._replace(priorities=self.agent.priorities(acting, unroll))

  def _replayed(
    self,
    state: State,
    keys: Keys,
    clock: Clock,
    recorded: types.Tree,
    due: jax.Array,
    unroll: types.Unroll,
  ) -> tuple[State, Any]:
    """Adds an unroll to the replay, and makes the updates that are due."""
    core_replay = self._replay
    assert core_replay is not None
    core = jax.lax.axis_index(sharding.CORES)
    key = jax.random.fold_in(keys.replay, core)
    memory = core_replay.replay
    replay = memory.with_kept(
      recorded, jax.tree.map(lambda x: x[0], state.replay)
    )
    replay = core_replay.add(replay, self._share(state, clock, unroll))
    replay = memory.kept(replay)

    def update(index: jax.Array, carry: Any) -> Any:
      agent, replay, (_, weight, skipped) = carry
      version = clock.version + index
      whole = memory.with_kept(recorded, replay)
      sample, windows = core_replay.draw(whole, key, version, agent.clock)
      agent, output, skip = self._update(agent, keys, version, sample)
      whole = memory.update(whole, windows, output.priorities)
      learned = output.metrics, weight + output.weight, skipped + skip
      return agent, memory.kept(whole), learned

    sums = jnp.float32(0), jnp.int32(0)
    _, _, (shapes, _, _) = jax.eval_shape(
      update, jnp.int32(0), (state.agent, replay, ({}, *sums))
    )
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    agent, replay, learned = jax.lax.fori_loop(
      0, due, update, (state.agent, replay, (zeros, *sums))
    )
    replay = jax.tree.map(lambda x: x[None], replay)
    return state._replace(agent=agent, replay=replay), learned
