"""Unrolls that inference processes forward to the learner of a pool.

An inference process opens the stream `FORWARD` with the hello `{"process": k}`.
The process sends `Forward`: a part of a share, with finished unrolls of any of
its slots, and what its environments did since its last message. The reply,
`Answer`, comes when the learner has taken the unrolls. The process leases seeds
for its actors' environments in ranges, by calls of `SEEDS`, and fetches
parameters as unroll actors do, see `unroll_messages`.

A thin actor that opens `protocol.ACT` receives the addresses of the inference
processes.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from seedx import metrics, types, wire
from seedx.acting import (
  inference,
  local_actor,
  parameters,
  protocol,
  unroll_server,
)
from seedx.runtime import counters, seeding
from seedx.wire import serving

FORWARD = "forward"
SEEDS = "seeds"
# Largest number of seeds in a lease.
MAX_SEEDS = 2**20
# Kinds of events; one of the first kind is in each message.
NONE, JOINED, LEFT, ENDED = range(4)
# Metrics of inference, in the order of `Forward.measured`.
MEASURED = (
  metrics.WAIT_ENVIRONMENTS,
  metrics.WAIT_LEARNER,
  inference.WAIT_DEVICE,
  "inference_rows",
  "reply_seconds_p50",
  "reply_seconds_p99",
)


class Forward(NamedTuple):
  """Finished unrolls of an inference process, and its counts.

  Attributes:
    events: `[B, 4 + E]` float64, the events of environments since the last
      message, in order. The columns are the kind: an environment joined, left,
      or ended a game; its slot in the inference process; the game's return and
      length, and the E entries of its last `info`, see `types.Rows`; 0 for
      other events.
    share: finished unrolls, as a share of them alone, see `types.Share`.
    env_steps: `[]` int32, number of env steps since the last message.
    discarded: `[]` int32, number of unrolls that actors left unfinished.
    measured: `[6]` float32 metrics, see `MEASURED`; NaN for none.
  """

  events: types.Array
  share: types.Share
  env_steps: types.Array
  discarded: types.Array
  measured: types.Array


class Answer(NamedTuple):
  """The learner's answer to a `Forward`.

  Attributes:
    version: `[]` int32, version of the newest acting parameters.
    env_steps: `[]` int64, env steps of the run so far.
  """

  version: types.Array
  env_steps: types.Array


_NUMBER = np.zeros((), np.int32)
SEED_LAYOUT = wire.Layout.of(wire.once(_NUMBER), 1)
ANSWER = wire.Layout.of(wire.once(Answer(_NUMBER, np.zeros((), np.int64))), 1)


def num_parts(share_size: int, processes: int) -> int:
  """Returns the number of equal parts of a share, one in each message.

  The number is at least that of the processes, as far as a share has as many
  unrolls: so a process does not collect unrolls for longer than one that alone
  acts for all.
  """
  first = min(processes, share_size)
  return next(n for n in range(first, share_size + 1) if share_size % n == 0)


def layout(share: types.Share, num_slots: int, num_info: int) -> wire.Layout:
  """Returns the layout of `Forward`.

  Args:
    share: unrolls of a message, of which only shapes and dtypes matter.
    num_slots: number of slots of all inference processes.
    num_info: number E of logged entries of `info`.
  """
  measured = np.zeros(len(MEASURED), np.float32)
  once = wire.once((share, _NUMBER, _NUMBER, measured))
  length, size = share.data.version.shape
  # Some shares wait, and an environment ends at most one game in each step.
  max_rows = 4 * (num_slots + size) * (length + 1)
  return wire.Layout.of(Forward(np.zeros(4 + num_info), *once), max_rows)


class ForwardServer:
  """The learner's server of inference processes.

  Attributes:
    layout: layout of their messages.
  """

  def __init__(
    self,
    programs: local_actor.Programs,
    share_size: int,
    sizes: Sequence[inference.Sizes],
    processes: int,
    acted: counters.ActingCounts,
    seeds: seeding.Seeds,
    addresses: Callable[[int], str],
    newest: Callable[[], tuple[types.Tree, int]],
    sink: inference.Sink,
  ) -> None:
    """Makes the server; `bind` adds its methods to a `wire` server.

    Args:
      programs: programs of an actor with as many environments as a message has
        unrolls.
      share_size: number of unrolls of a share, a multiple of that of a message.
      sizes: sizes of all devices of the first inference process, then of the
        others.
      processes: number of inference processes.
      acted: counts of all experience.
      seeds: seeds of environments.
      addresses: function that returns the address of an inference process, ""
        before it has joined.
      newest: function that returns the newest acting parameters and their
        version.
      sink: function that takes shares; inference waits while it blocks.
    """
    self._programs = programs
    self._parts = share_size // programs.layout.num_slots
    slots = np.reshape([x.layout.num_slots for x in sizes], (processes, -1))
    self._first = np.cumsum([0, *slots.sum(axis=1)])
    self._acted = acted
    self._seeds = seeds
    self._addresses = addresses
    self._newest = newest
    self._sink = sink
    spec = programs.spec
    self.layout = layout(
      programs.share(), int(self._first[-1]), len(spec.log_info)
    )
    self._environments = acted.environments(
      np.concatenate([x.reported for x in sizes])
    )
    # Held while the sink blocks, so that shares arrive one by one.
    self._filling = threading.Lock()
    self._waiting: list[types.Share] = []
    self._lock = threading.Lock()
    self._open: dict[int, _Session] = {}
    self._turn = itertools.count()

  def bind(self, server: serving.Server) -> None:
    """Binds the methods for inference processes and for actors."""
    parameters.Source(self._newest).bind(server)
    server.bind(SEEDS, self._lease, SEED_LAYOUT, SEED_LAYOUT)
    server.bind_stream(FORWARD, self._join, self.layout, ANSWER)
    layouts = protocol.act_layouts(self._programs.spec, int(self._first[-1]))
    server.bind_stream(protocol.ACT, self._direct, *layouts)

  def example(self) -> types.Share:
    """Returns a share of zeros."""
    zeros = jax.tree.map(
      lambda x: np.zeros(x.shape, x.dtype), self._programs.share()
    )
    return _joined([zeros] * self._parts)

  def measure(self) -> dict[str, metrics.Value]:
    """Returns the means of the inference processes' metrics."""
    with self._lock:
      measured = [x.measured for x in self._open.values()]
    columns = np.transpose(measured or np.full((1, len(MEASURED)), np.nan))
    numbers = [column[~np.isnan(column)] for column in columns]
    return {
      name: float(np.mean(values)) if len(values) else None
      for name, values in zip(MEASURED, numbers, strict=True)
    }

  def check(self, inputs: Forward) -> None:
    """Checks the ranges of numbers, and the order of steps.

    Raises:
      wire.Refusal: INVALID_ARGUMENT, a number or a step is not valid.
    """
    share, (kind, _, *games) = inputs.share, inputs.events.T[:4]
    unroll, (_, version) = share.data, self._newest()
    spec = self._programs.spec.action
    unroll_server.check(unroll, share.priorities, spec, version)
    wire.check_range("exploration", unroll.inputs.exploration, 0, 1)
    step_type = unroll.inputs.timestep.step_type
    if np.any((step_type[1:] == 0) != (step_type[:-1] == 2)):
      raise wire.invalid("a FIRST after each LAST, and nowhere else", "others")
    for name in ("env_steps", "discarded"):
      wire.check_range(name, getattr(inputs, name), 0, self.layout.max_rows)
    wire.check_range("kind", kind, NONE, ENDED)
    wire.check_finite("returns and lengths of games", games)
    wire.check_range("length of a game", games[1], 0, 2**31 - 1)
    if np.any(inputs.events[:, :2] % 1):
      raise wire.invalid("integers as kinds and slots", "others")
    if np.isinf(inputs.events).any():
      raise wire.invalid("finite numbers or NaN as info", "an infinity")

  def take(self, unrolls: types.Share) -> Answer:
    """Takes unrolls that have been checked; returns the answer.

    Raises:
      wire.Refusal: CANCELLED, the run is over.
    """
    with self._filling:
      self._waiting.append(unrolls)
      if len(self._waiting) == self._parts:
        share, self._waiting = _joined(self._waiting), []
        if not self._sink(share):
          raise wire.Refusal(wire.StatusCode.CANCELLED, "this run is over")
    env_steps = np.int64(self._acted.env_steps)
    return Answer(np.int32(self._newest()[1]), env_steps)

  def close(self, process: int) -> None:
    """Ends the session of an inference process."""
    with self._lock:
      del self._open[process]

  def _lease(self, count: types.Tree) -> types.Tree:
    wire.check_range("number of seeds", count, 1, MAX_SEEDS)
    return np.int32(self._seeds.take(int(count)))

  def _join(self, hello: Mapping[str, Any]) -> "_Session":
    process, count = hello.get("process"), len(self._first) - 1
    if type(process) is not int or not 0 <= process < count:
      raise wire.invalid(
        f"a process from 0 to {count - 1} in the hello", f"{process!r:.80}"
      )
    with self._lock:
      if process in self._open:
        raise wire.Refusal(
          wire.StatusCode.RESOURCE_EXHAUSTED,
          f"inference process {process} is connected already",
        )
      slots = slice(*self._first[process : process + 2])
      session = _Session(self, process, slots, self._acted, self._environments)
      self._open[process] = session
      return session

  def _direct(self, hello: Mapping[str, Any]) -> serving.Session:
    """Sends an actor to the inference processes, each time in another order."""
    del hello
    with self._lock:
      addresses = [x for k in sorted(self._open) if (x := self._addresses(k))]
    if not addresses:
      raise wire.Refusal(
        wire.StatusCode.UNAVAILABLE, "no inference process has connected yet"
      )
    first = next(self._turn) % len(addresses)
    welcome = {"addresses": addresses[first:] + addresses[:first]}
    return serving.FunctionSession(_no_actions, welcome)


class _Session:
  """The session of one inference process, from its stream's start to its end.

  Attributes:
    measured: the newest `Forward.measured`.
  """

  def __init__(
    self,
    server: ForwardServer,
    process: int,
    slots: slice,
    acted: counters.ActingCounts,
    environments: counters.Environments,
  ) -> None:
    self.welcome = {"env_steps": acted.env_steps}
    self.measured = np.full(len(MEASURED), np.nan)
    self._server = server
    self._process = process
    self._first = slots.start
    self._acted = acted
    self._environments = environments
    self._has_joined = np.zeros(slots.stop - slots.start, np.bool_)
    self._lock = threading.Lock()
    self._closed = False

  def __call__(self, inputs: Forward) -> Answer:
    """Counts what a message reports, and takes its share."""
    self._server.check(inputs)
    slots = inputs.events[:, 1]
    wire.check_range("slot", slots, 0, len(self._has_joined) - 1)
    with self._lock:
      if self._closed:
        raise wire.Refusal(wire.StatusCode.CANCELLED, "this session is over")
      self._acted.add(int(inputs.env_steps), *np.zeros((2, 0)))
      self._acted.add_discarded(int(inputs.discarded))
      for run in _runs(inputs.events):
        self._count(run)
    self.measured = inputs.measured
    return self._server.take(inputs.share)

  def close(self) -> None:
    """Counts the environments' unrolls as discarded when the stream ends."""
    with self._lock:
      self._closed = True
      left = np.flatnonzero(self._has_joined)
      self._environments.leave(self._first + left)
      self._acted.add_discarded(len(left))
    self._server.close(self._process)

  def _count(self, events: np.ndarray) -> None:
    """Counts events of one kind, of different slots."""
    kind, slots = events[0, 0], events[:, 1].astype(np.int32)
    if kind == NONE:
      return
    if np.any(self._has_joined[slots] == (kind == JOINED)):
      raise wire.invalid("events of environments that have joined", "others")
    if kind == ENDED:
      returns, lengths = events[:, 2], events[:, 3]
      info = events[:, 4:] if events.shape[1] > 4 else ()
      self._environments.add(0, self._first + slots, returns, lengths, info)
      return
    self._has_joined[slots] = kind == JOINED
    if kind == JOINED:
      self._environments.join(self._first + slots)
    else:
      self._environments.leave(self._first + slots)


def _runs(events: np.ndarray) -> Iterator[np.ndarray]:
  """Yields runs of consecutive events of one kind, of different slots."""
  first, seen = 0, set[float]()
  for k, (kind, slot) in enumerate(events[:, :2].tolist()):
    if slot in seen or kind != events[first, 0]:
      yield events[first:k]
      first, seen = k, set()
    seen.add(slot)
  yield events[first:]


def _joined(parts: Sequence[types.Share]) -> types.Share:
  """Joins the unrolls of messages into a share."""
  steps = [x.data._replace(core_state=()) for x in parts]
  unrolls = [(x.data.core_state, x.priorities, x.origin) for x in parts]
  unroll = jax.tree.map(lambda *x: np.concatenate(x, axis=1), *steps)
  core_state, *others = jax.tree.map(lambda *x: np.concatenate(x), *unrolls)
  return types.Share(unroll._replace(core_state=core_state), *others)


def _no_actions(inputs: types.Tree) -> types.Tree:
  raise wire.invalid("rows at the address of an inference process", "rows")
