"""The traffic of an experiment's actors, and the cost of their unrolls."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import limits
from benchmarks.speed import work
from seedx import envs, types, wire
from seedx.acting import local_actor, protocol, unroll_messages, unroll_server
from seedx.agents import base
from seedx.pipelines import gorila, impala, seed
from seedx.pipelines.gorila import parameter_server
from seedx.pipelines.gorila import worker as worker_lib
from seedx.runtime import counters, seeding


class Traffic(NamedTuple):
  """The traffic of one actor or worker, at an experiment's presets.

  Attributes:
    parameters: number of parameters.
    message_steps: env steps of a message; 0 without messages.
    to_learner: bytes per env step to the learner and to parameter servers.
    back: bytes per env step in the other direction.
    of_parameters: bytes per env step of parameters and gradients, both ways.
    fetch_steps: env steps between two fetches of parameters, or two gradients.
    batch_steps: env steps of an update.
    times_learned: number of times that an env step is learned from.
    cost: CPU seconds of the learner to decode, check and store a message of
      unrolls, without the wire; 0 without unrolls.
  """

  parameters: int
  message_steps: float
  to_learner: float
  back: float
  of_parameters: float = 0.0
  fetch_steps: float = math.inf
  batch_steps: int = 1
  times_learned: float = 1.0
  cost: float = 0.0


def traffic(words: str, seconds: float) -> Traffic:
  """Returns the traffic of an experiment; measures the cost of its unrolls."""
  config = work.config_of(words, "CartPole-v1")
  spec = envs.spec(config.env)
  agent = config.plan.agent(config.agent, spec)
  number = parameter_server.num_params(agent)
  if isinstance(config, seed.Config):
    rows = config.actors.rows
    inputs, outputs = protocol.act_layouts(spec, rows)
    return Traffic(
      number,
      rows,
      inputs.message_bytes(rows) / rows,
      outputs.message_bytes(rows) / rows,
      batch_steps=config.plan.batch_steps,
    )
  if isinstance(config, impala.Config):
    return _of_unrolls(config, agent, spec, number, seconds)
  if isinstance(config, gorila.Config):
    return _of_gradients(config, agent, spec, number)
  return Traffic(number, 0, 0.0, 0.0)  # A3C's workers are threads.


def of_ppo(words: str, environment: float) -> limits.Work:
  """Returns the work of PPO on each host.

  Args:
    words: the experiment and its options.
    environment: CPU seconds to step an environment.
  """
  config = work.config_of(words, "CartPole-v1")
  spec = envs.spec(config.env)
  agent = config.agent.make(spec, None, base.Horizon.of(10**9, 1))
  return limits.Work(
    environment=environment,
    parameters=parameter_server.num_params(agent),
    batch_steps=config.plan.batch_steps,
    times_learned=config.agent.epochs,
    optimizer_steps=config.agent.epochs * config.agent.minibatches,
  )


def _of_unrolls(
  config: impala.Config,
  agent: base.Agent,
  spec: types.EnvironmentSpec,
  number: int,
  seconds: float,
) -> Traffic:
  num_envs, period = config.actors.envs_per_actor, config.learner.unroll_length
  steps = num_envs * period
  programs = local_actor.Programs.of(
    agent, spec, period, config.learner.share_size
  )
  layout = unroll_messages.experience_layout(programs.share(), num_envs)
  acting = jax.eval_shape(
    lambda key: agent.acting(agent.init(key)), jax.random.key(0)
  )
  fetched_bytes = unroll_messages.parameters_layout(acting).message_bytes(1)
  fetch_steps = steps * max(1, math.ceil(config.fetch_interval / steps))
  reply_bytes = unroll_messages.VERSION.message_bytes(1)
  ratio = config.plan.replay.replay_ratio if config.plan.replay else 1.0
  return Traffic(
    number,
    steps,
    layout.message_bytes(num_envs) / steps,
    reply_bytes / steps + fetched_bytes / fetch_steps,
    fetched_bytes / fetch_steps,
    fetch_steps,
    config.plan.batch_steps,
    ratio,
    _cost(config, programs, layout, seconds),
  )


def _cost(
  config: impala.Config,
  programs: local_actor.Programs,
  layout: wire.Layout,
  seconds: float,
) -> float:
  """Returns the learner's CPU seconds for a message of unrolls."""
  agent = programs.agent
  acting = jax.jit(lambda key: agent.acting(agent.init(key)))(jax.random.key(0))
  server = unroll_server.UnrollServer(
    programs,
    config.actors,
    counters.ActingCounts(),
    seeding.Seeds(0),
    config.env,
    newest=lambda: (acting, 0),
    sink=lambda share: True,
  )
  bound = _Bound()
  server.bind(bound)  # type: ignore[arg-type]
  hello = {"num_envs": config.actors.envs_per_actor}
  session = bound.sessions[unroll_messages.EXPERIENCE](hello)
  exploration = np.asarray(session.welcome["exploration"], np.float32)
  first, later = (
    layout.encode(_experience(programs, exploration, is_first))
    for is_first in (True, False)
  )
  session(layout.decode(first))
  return work.cpu_seconds_per_call(
    lambda: session(layout.decode(later)), seconds
  )


class _Bound:
  """A substitute for a server, which keeps functions that open sessions."""

  def __init__(self) -> None:
    self.sessions: dict[str, Callable[[Mapping[str, Any]], Any]] = {}

  def bind(self, name: str, *arguments: Any, **options: Any) -> None:
    """Ignores a method without sessions."""

  def bind_stream(
    self,
    name: str,
    open_session: Callable[[Mapping[str, Any]], Any],
    **layouts: wire.Layout,
  ) -> None:
    """Keeps the function that opens a method's sessions."""
    self.sessions[name] = open_session


def _experience(
  programs: local_actor.Programs, exploration: np.ndarray, is_first: bool
) -> unroll_messages.Experience:
  """Returns unrolls of zeros, whose episodes do not end."""
  share, rows = programs.share(), len(exploration)
  length = share.data.version.shape[0]

  def of_steps(leaf: types.Array) -> np.ndarray:
    return np.zeros((rows, length, *leaf.shape[2:]), leaf.dtype)

  def of_unroll(leaf: types.Array) -> np.ndarray:
    return np.zeros((rows, *leaf.shape[1:]), leaf.dtype)

  steps = jax.tree.map(of_steps, share.data._replace(core_state=()))
  step_type = np.ones((rows, length), np.uint8)
  step_type[:, 0] = 0 if is_first else 1
  timestep = steps.inputs.timestep._replace(
    step_type=step_type, discount=np.ones((rows, length), np.float32)
  )
  inputs = steps.inputs._replace(
    timestep=timestep,
    exploration=np.repeat(exploration[:, None], length, axis=1),
  )
  return unroll_messages.Experience(
    unroll=steps._replace(
      inputs=inputs, core_state=jax.tree.map(of_unroll, share.data.core_state)
    ),
    priorities=jax.tree.map(of_unroll, share.priorities),
    episode_return=np.full((rows, length), np.nan, np.float32),
    wait_environments=np.float32(0),
    wait_learner=np.float32(0),
  )


def _of_gradients(
  config: gorila.Config,
  agent: base.Agent,
  spec: types.EnvironmentSpec,
  number: int,
) -> Traffic:
  shapes = worker_lib.Shapes.of(agent, spec, config.plan, config.workers)
  rows, steps = config.workers.envs_per_worker, config.workers.batch_steps
  gradient, reply = (
    layout.message_bytes(1) for layout in parameter_server.layouts(number)
  )
  gradient_steps = config.replay.steps_per_update(agent.needs.learned_steps)
  return Traffic(
    number,
    gradient_steps,
    gradient / gradient_steps + shapes.report.message_bytes(rows) / steps,
    reply / gradient_steps,
    (gradient + reply) / gradient_steps,
    gradient_steps,
    times_learned=config.replay.replay_ratio,
  )
