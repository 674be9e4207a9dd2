"""The unroll actor: acts with a copy of the parameters, and sends unrolls."""

import contextlib
import dataclasses
import threading

import jax
import numpy as np

from seedx import envs, metrics, types, wire
from seedx.acting import local_actor, parameters, protocol, unroll_messages
from seedx.agents import base

_WAIT_LEARNER = "learner"


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of one unroll actor.

  Attributes:
    address: address of the learner.
    env: the environment.
    agent: config of the agent that acts.
    horizon: length of the run.
    actors: settings of all actors.
    unroll_length: number of new env steps of an unroll (T).
    fetch_interval: number of env steps of this actor, over all its
      environments, between two fetches of parameters; 0 for a fetch after each
      unroll.
    security: TLS and token of the connection.
  """

  address: str
  env: envs.Config
  agent: base.Config
  horizon: base.Horizon
  actors: protocol.Actors
  unroll_length: int
  fetch_interval: int = 0
  security: wire.Security = wire.LOCAL


def run(work: Work, stop: threading.Event) -> None:
  """Acts until the run is over or `stop` is set.

  Raises:
    types.ConfigError: the environment cannot be made.
    wire.WireError: the learner refuses this actor.
  """
  spec = envs.spec(work.env)
  agent = work.agent.make(spec, None, work.horizon)
  programs = local_actor.Programs.of(
    agent, spec, work.unroll_length, work.actors.envs_per_actor
  )
  device = jax.local_devices()[0]
  acting = jax.jit(lambda key: agent.acting(agent.init(key)))(jax.random.key(0))
  acting = jax.device_put(acting, device)
  # Compiles before connecting, so that no leased slot waits for compilation.
  unroll = programs.warm_up(acting, device)
  programs.priorities(acting, unroll)

  def session(client: wire.Client) -> None:
    fetched = parameters.Copy(client, acting, device)
    with contextlib.closing(fetched):
      _act(work, programs, client, fetched, stop)

  wire.until_done(work.address, session, stop, "actor", security=work.security)


def _act(
  work: Work,
  programs: local_actor.Programs,
  client: wire.Client,
  fetched: parameters.Copy,
  stop: threading.Event,
) -> None:
  """Acts for one session: sends unrolls, and fetches parameters in between."""
  num_envs = work.actors.envs_per_actor
  with contextlib.ExitStack() as opened:
    exchange = client.exchange(
      unroll_messages.EXPERIENCE,
      inputs=unroll_messages.experience_layout(
        programs.share(), num_envs, len(programs.spec.log_info)
      ),
      outputs=unroll_messages.VERSION,
      hello={"num_envs": num_envs},
    )
    opened.callback(exchange.close)
    waits = metrics.Waits({metrics.WAIT_ENVIRONMENTS: 1, _WAIT_LEARNER: 1})
    first_seed = protocol.first_seed(exchange.welcome)
    actor = local_actor.LocalActor(
      programs,
      protocol.env_at(work.env, exchange.welcome),
      seed=first_seed,
      rng_key=jax.random.key(0),
      device=fetched.device,
      waits=waits,
      exploration=unroll_messages.exploration(exchange.welcome, num_envs),
    )
    opened.callback(actor.close)
    messages = _Messages(programs, waits)
    held, since_fetch = fetched.newest(), 0
    while held is not None and not stop.is_set():
      rows, unroll = actor.observe(held.acting, held.version)
      messages.add(rows)
      if unroll is not None:
        experience = messages.experience(held.acting, unroll)
        with waits.timed(_WAIT_LEARNER):
          reply = exchange(experience)
          if reply is None:
            return
          since_fetch += num_envs * work.unroll_length
          due = since_fetch >= work.fetch_interval
          newest = fetched.newest(reply if due else held.version)
        if newest is None:
          return
        if newest is not held:
          held, since_fetch = newest, 0
      actor.act(held.acting, held.version)


class _Messages:
  """Messages of an actor, from its rows and unrolls."""

  def __init__(
    self, programs: local_actor.Programs, waits: metrics.Waits
  ) -> None:
    self._programs = programs
    self._waits = waits
    self._unreported = local_actor.Backlog(
      programs.layout.num_slots,
      programs.layout.length,
      len(programs.spec.log_info),
    )

  def add(self, rows: types.Rows) -> None:
    """Adds one step of all environments."""
    self._unreported.add(rows)

  def experience(
    self, acting: types.Tree, unroll: types.Unroll
  ) -> unroll_messages.Experience:
    """Returns `[L, N, ...]` unrolls as a message; checks their priorities."""
    programs = self._programs
    priorities = jax.tree.map(np.asarray, programs.priorities(acting, unroll))
    for leaf in jax.tree.leaves(priorities):
      _check_priorities(leaf)
    unroll = jax.tree.map(np.asarray, programs.agent.needs.stored(unroll))
    unreported, _ = self._unreported.take()
    waits = self._waits.measure()

    return unroll_messages.Experience(
      unroll=unroll_messages.swapped(unroll),
      priorities=priorities,
      episode_return=unreported.episode_return,
      wait_environments=np.float32(waits[metrics.WAIT_ENVIRONMENTS]),
      wait_learner=np.float32(waits[_WAIT_LEARNER]),
      info=unreported.info,
    )


def _check_priorities(priorities: np.ndarray) -> None:
  """Raises RuntimeError if one of `[N, windows]` is no valid priority."""
  valid = np.isfinite(priorities) & (priorities >= 0)
  if not valid.all():
    row = np.flatnonzero(~valid.all(axis=1))[0]
    raise RuntimeError(
      f"expected finite priorities of 0 or more, found {priorities[row]} for"
      f" environment {row} of this actor: its rewards, its observations or the"
      " Q-values are not finite, or too large; a smaller reward_scale helps"
      f"{types.see('numbers-that-are-not-finite')}"
    )
