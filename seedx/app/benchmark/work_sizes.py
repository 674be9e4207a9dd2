"""How the pipelines divide their work, by an experiment's options."""

import dataclasses
from typing import Any

from seedx import envs, types
from seedx.app.cli import experiments, programs
from seedx.pipelines import a3c, gorila, impala, seed, sync

# Enough that no run ends by itself.
TOTAL_STEPS = 10**10
_ENVIRONMENTS, _ACTING, _LEARNING = "environments", "acting", "learning"


@dataclasses.dataclass(frozen=True)
class Sizes:
  """How a pipeline divides its work.

  Attributes:
    pools: processes, or threads, that step environments.
    pool_envs: environments of each.
    pool_threads: threads of EnvPool in each.
    slots: environments of one unroll store.
    rows: environments that are acted for at a time.
    period: T, new env steps of an unroll.
    unrolls: that are learned from at a time.
    message_steps: env steps in a message to the learner; 0 without messages.
    elsewhere: the parts of the work that other processes than the learner's do.
  """

  pools: int
  pool_envs: int
  pool_threads: int
  slots: int
  rows: int
  period: int
  unrolls: int
  message_steps: int
  elsewhere: tuple[str, ...]

  @classmethod
  def of(cls, config: Any) -> "Sizes":
    """Those of a pipeline's config.

    Raises:
      types.ConfigError: it is not of a pipeline that comes with seedx.
    """
    if isinstance(config, seed.Config):
      return _sizes_of_seed(config)
    if isinstance(config, impala.Config):
      period, own = config.learner.unroll_length, config.actors.envs_per_actor
      return cls(
        pools=config.actors.num_actors,
        pool_envs=own,
        pool_threads=1,
        slots=own,
        rows=own,
        period=period,
        unrolls=config.learner.batch_size,
        message_steps=own * period,
        elsewhere=(_ENVIRONMENTS, _ACTING),
      )
    if isinstance(config, sync.Config):
      period, own = config.learner.unroll_length, config.num_envs
      return cls(
        pools=1,
        pool_envs=own,
        pool_threads=config.env_threads,
        slots=own,
        rows=own,
        period=period,
        unrolls=own,
        message_steps=0,
        elsewhere=(),
      )
    if not isinstance(config, a3c.Config | gorila.Config):
      raise types.ConfigError(
        "expected an experiment with a pipeline of seedx's, found one with"
        f" {type(config).__module__}"
      )
    own, apart = config.workers.envs_per_worker, config.workers.batch_steps
    alone = isinstance(config, a3c.Config)
    return cls(
      pools=config.workers.num_workers,
      pool_envs=own,
      pool_threads=1,
      slots=own,
      rows=own,
      period=config.workers.unroll_length,
      unrolls=own,
      message_steps=0 if alone else apart,
      elsewhere=() if alone else (_ENVIRONMENTS, _ACTING, _LEARNING),
    )


def config_of(words: str, env: str) -> Any:
  """The pipeline's config of an experiment.

  Args:
    words: the experiment and its own options.
    env: name of the environment, unless the experiment's options have one.

  Raises:
    types.ConfigError: there is no such experiment.
  """
  name, *options = words.split()
  options = ["--env", env, *options, "--total-steps", str(TOTAL_STEPS)]
  module = experiments.load_module(name)
  asked, _ = programs.read(module.EXPERIMENT, options, module.__name__)
  return asked.run


def _sizes_of_seed(config: seed.Config) -> Sizes:
  actors, period = config.actors, config.learner.unroll_length
  agent = config.plan.agent(config.agent, envs.spec(config.env))
  first, *_ = config.inference.sizes(
    agent, actors, period, config.learner.share_size
  )
  return Sizes(
    pools=actors.num_actors,
    pool_envs=actors.envs_per_actor,
    pool_threads=1,
    slots=first.layout.num_slots,
    rows=min(first.target_rows, first.layout.num_slots),
    period=period,
    unrolls=config.learner.batch_size,
    message_steps=actors.rows,
    elsewhere=(_ENVIRONMENTS,),
  )
