"""An inference process: acts for thin actors, and forwards their unrolls.

It is the acting half of a SEED learner in a process of its own. A session with
the learner has a server of thin actors, an unroll store on each device, and a
copy of the parameters, which is fetched again when the learner has newer ones.
"""

import contextlib
import dataclasses
import threading

import jax
import numpy as np

from seedx import channels, envs, types, wire
from seedx.acting import (
  forwarded,
  inference,
  inference_server,
  local_actor,
  parameters,
  protocol,
  thin_actor,
  unroll_messages,
)
from seedx.agents import base, models
from seedx.runtime import counters, publication, running
from seedx.wire import serving

_LOOK_SECONDS = 0.2
_STOP_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of one inference process.

  Attributes:
    address: address at which the process serves its actors.
    process: index of this process.
    processes: number of inference processes.
    actor: the work of an actor; its address is that of the learner.
    agent: config of the agent that acts.
    horizon: length of the run.
    inference: devices that act.
    unroll_length: number of new env steps of an unroll (T).
    message_size: number of unrolls in a message to the learner.
  """

  address: str
  process: int
  processes: int
  actor: thin_actor.Work
  agent: base.Config
  horizon: base.Horizon
  inference: inference.Config
  unroll_length: int
  message_size: int


def run(work: Work, stop: threading.Event) -> None:
  """Acts until the run is over or `stop` is set.

  Raises:
    types.ConfigError: the environment cannot be made, the address is in use, or
      a device does not exist.
    wire.WireError: the learner refuses this process.
  """
  spec = envs.spec(work.actor.env)
  on_cpu = jax.default_backend() == "cpu"
  config = models.on_cpu(work.agent) if on_cpu else work.agent
  agent = config.make(spec, None, work.horizon)
  programs = local_actor.Programs.of(
    agent, spec, work.unroll_length, work.message_size
  )

  def session(client: wire.Client) -> None:
    _Session(work, programs, client).run(stop)

  wire.until_done(
    work.actor.address,
    session,
    stop,
    "inference",
    security=work.actor.security,
  )


class _Session:
  """The time from a connection to the learner to its end."""

  def __init__(
    self, work: Work, programs: local_actor.Programs, client: wire.Client
  ) -> None:
    actors, spec = work.actor.actors, programs.spec
    num_info = len(spec.log_info)
    self._layout = forwarded.layout(programs.share(), actors.num_envs, num_info)
    self._exchange = client.exchange(
      forwarded.FORWARD,
      self._layout,
      unroll_messages.VERSION,
      hello={"process": work.process},
    )
    devices = work.inference.devices()
    self._fetched = parameters.Copy(client, programs.acting(), devices[0])
    self._published = publication.Publication(devices)
    self._held: unroll_messages.Snapshot | None = None
    if not self._publish():
      raise wire.WireError(wire.StatusCode.CANCELLED, "this run is over")
    self._journal = Journal(num_info)
    self._shares = channels.Channel[types.Share](1)
    seed = protocol.first_seed(self._exchange.welcome)
    self._inference = inference.Devices(
      work.inference,
      programs.agent,
      spec,
      actors,
      self._journal,
      returns_are_sums=envs.returns_are_sums(work.actor.env),
      period=work.unroll_length,
      share_size=work.message_size,
      newest=self._published.newest,
      sink=self._shares.put,
      waiting=lambda device: contextlib.nullcontext(),
      rng_key=jax.random.fold_in(jax.random.key(0), seed),
      process=work.process,
      processes=work.processes,
    )
    # Twice, because a dead actor holds its stream until its death is noticed.
    self._server = serving.Server(
      work.address, 2 * actors.num_actors, security=work.actor.security
    )
    service = inference_server.InferenceServer(
      self._inference, None, self._journal
    )
    service.bind(self._server)

  def run(self, stop: threading.Event) -> None:
    """Acts until the run is over, or `stop` is set."""
    team = running.ThreadGroup()
    self._server.start()
    try:
      for name, target in self._inference.threads.items():
        team.start(name, target)
      team.start("forward", self._forward)
      while not (stop.is_set() or team.stop.is_set()):
        if self._exchange.over.wait(_LOOK_SECONDS):
          break
    finally:
      self._shares.close()
      self._exchange.close()
      self._fetched.close()
      self._server.stop()
      self._inference.close()
      team.join(_STOP_SECONDS)

  def _forward(self) -> None:
    """Sends unrolls, and fetches parameters when an answer names newer ones."""
    while shares := self._shares.get():
      metrics = self._inference.measure()
      measured = [metrics[name] for name in forwarded.MEASURED]
      version = self._exchange(
        forwarded.Forward(
          self._journal.take(self._layout.max_rows),
          jax.tree.map(np.asarray, shares[0]),
          np.array(measured, np.float32),  # NaN for None.
        )
      )
      if version is None or not self._publish(version):
        return
    for _ in self._exchange:  # Raises if the learner has died.
      pass

  def _publish(self, version: int | None = None) -> bool:
    """Publishes parameters of a newer version; False when the run is over."""
    held, self._held = self._held, self._fetched.newest(version)
    if self._held is not None and self._held is not held:
      self._published.put(self._held.acting, int(self._held.version), wait=True)
    return self._held is not None


class Journal(counters.ActingCounts):
  """Events of an inference process's environments since the last message."""

  def __init__(self, num_info: int) -> None:
    """Starts without events; `num_info` is the number E in `Forward`."""
    super().__init__()
    self._num_slots, self._new_steps = 0, 0
    self._events = np.zeros((0, 4 + num_info))

  def environments(self, reported: np.ndarray) -> counters.Environments:
    """See `counters.ActingCounts`; the slots follow those of earlier calls."""
    first, self._num_slots = self._num_slots, self._num_slots + len(reported)
    return _Environments(self, first + np.arange(len(reported)))

  def add_discarded(self, unrolls: int) -> None:
    """See `counters.ActingCounts`."""
    self.note(forwarded.DISCARDED, np.zeros(1), np.full((1, 1), unrolls))

  def note(
    self, kind: int, slots: np.ndarray, *columns: np.ndarray, steps: int = 0
  ) -> None:
    """Adds env steps, and an event of each slot.

    Each array has some `[B, ...]` columns of `forwarded.Forward.events`.
    """
    kinds = np.full(len(slots), kind)
    rows = np.column_stack([kinds, slots, *columns])
    missing = self._events.shape[1] - rows.shape[1]
    with self._lock:
      self._new_steps += steps
      self._events = np.concatenate(
        [self._events, np.pad(rows, ((0, 0), (0, missing)))]
      )

  def take(self, maximum: int) -> np.ndarray:
    """Returns up to `maximum` events, which the next call does not return.

    The first event has the env steps.
    """
    with self._lock:
      steps, self._new_steps = self._new_steps, 0
      taken, self._events = np.split(self._events, [maximum - 1])
    events = np.pad(taken, ((1, 0), (0, 0)))
    events[0, :3] = forwarded.STEPS, 0, steps
    return events


class _Environments(counters.Environments):
  """Counter of the experience in some slots of an inference process."""

  def __init__(self, journal: Journal, slots: np.ndarray) -> None:
    self._journal, self._slots = journal, slots

  def join(self, index: np.ndarray | slice) -> None:
    self._journal.note(forwarded.JOINED, self._slots[index])

  def leave(self, index: np.ndarray | slice = slice(None)) -> None:
    self._journal.note(forwarded.LEFT, self._slots[index])

  def add(
    self,
    env_steps: int,
    index: np.ndarray | slice,
    returns: np.ndarray,
    lengths: np.ndarray,
    info: types.Tree = (),
  ) -> None:
    ended, _ = np.nonzero(~np.isnan(returns))
    columns = lengths, returns, *([info[:, 0]] if len(info) else [])
    games = [x[ended] for x in (self._slots[index], *columns)]
    self._journal.note(forwarded.ENDED, *games, steps=env_steps)
