"""PPO with the custom loss of docs/own_code.md: a penalty on KL(old || new)."""

import sys
import types as python_types

import jax
import numpy as np
import pytest

from seedx import types
from seedx.agents import ppo
from tests import conftest
from tests.agents import cases
from tests.repository import documentation

TEXT = documentation.file_named("my_kl.py")


def own_module():
  """Returns the page's script as a module."""
  module = python_types.ModuleType("my_kl")
  exec(compile(TEXT, "my_kl.py", "exec"), module.__dict__)
  return module


def unroll_of(agent):
  ends = np.linspace(0.0, 0.7, 8)
  return conftest.random_unroll(agent, cases.VECTOR, 6, ends, seed=1)


@pytest.mark.slow
def test_an_update_differs_from_that_of_ppo_only_by_the_penalty(monkeypatch):
  assert len(TEXT.splitlines()) < 40
  mine = own_module()
  monkeypatch.setitem(sys.modules, "my_kl", mine)
  fields = {"hidden_sizes": (8,), "epochs": 2, "minibatches": 1}
  agents = [
    config.make(cases.VECTOR)
    for config in (ppo.Config(**fields), mine.Config(**fields))
  ]
  unroll = unroll_of(agents[0])
  state = agents[1].init(jax.random.key(0))
  state = cases.with_hyperparameters(state, learning_rate=0.05)
  update = jax.jit(agents[1].update)

  def params(cost):
    costly = cases.with_hyperparameters(state, kl_cost=cost)
    return update(costly, jax.random.key(0), unroll)[0].params

  plain, _ = jax.jit(agents[0].update)(state, jax.random.key(0), unroll)
  gaps = [
    cases.difference(params(np.float32(cost)), plain.params)
    for cost in (0.0, 10.0)
  ]
  assert gaps[0] < 1e-6 < 1e-4 < gaps[1]


def test_an_inseparable_loss_gets_the_whole_minibatch():
  shapes = set()

  def loss(evaluated, minibatch, hyperparameters):
    shapes.add(minibatch.entries.weight.shape)
    return ppo.loss(evaluated, minibatch, hyperparameters)

  config = ppo.Config(hidden_sizes=(8,), epochs=1, minibatches=1)
  spec, rows = cases.VECTOR, 2048
  for separable, expected in ((False, {(1, 8192)}), (True, {(1, 4096)})):
    agent = ppo.make(spec, config, loss, separable=separable)
    unroll = conftest.random_unroll(agent, spec, 5, np.zeros(rows))
    shapes.clear()
    state = jax.eval_shape(agent.init, jax.random.key(0))
    jax.eval_shape(agent.update, state, jax.random.key(0), unroll)
    assert expected <= shapes
    assert separable or shapes == expected


def test_a_diagnostic_with_the_name_of_a_metric_is_refused():
  def loss(*arguments):
    steps = ppo.loss(*arguments)
    return steps._replace(diagnostics={"entropy": steps.entropy})

  spec = cases.VECTOR
  agent = ppo.make(spec, ppo.Config(hidden_sizes=(8,)), loss)
  state = jax.eval_shape(agent.init, jax.random.key(0))
  unroll = unroll_of(agent)
  with pytest.raises(types.ConfigError, match=r"of their own, found entropy"):
    jax.eval_shape(agent.gradients, state, jax.random.key(0), unroll)
