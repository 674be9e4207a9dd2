"""An inference process: acts for thin actors, and forwards their unrolls.

It is the acting half of a SEED learner in a process of its own. A session with
the learner has a server of thin actors, an unroll store on each device, and a
copy of the parameters, which is fetched again when the learner has newer ones.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from seedx import channels, envs, types, wire
from seedx.acting import (
  forwarded,
  inference,
  inference_server,
  local_actor,
  parameters,
  thin_actor,
)
from seedx.agents import base, models
from seedx.runtime import counters, publication, running, seeding
from seedx.wire import serving

_LOOK_SECONDS = 0.2
_STOP_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of one inference process.

  Attributes:
    address: address at which the process serves its actors.
    learner: address of the learner.
    process: index of this process.
    processes: number of inference processes.
    env: the environment.
    agent: config of the agent that acts.
    horizon: length of the run.
    actors: settings of all actors.
    inference: devices that act.
    unroll_length: number of new env steps of an unroll (T).
    message_size: number of unrolls in a message to the learner.
    security: TLS and token of all connections.
  """

  address: str
  learner: str
  process: int
  processes: int
  env: envs.Config
  agent: base.Config
  horizon: base.Horizon
  actors: thin_actor.Config
  inference: inference.Config
  unroll_length: int
  message_size: int
  security: wire.Security = wire.LOCAL


def run(work: Work, stop: threading.Event) -> None:
  """Acts until the run is over or `stop` is set.

  Raises:
    types.ConfigError: the environment cannot be made, the address is in use, or
      a device does not exist.
    wire.WireError: the learner refuses this process.
  """
  spec = envs.spec(work.env)
  on_cpu = jax.default_backend() == "cpu"
  config = models.on_cpu(work.agent) if on_cpu else work.agent
  agent = config.make(spec, None, work.horizon)
  programs = local_actor.Programs.of(
    agent, spec, work.unroll_length, work.message_size
  )

  def session(client: wire.Client) -> None:
    _Session(work, programs, client).run(stop)

  wire.until_done(
    work.learner, session, stop, "inference", security=work.security
  )


class _Session:
  """The time from a connection to the learner to its end."""

  def __init__(
    self, work: Work, programs: local_actor.Programs, client: wire.Client
  ) -> None:
    agent, spec, num_envs = programs.agent, programs.spec, work.actors.num_envs
    num_info = len(spec.log_info)
    self._layout = forwarded.layout(programs.share(), num_envs, num_info)
    self._exchange = client.exchange(
      forwarded.FORWARD,
      self._layout,
      forwarded.ANSWER,
      hello={"process": work.process},
    )
    devices = work.inference.devices()
    form = jax.eval_shape(
      lambda key: agent.acting(agent.init(key)), jax.random.key(0)
    )
    self._fetched = parameters.Copy(client, form, devices[0])
    self._published = publication.Publication(devices)
    self._version = 0
    self._answered = threading.Event()
    if not self._publish(wait=True):
      raise wire.WireError(wire.StatusCode.CANCELLED, "this run is over")
    range_size = min(num_envs, forwarded.MAX_SEEDS)
    seeds = Seeds(lambda count: _leased(client, count), range_size)
    self._counts = Counts(num_info, self._exchange.welcome["env_steps"])
    self._shares = channels.Channel[types.Share](1)
    self._inference = inference.Devices(
      work.inference,
      agent,
      spec,
      work.actors,
      self._counts,
      returns_are_sums=envs.returns_are_sums(work.env),
      period=work.unroll_length,
      share_size=work.message_size,
      newest=self._published.newest,
      sink=self._shares.put,
      waiting=lambda device: contextlib.nullcontext(),
      rng_key=jax.random.fold_in(jax.random.key(0), seeds.take(1)),
      process=work.process,
      processes=work.processes,
    )
    # Twice, because a dead actor holds its stream until its death is noticed.
    streams = 2 * work.actors.num_actors
    self._server = serving.Server(work.address, streams, security=work.security)
    service = inference_server.InferenceServer(
      self._inference, seeds, self._counts
    )
    service.bind(self._server)

  def run(self, stop: threading.Event) -> None:
    """Acts until the run is over, or `stop` is set."""
    self._over = over = threading.Event()
    team = running.ThreadGroup(over)
    self._server.start()
    try:
      for name, target in self._inference.threads.items():
        team.start(name, target)
      team.start("forward", self._forward)
      team.start("fetch", self._fetch)
      while not over.wait(_LOOK_SECONDS) and not stop.is_set():
        pass
    finally:
      over.set()
      self._shares.close()
      self._exchange.close()
      self._fetched.close()
      self._server.stop()
      self._inference.close()
      team.join(_STOP_SECONDS)

  def _forward(self) -> None:
    """Sends unrolls; each message also has the counts since the last one."""
    while shares := self._shares.get():
      events, env_steps, discarded = self._counts.take(self._layout.max_rows)
      metrics = self._inference.measure()
      measured = [metrics[name] for name in forwarded.MEASURED]
      answer = self._exchange(
        forwarded.Forward(
          events,
          jax.tree.map(np.asarray, shares[0]),
          np.int32(env_steps),
          np.int32(discarded),
          np.array(measured, np.float32),  # NaN for None.
        )
      )
      if answer is None:
        break
      self._counts.run_steps = int(answer.env_steps)
      self._version = int(answer.version)
      self._answered.set()
    self._over.set()

  def _fetch(self) -> None:
    """Fetches parameters whenever an answer names newer ones."""
    while not self._over.is_set() and self._publish(wait=False):
      self._answered.wait(_LOOK_SECONDS)
      self._answered.clear()

  def _publish(self, wait: bool) -> bool:
    """Publishes the newest parameters; returns False when the run is over."""
    snapshot = self._fetched.newest(self._version)
    if snapshot is None:
      return False
    self._published.put(snapshot.acting, int(snapshot.version), wait)
    return True


class Seeds(seeding.Seeds):
  """Seeds of environments, which the learner leases in ranges."""

  def __init__(self, lease: Callable[[int], int], size: int) -> None:
    """Makes seeds without a range.

    Args:
      lease: function that leases a number of seeds, and returns the first.
      size: number of seeds in a range.
    """
    super().__init__(0)
    self._lease, self._size, self._left = lease, size, 0

  def take(self, count: int) -> int:
    """See `seeding.Seeds`; what is left of a range that is too short is lost.

    Raises:
      wire.Refusal: UNAVAILABLE, the learner leases none.
    """
    with self._lock:
      if count > self._left:
        size = max(count, self._size)
        self._next, self._left = self._lease(size), size
      first, self._next = self._next, self._next + count
      self._left -= count
      return first


def _leased(client: wire.Client, count: int) -> int:
  seeds = forwarded.SEED_LAYOUT
  try:
    return int(client.call(forwarded.SEEDS, np.int32(count), seeds, seeds))
  except wire.WireError as error:
    raise wire.Refusal(wire.StatusCode.UNAVAILABLE, error.message) from None


class Counts(counters.ActingCounts):
  """The counts of an inference process since its last message.

  Attributes:
    run_steps: env steps of the run, as of the last answer.
  """

  def __init__(self, num_info: int, run_steps: int) -> None:
    super().__init__()
    self.run_steps = run_steps
    self._num_slots, self._new_steps, self._discarded = 0, 0, 0
    self._events = np.zeros((0, 4 + num_info))

  @property
  def env_steps(self) -> int:
    """The number of env steps of the run."""
    return self.run_steps

  def environments(self, reported: np.ndarray) -> counters.Environments:
    """See `counters.ActingCounts`; the slots follow those of earlier calls."""
    first, self._num_slots = self._num_slots, self._num_slots + len(reported)
    return _Environments(self, self._rounds, first + np.arange(len(reported)))

  def add_discarded(self, unrolls: int) -> None:
    """See `counters.ActingCounts`."""
    with self._lock:
      self._discarded += unrolls

  def note(
    self, kind: int, slots: np.ndarray, games: types.Array = 0.0, steps: int = 0
  ) -> None:
    """Adds env steps, and an event of each slot.

    `games` has the `[B, 2 + E]` other columns of `forwarded.Forward.events`.
    """
    rows = np.zeros((len(slots), self._events.shape[1]))
    rows[:, 0], rows[:, 1], rows[:, 2:] = kind, slots, games
    with self._lock:
      self._new_steps += steps
      self._events = np.concatenate([self._events, rows])

  def take(self, maximum: int) -> tuple[np.ndarray, int, int]:
    """Returns up to `maximum` events, the env steps and the discarded unrolls.

    The next call does not return them again.
    """
    with self._lock:
      counts = self._new_steps, self._discarded
      self._new_steps = self._discarded = 0
      taken, self._events = np.split(self._events, [maximum - 1])
    # A message has at least one event.
    return np.pad(taken, ((1, 0), (0, 0))), *counts


class _Environments(counters.Environments):
  """Counter of the experience in some slots of an inference process."""

  def __init__(self, counts: Counts, rounds: Any, slots: np.ndarray) -> None:
    super().__init__(counts, rounds, np.ones(len(slots), np.bool_))
    self._counts, self._slots = counts, slots

  def join(self, index: np.ndarray | slice) -> None:
    self._counts.note(forwarded.JOINED, self._slots[index])

  def leave(self, index: np.ndarray | slice = slice(None)) -> None:
    self._counts.note(forwarded.LEFT, self._slots[index])

  def add(
    self,
    env_steps: int,
    index: np.ndarray | slice,
    returns: np.ndarray,
    lengths: np.ndarray,
    info: types.Tree = (),
  ) -> None:
    ended, _ = np.nonzero(~np.isnan(returns))
    columns = [returns, lengths, *([info[:, 0]] if len(info) else [])]
    games = np.concatenate([x[ended] for x in columns], axis=1)
    slots = self._slots[index][ended]
    self._counts.note(forwarded.ENDED, slots, games, env_steps)
