"""The learner of a pipeline, with its agent and its source of batches."""

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import jax

from seedx import sharding, types
from seedx.agents import base
from seedx.learning import experience, learner, multihost, plans
from seedx.runtime import counters, process


class Config(Protocol):
  """Config of a pipeline with one learner."""

  @property
  def seed(self) -> int:
    """Random seed of the run."""

  @property
  def agent(self) -> base.Config:
    """Config of the agent that learns."""

  @property
  def learner(self) -> learner.DevicesConfig:
    """Config of the learner devices."""

  @property
  def plan(self) -> plans.Plan:
    """Amounts of experience of the run."""


def of(
  config: Config,
  spec: types.EnvironmentSpec,
  context: process.Context,
  acted: counters.ActingCounts,
  acting_on: Sequence[jax.Device] = (),
  wrap: Callable[[experience.Experience], experience.Experience] | None = None,
) -> learner.Learner:
  """Makes the learner of this process.

  Args:
    config: config of the pipeline.
    spec: specification of the environments.
    context: context of the process.
    acted: counts of all hosts' env steps.
    acting_on: devices that act, see `learner.Learner`.
    wrap: makes the learner's source of batches from the plan's.

  Raises:
    types.ConfigError: a device does not exist, or the agent does not fit the
      plan.
  """
  agent = config.plan.agent(config.agent, spec, sharding.CORES)
  cores, keys = config.learner.cores(), context.keys(config.seed)
  source = config.plan.source(agent, cores, keys.replay, acted, spec)
  if wrap is not None:
    source = wrap(source)
  kind: Callable[..., learner.Learner] = learner.Learner
  if context.hosts.count > 1:
    kind = functools.partial(multihost.MultihostLearner, hosts=context.hosts)
  return kind(
    agent,
    config.learner,
    source,
    keys.learner,
    acting_on=acting_on,
    stop=context.stop,
  )
