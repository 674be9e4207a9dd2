"""The agent that `--agent` names."""

from typing import Any

from experiments import settings
from seedx.agents import a2c, base, dqn, ppo, vtrace


def maker(given: Any, updates: float, replayed: bool = True) -> base.Maker:
  """The agent that `--agent` names, with the options that there are of it.

  Args:
    given: the options, with `agent`.
    updates: that the whole run will make.
    replayed: whether DQN learns from a replay.
  """
  if given.agent == "dqn":
    fields = settings.dqn(given, updates)
    return base.Maker(dqn.make, dqn.Config(**fields, replayed=replayed))
  if given.agent == "ppo":
    fields = settings.ppo(given, updates)
    return base.Maker(ppo.make, ppo.Config(**fields))
  module = {"a2c": a2c, "vtrace": vtrace}[given.agent]
  fields = settings.actor_critic(given, updates)
  return base.Maker(module.make, module.Config(**fields))
