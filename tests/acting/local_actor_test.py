"""The local actor's programs."""

import dataclasses

import jax

from seedx import envs
from seedx.acting import local_actor
from seedx.agents import a2c
from tests import conftest


def test_an_agent_does_not_search_at_an_unrolls_last_step():
  spec = envs.spec(envs.Config("seedx:CartPole-v1"))
  agent, calls = a2c.Config(hidden_sizes=()).make(spec), []
  agent = dataclasses.replace(
    agent,
    step=conftest.recorded(calls, "search", agent.step),
    without_search=conftest.recorded(calls, "network", agent.step),
  )
  programs = local_actor.Programs.of(agent, spec, unroll_length=2, num_envs=1)
  acting = jax.jit(lambda key: agent.acting(agent.init(key)))(jax.random.key(0))
  calls.clear()
  programs.warm_up(acting, jax.local_devices()[0])
  assert calls[-2:] == ["network", "search"]
