"""The trainings of all seeds as one program, and their counts on the host."""

import dataclasses
import functools
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from seedx import envs, metrics, sharding, types
from seedx import replay as replay_lib
from seedx.agents import base
from seedx.envs import finishing, functional
from seedx.learning import learner as learner_lib
from seedx.learning import plans, replay_source
from seedx.pipelines.anakin import fault_counts
from seedx.pipelines.anakin import population as population_lib
from seedx.pipelines.anakin.program import Clock, Keys, Output, Program, State
from seedx.runtime import (
  clocks,
  counters,
  process,
  process_parts,
  progress,
  seeding,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(process.Config):
  """The options of an Anakin run, which has one learner host.

  Attributes:
    env: the environment, made of JAX functions.
    num_envs: number of parallel environments of each training.
    num_seeds: number of simultaneous trainings, each of `total_steps`. Training
      k has the seed `seed + k`; metrics are means over all trainings.
    updates_per_call: number of rollouts, with their updates, in one call of the
      program. More rollouts mean fewer calls; each call costs time.
    reset_faulty_envs: whether an environment that returns a NaN or an infinity
      is reset, and that step is not learned from; if not, the run ends with an
      error.
    population: options of a population, whose members are trained in place of
      `num_seeds` equal agents.
    learner: the devices, which act and learn.
    replay: the replay; None for an agent that learns without one.
  """

  env: envs.Config = envs.Config("seedx:CartPole-v1")
  num_envs: int = types.setting(512, low=1, high=2**20)
  num_seeds: int = types.setting(1, low=1, high=2**16)
  updates_per_call: int = types.setting(1, low=1, high=2**20)
  reset_faulty_envs: bool = types.setting(False, changes="resume")
  population: population_lib.Config = population_lib.Config()
  learner: learner_lib.Config = learner_lib.Config()
  replay: replay_lib.Config | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    types.check_range("micro_batches", self.learner.micro_batches, 1, 1)
    types.check_range("hosts", self.learner.hosts, 1, 1)
    self.learner.check_divides("num_envs", self.num_envs, self.learner.parts)
    members = self.population.members
    if members > 1 and self.num_seeds > 1:
      raise types.ConfigError(
        f"expected members or num_seeds of 1, found {members} and"
        f" {self.num_seeds}; a population has a seed for each member"
      )
    if (members > 1) != bool(self.population.vary):
      raise types.ConfigError(
        "expected members of at least 2 together with vary, found"
        f" {members} and {', '.join(self.population.vary) or 'none'}"
      )

  @property
  def trainings(self) -> int:
    """The number of simultaneous trainings: seeds, or members."""
    return max(self.num_seeds, self.population.members)

  @property
  def plan(self) -> plans.Plan:
    """The amounts of experience of each training."""
    batch_steps = self.num_envs * self.learner.unroll_length
    return self.learner.plan(self.total_steps, batch_steps, self.replay)

  def learn(self, context: process.Context) -> process.Process:
    """Returns the only process: a program for environments and learning."""
    training = Training(self, context.wall_clock)
    acted = training.acted

    def steps() -> Iterator[None]:
      """Trains; yields after each call of the program."""
      while not acted.is_done:
        training.call()
        yield

    return process.Process(
      acted=acted,
      parts={"agent": training, "acted": acted},
      begin=training.begin,
      policy=training.policy,
      measures=[acted, training],
      steps=steps,
    )


class Training:
  """The trainings of a run in one program, as a part of the process.

  Attributes:
    acted: counts of experience: the mean env steps of a training, and the
      returns and lengths of all trainings.
  """

  def __init__(
    self, config: Config, wall_clock: clocks.WallClock | None = None
  ) -> None:
    """Makes the initial states; the first `call` compiles the program."""
    self._config = config
    self._one = Program(
      env=config.env,
      agent=config.agent,
      num_envs=config.num_envs,
      learner=config.learner,
      plan=config.plan,
    )
    num_seeds = config.trainings
    self._population: population_lib.Population | None = None
    if num_seeds > config.num_seeds:
      self._population = population_lib.Population(
        config.population, config.agent, config.num_envs, config.seed
      )
    self._returns = {
      config.seed + k: metrics.Latest() for k in range(num_seeds)
    }
    self.acted = self._counts(wall_clock)
    every = np.ones(num_seeds * config.num_envs, np.bool_)
    self._environments = self.acted.join(every)
    self._mesh = sharding.mesh(config.learner.cores())
    agent, self._keys = self._put(
      _start(config, self._one.agent), (self._spec(), self._key_specs)
    )
    self._init = sharding.per_core(
      self._of_all(self._one.init, 2),
      self._mesh,
      (self._spec(), self._key_specs),
      (self._state_specs, self._spec(sharding.CORES)),
    )
    self._check_memory(agent)
    self._faulty_steps = 0
    self._state: State = self._started(agent)
    self._advance = sharding.per_core(
      self._advanced,
      self._mesh,
      (self._state_specs, self._key_specs, *[PartitionSpec()] * 3),
      (self._state_specs, self._output_specs),
      donate_argnums=0,
    )
    self._clock = Clock(np.int32(self._one.past), np.int32(0))
    self._acting = jax.jit(self._one.agent.acting)
    # Held while the state is donated.
    self._changing = threading.Lock()
    self._rolled_out = 0
    learned_steps = self._one.agent.needs.learned_steps
    self._ratio = config.replay.ratio(learned_steps) if config.replay else None
    self._env_steps, self._learned_steps = 0, 0.0
    self._last = (time.monotonic(), 0)
    where = " of the training with seed {}" if num_seeds > 1 else ""
    self._skipped = [
      progress.SkippedUpdates(where.format(k)) for k in self._returns
    ]
    self._metrics: dict[str, float] = {}

  def begin(self, params: types.Tree, statistics: types.Tree) -> None:
    """Replaces the initial state of all seeds; see `base.begin`."""
    seeds = (self._config.trainings,) if self._config.trainings > 1 else ()
    # Copies, because the program donates its arguments.
    agent = jax.tree.map(
      lambda x: jnp.array(jnp.broadcast_to(x, (*seeds, *x.shape))),
      base.begin(self._one.agent, params, statistics),
    )
    # The environments have made steps before the first rollout: once more.
    self._state = self._started(self._put(agent, self._spec()))

  def call(self) -> None:
    """Calls the program once, and counts its results."""
    due = self._take_due()
    with self._changing:
      self._state, output = self._advance(
        self._state, self._keys, self._clock, self._recorded, due
      )
      rollouts, updated = len(due), int(np.sum(due))
      self._clock = Clock(
        np.int32(self._clock.time + rollouts * self._one.period),
        np.int32(self._clock.version + updated),
      )
      output = jax.device_get(output)
      self._count(output, updated, bool(due[-1]))
    self._check_faults(output.faults, int(output.faulty_steps.sum()))
    # The other trainings continue if one has stopped learning.
    if all(x.is_stuck for x in self._skipped):
      self._skipped[0].check()

  def measure(self) -> dict[str, metrics.Value]:
    """Returns the learner's metrics."""
    num_seeds, replay = self._config.trainings, self._config.replay
    skipped = self._num_skipped
    line: dict[str, metrics.Value] = {
      "learner_steps": int(self._clock.version) - -(-skipped // num_seeds),
      "learned_steps": int(self._learned_steps),
      "updates_skipped": skipped,
      "policy_lag": None,
      "faulty_steps": self._faulty_steps,
      **self._metrics,
    }
    if replay is not None:
      batch_steps = self._config.plan.batch_steps
      steps = self._rolled_out * batch_steps
      line["replay_size"] = min(steps, replay.replay_capacity)
    if num_seeds > 1:
      now, env_steps = time.monotonic(), self._env_steps
      (then, env_steps_then), self._last = self._last, (now, env_steps)
      rate = (env_steps - env_steps_then) / (now - then)
      line["steps_per_second_all_seeds"] = rate
      for seed, returns in self._returns.items():
        mean = returns.mean() if self.acted.all_have_ended else None
        line[f"{metrics.OF_SEED}{seed}"] = mean
    if self._population is not None:
      members, state = self._population.measure(self._state)
      self._state = self._put(state, self._state_specs)
      line |= members
    return line

  @property
  def _num_skipped(self) -> int:
    return sum(x.updates for x in self._skipped)

  def policy(self, saved: types.Tree) -> types.Tree:
    """Returns a saved process's acting parameters.

    They are those of its first seed, or of a population's best member.
    """
    agent, k = saved["agent"], 0
    if self._population is not None:
      means = [x.mean() for x in self._returns.values()]
      k = int(np.argmax([-np.inf if x is None else x for x in means]))
    if self._config.trainings > 1:
      agent = jax.tree.map(lambda x: x[k], agent)
    return self._acting(agent)

  def saved(self) -> process_parts.PartState:
    """Returns the state to save, with the replay; any thread may call it."""
    with self._changing:
      state = jax.tree.map(jnp.copy, self._state)
      counts = {
        "acting": state._replace(agent=()),
        "clock": Clock(*map(np.int64, self._clock)),
        "ratio": self._ratio.saved() if self._ratio else {},
        "rolled_out": np.int64(self._rolled_out),
        "env_steps": np.int64(self._env_steps),
        "learned_steps": np.float64(self._learned_steps),
        "updates_skipped": np.int64(self._num_skipped),
        "returns": {str(k): x.saved() for k, x in self._returns.items()},
      }
    return process_parts.PartState(state.agent, counts)

  def restore(self, saved: process_parts.PartState) -> None:
    """Continues from a saved state."""
    agent, counts = saved
    state = counts["acting"]._replace(agent=agent)
    # Copies, because the program donates its arguments.
    state = jax.tree.map(jnp.array, state)
    self._state = self._put(state, self._state_specs)
    self._clock = Clock(*map(np.int32, counts["clock"]))
    if self._ratio:
      self._ratio.restore(counts["ratio"])
    self._rolled_out = int(counts["rolled_out"])
    self._env_steps = int(counts["env_steps"])
    self._last = (time.monotonic(), self._env_steps)
    self._learned_steps = float(counts["learned_steps"])
    self._skipped[0].updates = int(counts["updates_skipped"])
    for seed, returns in self._returns.items():
      returns.restore(counts["returns"][str(seed)])

  def _counts(
    self, wall_clock: clocks.WallClock | None
  ) -> counters.ActingCounts:
    """Returns new counts, whose returns are those of all trainings."""
    acted = counters.ActingCounts(
      total_steps=self._config.total_steps,
      wall_clock=wall_clock,
      log_info=self._config.env.log_info,
    )
    if (num_seeds := len(self._returns)) > 1:
      acted.returns = metrics.MeanOfSeeds([*self._returns.values()])
      acted.lengths = metrics.Latest(100 * num_seeds)
      for name in acted.info:
        acted.info[name] = metrics.Latest(100 * num_seeds)
    return acted

  def _check_memory(self, agent: base.AgentState) -> None:
    """Raises types.ConfigError if the replays do not fit into memory."""
    if self._config.replay is None:
      return
    replay = jax.eval_shape(self._init, agent, self._keys)[0].replay
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(replay))
    cores = self._config.learner.cores()
    replay_source.check_memory(self._config.replay, cores, size // len(cores))

  def _started(self, agent: base.AgentState) -> State:
    state, faults = self._init(agent, self._keys)
    faults = np.asarray(faults)
    self._check_faults(faults, int(np.count_nonzero(faults)))
    if self._population is not None:
      state = self._put(self._population.begin(state), self._state_specs)
    return state

  def _advanced(
    self,
    state: State,
    keys: Keys,
    clock: Clock,
    recorded: types.Tree,
    due: jax.Array,
  ) -> tuple[State, Output]:
    """Advances all trainings on one core; members of a population evolve."""
    scan = self._of_all(self._scan, 5)
    state, output = scan(state, keys, clock, recorded, due)
    if self._population is not None:
      end = clock.time + len(due) * self._one.period
      state = self._population.evolve(state, output, clock.time, end)
    return state, output

  def _check_faults(self, faults: np.ndarray, steps: int) -> None:
    """Counts faulty steps of environments, `[..., N]`.

    Raises:
      RuntimeError: there is one, and `reset_faulty_envs` is False.
    """
    self._faulty_steps += steps
    if not steps or self._config.reset_faulty_envs:
      return
    num_seeds, num_envs = self._config.trainings, self._config.num_envs
    of_envs = np.bitwise_or.reduce(faults.reshape(num_seeds, -1, num_envs), 1)
    training, k = map(int, np.argwhere(of_envs)[0])
    seeds = seeding.Seeds(self._config.seed + training)
    reason = fault_counts.reason(
      self._one.observation, int(of_envs[training, k])
    )
    raise RuntimeError(
      finishing.failure(self._config.env.env, k, seeds.take(num_envs), reason)
      + "; --reset-faulty-envs resets such environments instead"
      + types.see("numbers-that-are-not-finite")
    )

  def _scan(
    self,
    state: State,
    keys: Keys,
    clock: Clock,
    recorded: types.Tree,
    due: jax.Array,
  ) -> tuple[State, Output]:
    """Advances one training on one core by a rollout per entry of `due`."""

    def one(
      carry: tuple[State, Clock], due: jax.Array
    ) -> tuple[tuple[State, Clock], Output]:
      state, clock = carry
      state, output = self._one.advance(state, keys, clock, recorded, due)
      clock = Clock(clock.time + self._one.period, clock.version + due)
      return (state, clock), output

    (state, _), output = jax.lax.scan(one, (state, clock), due)
    return state, output

  def _take_due(self) -> np.ndarray:
    """Charges the updates due after each rollout; returns `[rollouts]`."""
    # The numbers ignore resets; `_count` corrects them later.
    rollouts, ratio = self._config.updates_per_call, self._ratio
    if ratio is None:
      return np.ones(rollouts, np.int32)
    due = np.zeros(rollouts, np.int32)
    for k in range(rollouts):
      self._rolled_out += 1
      ratio.add(self._config.plan.batch_steps)
      while ratio.take():
        due[k] += 1
    return due

  def _count(self, output: Any, updated: int, has_metrics: bool) -> None:
    """Counts the results of a call.

    Results are `[rollouts, ...]`, with several seeds `[seeds, rollouts, ...]`.
    """
    num_seeds = self._config.trainings
    if num_seeds == 1:
      output = jax.tree.map(lambda x: x[None], output)
    env_steps, learned = int(output.env_steps.sum()), output.weight.sum()
    if self._ratio:
      rollouts = output.weight.shape[1]
      resets = rollouts * self._config.plan.batch_steps - env_steps / num_seeds
      self._ratio.add(-resets)
      self._ratio.learned(float(learned) / num_seeds, updated)
    self._env_steps += env_steps
    new_steps = self._env_steps // num_seeds - self.acted.env_steps
    # `[seeds * N, steps]`
    ended, lengths = (
      np.moveaxis(x, -1, 1).reshape(num_seeds * self._config.num_envs, -1)
      for x in (output.episode_return, output.episode_length)
    )
    info = output.info
    if len(info):  # `[seeds * N, steps, E]`
      rows = num_seeds * self._config.num_envs
      info = np.moveaxis(info, -2, 1).reshape(rows, -1, info.shape[-1])
    self._environments.add(new_steps, slice(None), ended, lengths, info)
    if num_seeds > 1:
      for returns, of_seed in zip(
        self._returns.values(), output.episode_return, strict=True
      ):
        returns.add(of_seed[~np.isnan(of_seed)])
    for counter, of_seed in zip(self._skipped, output.skipped, strict=True):
      skipped = int(of_seed.sum())
      counter.add(skipped, updated - skipped)
    self._learned_steps += float(learned) / num_seeds
    if has_metrics:
      last = {k: x[:, -1].mean() for k, x in output.metrics.items()}
      self._metrics = {k: float(x) for k, x in last.items()}

  def _of_all(self, function: Any, arguments: int) -> Any:
    """Maps a function of one training over all of them.

    Only the function's first two arguments have an axis of seeds.
    """
    if self._config.trainings == 1:
      return function
    return jax.vmap(function, (0, 0, *(None,) * (arguments - 2)))

  def _put(self, nest: types.Tree, specs: types.Tree) -> types.Tree:
    def put(spec: PartitionSpec, subtree: types.Tree) -> types.Tree:
      return jax.device_put(subtree, NamedSharding(self._mesh, spec))

    return jax.tree.map(
      put, specs, nest, is_leaf=lambda x: isinstance(x, PartitionSpec)
    )

  def _spec(self, *axes: str | None) -> Any:
    """Returns a spec; with several seeds, their axis comes before `axes`."""
    first = (None,) if self._config.trainings > 1 else ()
    return PartitionSpec(*first, *axes)

  @functools.cached_property
  def _recorded(self) -> types.Tree:
    return self._put(self._one.recorded(), PartitionSpec())

  @functools.cached_property
  def _state_specs(self) -> Any:
    rows = self._spec(sharding.CORES)
    return State(
      agent=self._spec(),
      env=rows,
      timestep=rows,
      acting=rows,
      episode_return=rows,
      episode_length=rows,
      past=self._spec(None, sharding.CORES),
      replay=rows,
      member=self._spec(),
    )

  @functools.cached_property
  def _key_specs(self) -> Any:
    one = self._spec()
    return Keys(
      env=self._spec(sharding.CORES), acting=one, learner=one, replay=one
    )

  @functools.cached_property
  def _output_specs(self) -> Any:
    one, rows = self._spec(), self._spec(None, None, sharding.CORES)
    return Output(
      metrics=one,
      weight=one,
      skipped=one,
      episode_return=rows,
      episode_length=rows,
      env_steps=self._spec(None, sharding.CORES),
      info=rows,
      faults=self._spec(None, sharding.CORES),
      faulty_steps=self._spec(None, sharding.CORES),
    )


def _start(config: Config, agent: base.Agent) -> tuple[base.AgentState, Keys]:
  """Returns the initial agent states and keys of all seeds, as in `sync`."""

  def start(
    seed: jax.Array, env_seed: jax.Array
  ) -> tuple[base.AgentState, Keys]:
    learner, replay, acting = jax.random.split(jax.random.key(seed), 3)
    init, update = jax.random.split(learner)
    return agent.init(init), Keys(
      env=functional.keys(env_seed, config.num_envs),
      acting=jax.random.fold_in(acting, env_seed),
      learner=jax.random.key_data(update),
      replay=replay,
    )

  seeds = range(config.seed, config.seed + config.trainings)
  env_seeds = [seeding.Seeds(x).take(config.num_envs) for x in seeds]
  if config.trainings == 1:
    return jax.jit(start)(np.int32(seeds[0]), np.int32(env_seeds[0]))
  # Not by vmap: XLA on CPU hangs in batches of the QR decompositions of an
  # LSTM's initializer.
  return jax.jit(lambda *x: jax.lax.map(lambda y: start(*y), x))(
    np.array(seeds, np.int32), np.array(env_seeds, np.int32)
  )
