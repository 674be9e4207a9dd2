"""The amounts of experience of a run, from which its agent is made."""

import dataclasses
from collections.abc import Callable, Sequence

import jax

from seedx import replay as replay_lib
from seedx import types
from seedx.agents import base
from seedx.learning import demonstrations, experience, replay_source
from seedx.runtime import counters


@dataclasses.dataclass(frozen=True)
class Plan:
  """The amounts of experience of a run and a batch.

  Attributes:
    total_steps: number of env steps of the run.
    batch_steps: number of env steps in a batch of unrolls, over all cores.
    replay: settings of the replay; None for an agent that learns without one.
    parts: number of equal parts of a batch: learner devices of all processes
      times micro-batches.
    processes: number of processes that learn together, each with its own
      replay.
    unroll_length: number of new env steps of an unroll (T).
    num_envs: number of environments of all processes, which step independently,
      and whose unrolls go to the learner cores in turn; 0 if environments step
      together, and each core has the unrolls of its own.
    workers: number of workers that each learn alone, from their own unrolls or
      their own replay.
    reuse: number of updates for each batch of unrolls, without a replay.
  """

  total_steps: int
  batch_steps: int
  replay: replay_lib.Config | None = None
  parts: int = 1
  processes: int = 1
  unroll_length: int = 1
  num_envs: int = 0
  workers: int = 1
  reuse: int = 1

  @property
  def filling_steps(self) -> int:
    """Number of env steps that only fill the replays before learning begins.

    The batch of unrolls with which the replay is filled is learned from.
    """
    if self.replay is None:
      return 0
    batches = (self.replay.replay_min_steps - 1) // self.batch_steps
    return self.workers * batches * self.batch_steps

  def refill(
    self,
    needs: base.Needs,
    leave_out: Callable[[float], None],
    env_steps: int,
  ) -> None:
    """Moves schedules past the updates that are not made while replays refill.

    Args:
      needs: needs of the agent.
      leave_out: takes the number of these updates.
      env_steps: number of env steps of the run, which resumes with empty
        replays.
    """
    if self.replay is not None:
      steps = min(env_steps, self.filling_steps)
      leave_out(steps / self.replay.steps_per_update(needs.learned_steps))

  @property
  def horizon(self) -> base.Horizon:
    """Length of the run in env steps and updates.

    Schedules end with the last update, after which the environments begin
    unrolls that nothing learns from.

    An agent that learns from several steps of a window makes fewer updates, see
    `base.Horizon.with_windows`.
    """
    steps_per_update: float = self.batch_steps / self.reuse
    if self.replay is not None:
      steps_per_update = self.replay.steps_per_update(learned_steps=1)
    last = self.num_envs * self.unroll_length, self.workers * self.batch_steps
    unlearned_steps = self.filling_steps + max(last)
    return base.Horizon.of(self.total_steps, steps_per_update, unlearned_steps)

  def agent(
    self,
    config: base.Config,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
  ) -> base.Agent:
    """Makes the agent, and checks that it fits the plan.

    Batches are sharded over the mesh axis `axis_name`, unless it is None.

    Raises:
      types.ConfigError: the agent needs a replay and the plan has none, or the
        reverse; `parts` or the agent's minibatches do not divide a batch; the
        replay is too small or the run too short to learn anything.
    """
    agent = config.make(spec, axis_name, self.horizon)
    self.check_kind(agent)
    self._check_minibatches(agent.needs)
    if self.replay is None or not self.replay.has_priorities:
      agent = base.without_priorities(agent)
    minimum = self.batch_steps
    if self.replay is not None:
      minimum = max(minimum, self.replay.replay_min_steps)
      self._check_replay(self.replay)
    if self.total_steps < minimum:
      raise types.ConfigError(
        f"expected total_steps of at least {minimum}, so that learning starts,"
        f" found {self.total_steps}"
      )
    return agent

  def replay_of_core(
    self,
    agent: base.Agent,
    cores: int,
    spec: types.EnvironmentSpec | None = None,
  ) -> replay_source.CoreReplay:
    """Makes the replay of one of this process's `cores` learner cores.

    Raises:
      types.ConfigError: there are demonstrations without a ratio, or the
        reverse; or the agent cannot learn from them.
    """
    needs, of_run = agent.needs, self.replay
    assert of_run is not None and needs.window is not None
    of_process = of_run.divided(self.processes)
    capacity = max(
      1, of_process.replay_capacity // (self.unroll_length * cores)
    )
    memory: replay_lib.Replay = of_process.make(
      window=needs.window,
      capacity=capacity,
      # None where an environment's next unroll may go to another core.
      period=None if self.num_envs and cores > 1 else self.unroll_length,
      streams=self.num_envs // self.processes,
    )
    ratios = of_run.demonstration_ratio, of_run.demonstration_ratio_rise
    if bool(of_run.demonstrations) != any(ratios):
      raise types.ConfigError(
        "expected demonstrations and a demonstration_ratio, such as 0.0625,"
        f" found one without the other: {of_run.demonstrations!r} and"
        f" {of_run.demonstration_ratio:g}"
      )
    if of_run.demonstrations:
      assert spec is not None
      memory = replay_lib.Mixed.of(
        memory,
        demonstrations.unroll_of(of_run.demonstrations, agent, spec),
        *ratios,
      )
    return replay_source.CoreReplay(
      memory,
      needs,
      of_process.replay_batch_size // cores,
      self.horizon.with_windows(needs.learned_steps).updates,
    )

  def source(
    self,
    agent: base.Agent,
    cores: Sequence[jax.Device],
    rng_key: jax.Array,
    acted: counters.ActingCounts | None = None,
    spec: types.EnvironmentSpec | None = None,
  ) -> experience.Experience:
    """Makes the source of the agent's batches.

    Args:
      agent: the agent that learns.
      cores: the learner devices of this process.
      rng_key: random key with which a replay is sampled.
      acted: counts of all processes' env steps; if None, every step that an
        unroll adds counts, including resets.
      spec: the environment's observations and actions.
    """
    if self.replay is None:
      return experience.Once()
    # Each process counts an equal part of the env steps, and so makes equally
    # many updates.
    count_steps = (
      None if acted is None else lambda: acted.env_steps // self.processes
    )
    return replay_source.ReplaySource(
      self.replay_of_core(agent, len(cores), spec),
      self.replay.divided(self.processes),
      self.unroll_length,
      cores,
      rng_key,
      count_steps,
    )

  def check_kind(self, agent: base.Agent) -> None:
    """Raises types.ConfigError if the agent needs another kind of plan."""
    config = self.replay
    window = agent.needs.window
    if window is not None and config is None:
      raise types.ConfigError(
        f"expected a replay, from which this agent samples windows of {window}"
        " time steps, found none; set `replay`, or use a pipeline that has it:"
        " sync, seed, apex or anakin"
      )
    if window is None and config is not None:
      raise types.ConfigError(
        "expected no replay, because this agent learns from each unroll once,"
        f" found {config}"
      )
    if config and config.has_priorities and agent.priorities is None:
      raise types.ConfigError(
        "expected an agent whose actors can compute a window's priority, such"
        " as DQN, found one that cannot; choose a uniform replay"
      )

  def _check_minibatches(self, needs: base.Needs) -> None:
    size, unit = self.batch_steps // self.parts, "env steps"
    if needs.divides_unrolls:
      size, unit = size // self.unroll_length, "unrolls"
    if size % needs.minibatches:
      divisors = [n for n in range(1, size + 1) if size % n == 0]
      near = sorted(divisors, key=lambda n: abs(n - needs.minibatches))[:2]
      raise types.ConfigError(
        f"expected minibatches that divide the {size} {unit} of a batch on each"
        f" learner device, such as {' or '.join(map(str, near))}, found"
        f" {needs.minibatches}"
      )

  def _check_replay(self, replay: replay_lib.Config) -> None:
    if replay.replay_batch_size % self.parts:
      raise types.ConfigError(
        f"expected a replay_batch_size that is a multiple of {self.parts}"
        " (learner devices times micro-batches), found"
        f" {replay.replay_batch_size}"
      )
    if replay.replay_capacity < self.batch_steps:
      raise types.ConfigError(
        f"expected a replay_capacity of at least {self.batch_steps} env steps,"
        f" a batch of unrolls, found {replay.replay_capacity}"
      )
