"""The actor with a copy of the parameters: acts by itself, sends unrolls."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable

import jax
import numpy as np

from seedx import envs, metrics, types, wire
from seedx.agents import base
from seedx.runtime import (
  feeds,
  local_actor,
  protocol,
  reconnect,
  roster,
  unrolls,
)

_WAIT_LEARNER = "learner"


@dataclasses.dataclass(frozen=True)
class Config:
  """One actor.

  Attributes:
    address: of the learner.
    env: which environment.
    make_agent: `(spec, axis_name) -> Agent`.
    num_envs: environments of this actor.
    unroll_length: T, new steps of an unroll.
    num_threads: threads that step the environments.
  """

  address: str
  env: envs.Config
  make_agent: Callable[[types.EnvironmentSpec, str | None], base.Agent]
  num_envs: int
  unroll_length: int
  num_threads: int = 1


def run(config: Config, stop: threading.Event) -> None:
  """Acts until the learner says that it is done, or `stop` is set.

  Raises:
    types.ConfigError: the environment cannot be made.
    wire.WireError: the learner refuses this actor.
  """
  spec = envs.spec(config.env)
  agent = config.make_agent(spec, None)
  layout = unrolls.Layout(
    num_slots=config.num_envs,
    length=feeds.unroll_length(agent, config.unroll_length),
    period=config.unroll_length,
  )
  programs = local_actor.Programs(agent, spec, layout)

  def session(client: wire.Client) -> None:
    _act(config, programs, client, stop)

  reconnect.until_done(config.address, session, stop, "actor")


def _act(
  config: Config,
  programs: local_actor.Programs,
  client: wire.Client,
  stop: threading.Event,
) -> None:
  """One lease: parameters come down between unrolls, unrolls go up."""
  with contextlib.ExitStack() as opened:
    parameters = _Parameters(client, programs)
    opened.callback(parameters.close)
    exchange = wire.Exchange(
      client,
      protocol.EXPERIENCE,
      inputs=protocol.experience_layout(
        programs.item(), programs.window, config.num_envs
      ),
      outputs=protocol.VERSION,
      hello={"num_envs": config.num_envs},
    )
    opened.callback(exchange.close)
    waits = metrics.Waits({metrics.WAIT_REQUESTS: 1, _WAIT_LEARNER: 1})
    first_seed = int(exchange.welcome["first_seed"])
    actor = local_actor.LocalActor(
      programs,
      config.env,
      seed=first_seed,
      rng_key=jax.random.key(first_seed),
      device=parameters.device,
      waits=waits,
      exploration=np.asarray(exchange.welcome["exploration"], np.float32),
      num_threads=config.num_threads,
    )
    opened.callback(actor.close)
    message = _Messages(programs, waits)
    newest = parameters.newest()
    while newest is not None and not stop.is_set():
      rows, unroll = actor.observe(*newest)
      message.add(rows)
      if unroll is not None:
        experience = message.experience(newest[0], unroll)
        with waits.timed(_WAIT_LEARNER):
          reply = exchange(experience)
          if reply is None:
            return
          if reply[0] > newest[1]:
            newest = parameters.newest()
            if newest is None:
              return
      actor.act(*newest)


class _Parameters:
  """Where the newest parameters come from."""

  def __init__(
    self, client: wire.Client, programs: local_actor.Programs
  ) -> None:
    agent = programs.agent
    acting = jax.eval_shape(
      lambda key: agent.acting(agent.init(key)), jax.random.key(0)
    )
    self.device = jax.local_devices()[0]
    # A stream, since its end tells a learner that is done from one that died.
    self._exchange = wire.Exchange(
      client,
      protocol.PARAMETERS,
      inputs=protocol.NOTHING,
      outputs=protocol.parameters_layout(acting),
    )

  def newest(self) -> tuple[types.Tree, np.int32] | None:
    """The newest parameters, on this actor's device, and their version.

    Returns:
      None where the learner is done.
    """
    reply = self._exchange(())
    if reply is None:
      return None
    acting = jax.tree.map(lambda leaf: leaf[0], reply.acting)
    return jax.device_put(acting, self.device), np.int32(reply.version[0])

  def close(self) -> None:
    """Ends the stream."""
    self._exchange.close()


class _Messages:
  """What an actor sends of its unrolls."""

  def __init__(
    self, programs: local_actor.Programs, waits: metrics.Waits
  ) -> None:
    self._priorities = None
    if programs.agent.priorities is not None:
      self._priorities = jax.jit(programs.agent.priorities)
    self._waits = waits
    self._done = roster.Done(programs.layout.num_slots, programs.layout.length)

  def add(self, rows: types.Rows) -> None:
    """Takes note of a step of all environments."""
    self._done.add(rows)

  def experience(
    self, acting: types.Tree, unroll: types.Unroll
  ) -> protocol.Experience:
    """The message that goes with `[L, N, ...]` unrolls."""
    priorities: types.Tree = ()
    if self._priorities is not None:
      priorities = np.asarray(self._priorities(acting, unroll))
    steps = jax.tree.map(
      lambda leaf: np.swapaxes(np.asarray(leaf), 0, 1), tuple(unroll[:-1])
    )
    core_state = jax.tree.map(np.asarray, unroll.core_state)
    env_steps, episode_return = self._done.take()
    shares = self._waits.shares()

    def same(name: str) -> np.ndarray:
      return np.full(len(env_steps), shares[name], np.float32)

    return protocol.Experience(
      unroll=types.Unroll._make([*steps, core_state]),
      priorities=priorities,
      env_steps=env_steps,
      episode_return=episode_return,
      wait_environments=same(metrics.WAIT_REQUESTS),
      wait_learner=same(_WAIT_LEARNER),
    )
