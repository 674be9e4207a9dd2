"""Floating point operations of matrix products and convolutions."""

import math
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp

from benchmarks.speed import work
from seedx import envs
from seedx.acting import local_actor, unroll_store
from seedx.pipelines import a3c, gorila

# Rows and columns of matrices whose product measures the machine's speed.
_SIZE = 1024


def of_learning(words: str, seconds: float) -> float:
  """Returns the CPU time of products at full speed over that of learning."""
  config = work.config_of(words, "CartPole-v1")
  sizes = work.sizes_of(config)
  learner, calls = work.learning_functions(config, sizes), 0

  def learn() -> None:
    nonlocal calls
    learner.learn()
    calls += 1

  while not learner.updates():  # Fills the replay.
    learner.learn()
  first = learner.updates()
  cost = work.cpu_seconds_per_call(learn, seconds, learner.finish)
  updates = (learner.updates() - first) / calls
  return operations_of_update(config, sizes) / speed(seconds) * updates / cost


def operations_of_update(config: Any, sizes: work.Sizes) -> int:
  """Returns the floating point operations of an update's matrix products."""
  spec, key = envs.spec(config.env), jax.random.key(0)
  agent = config.plan.agent(config.agent, spec)
  layout = unroll_store.Layout.of(agent, sizes.period, sizes.unrolls)
  share = jax.device_put(
    work.made_up(local_actor.Programs(agent, spec, layout).share())
  )
  source = config.plan.source(agent, jax.devices()[:1], key)
  (part,) = source.example([share]).parts
  by_workers = isinstance(config, a3c.Config | gorila.Config)
  function = agent.gradients if by_workers else agent.update
  state = jax.eval_shape(agent.init, key)
  program: Any = jax.make_jaxpr(function)(state, key, part)
  return operations(program.jaxpr)


def operations(jaxpr: jax.extend.core.Jaxpr) -> int:
  """Returns the floating point operations of a program's matrix products.

  A multiplication and its addition count as 2 operations. The body of a scan
  counts once per iteration, the body of a `while` loop once. Of a `cond`,
  only the most expensive branch counts.
  """
  return sum(_of_equation(x) for x in jaxpr.eqns)


def speed(seconds: float) -> float:
  """Returns the operations per CPU second of a large float32 product."""
  x = jnp.ones((_SIZE, _SIZE))
  product = jax.jit(lambda x: x @ x)

  def multiply() -> None:
    jax.block_until_ready(product(x))

  return 2 * _SIZE**3 / work.cpu_seconds_per_call(multiply, seconds)


def _of_equation(equation: Any) -> int:
  params, name = equation.params, equation.primitive.name
  if name == "dot_general":
    (contracted, _), _ = params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    summed = math.prod(shape[axis] for axis in contracted)
    return 2 * equation.outvars[0].aval.size * summed
  if name == "conv_general_dilated":
    kernel = equation.invars[1].aval
    channels = kernel.shape[params["dimension_numbers"].rhs_spec[0]]
    return 2 * equation.outvars[0].aval.size * kernel.size // channels
  leaves = jax.tree.leaves(list(params.values()))
  bodies: list[Any] = [getattr(leaf, "jaxpr", leaf) for leaf in leaves]
  inner = [operations(body) for body in bodies if hasattr(body, "eqns")]
  if name == "cond":
    return max(inner)
  return sum(inner) * params.get("length", 1)
