"""Unrolls that inference processes forward to the learner of a pool.

An inference process opens the stream `FORWARD` with the hello `{"process": k}`.
The process sends `Forward`: finished unrolls of any of its slots, and what its
environments did since its last message. The reply has the version of the newest
parameters, and comes when the learner has taken the unrolls. The process
fetches parameters as unroll actors do, see `unroll_messages`.

A thin actor that opens `protocol.ACT` receives the addresses of the inference
processes, and the seeds of its environments.
"""

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seedx import metrics, types, wire
from seedx.acting import (
  inference,
  leases,
  local_actor,
  parameters,
  protocol,
  unroll_messages,
  unroll_server,
)
from seedx.runtime import counters, seeding
from seedx.wire import serving

FORWARD = "forward"
# Kinds of events; the first event of a message is of the first kind.
STEPS, DISCARDED, JOINED, LEFT, ENDED = range(5)
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
    events: `[B, 4 + E]` float64, what environments did since the last message,
      in order. The columns are the kind, the slot in the inference process, a
      number, a return, and the E entries of a game's last `info`, see
      `types.Rows`; 0 if there is none. The number is that of env steps, of
      unrolls that an actor left unfinished, or of the steps of a game that
      ended.
    share: finished unrolls, as a share of them alone, see `types.Share`.
    measured: `[6]` float32 metrics, see `MEASURED`; NaN for none.
  """

  events: types.Array
  share: types.Share
  measured: types.Array


def layout(share: types.Share, num_slots: int, num_info: int) -> wire.Layout:
  """Returns the layout of `Forward`.

  Args:
    share: unrolls of a message, of which only shapes and dtypes matter.
    num_slots: number of slots of all inference processes.
    num_info: number E of logged entries of `info`.
  """
  measured = np.zeros(len(MEASURED), np.float32)
  length, size = share.data.version.shape
  # Some shares wait, and an environment ends at most one game in each step.
  max_rows = 4 * (num_slots + size) * (length + 1)
  once = wire.once((share, measured))
  return wire.Layout.of(Forward(np.zeros(4 + num_info), *once), max_rows)


class ForwardServer:
  """The learner's server of inference processes.

  Attributes:
    layout: layout of their messages.
    shares: shares of their unrolls.
  """

  def __init__(
    self,
    programs: local_actor.Programs,
    sizes: Sequence[Sequence[inference.Sizes]],
    acted: counters.ActingCounts,
    seeds: seeding.Seeds,
    addresses: Callable[[int], str],
    newest: Callable[[], tuple[types.Tree, int]],
    sink: unroll_server.Sink,
  ) -> None:
    """Makes the server; `bind` adds its methods to a `wire` server.

    Args:
      programs: programs of an actor with as many environments as a share has
        unrolls.
      sizes: sizes of the devices of each inference process.
      acted: counts of all experience.
      seeds: seeds of environments.
      addresses: function that returns the address of an inference process, ""
        before it has joined.
      newest: function that returns the newest acting parameters and their
        version.
      sink: function that takes shares; inference waits while it blocks.
    """
    self._programs = programs
    self._reported = [
      np.concatenate([x.reported for x in devices]) for devices in sizes
    ]
    self._num_slots = sum(map(len, self._reported))
    self._acted = acted
    self._seeds = seeds
    self._addresses = addresses
    self._newest = newest
    agent, spec, store = programs.agent, programs.spec, programs.layout
    self.shares = unroll_server.Shares(store.num_slots, newest, sink)
    of_message = local_actor.Programs.of(
      agent, spec, store.period, sizes[0][0].share_size
    )
    self.layout = layout(
      of_message.share(), self._num_slots, len(spec.log_info)
    )
    self._lock = threading.Lock()
    self._open: dict[int, _Session] = {}
    self._turn = itertools.count()

  def bind(self, server: serving.Server) -> None:
    """Binds the methods for inference processes and for actors."""
    parameters.Source(self._newest).bind(server)
    server.bind_stream(
      FORWARD, self._join, self.layout, unroll_messages.VERSION
    )
    layouts = protocol.act_layouts(self._programs.spec, self._num_slots)
    server.bind_stream(protocol.ACT, self._direct, *layouts)

  def measure(self) -> dict[str, metrics.Value]:
    """Returns the means of the inference processes' metrics."""
    with self._lock:
      measured = [x.measured for x in self._open.values()]
    rows = [np.full(len(MEASURED), np.nan), *measured]
    means = np.ma.masked_invalid(rows).mean(axis=0).tolist()
    return dict(zip(MEASURED, means, strict=True))

  def check(self, inputs: Forward, num_slots: int) -> None:
    """Checks a message of a process with `num_slots` slots.

    Raises:
      wire.Refusal: INVALID_ARGUMENT, a number or the order of steps is not
        valid.
    """
    share, (kind, slot, number, *_) = inputs.share, inputs.events.T
    unroll, (_, version) = share.data, self._newest()
    spec = self._programs.spec.action
    unroll_server.check(unroll, share.priorities, spec, version)
    wire.check_range("exploration", unroll.inputs.exploration, 0, 1)
    step_type = unroll.inputs.timestep.step_type
    if np.any((step_type[1:] == 0) != (step_type[:-1] == 2)):
      raise wire.invalid("a FIRST after each LAST, and nowhere else", "others")
    wire.check_range("kind", kind, STEPS, ENDED)
    wire.check_range("slot", slot, 0, num_slots - 1)
    maximum = np.where(kind == ENDED, 2**31 - 1, self.layout.max_rows)
    wire.check_range("number of an event", number, 0, maximum)
    wire.check_finite("returns of games", inputs.events[:, 3])
    if np.any(inputs.events[:, :3] % 1):
      raise wire.invalid("integers as kinds, slots and numbers", "others")
    if np.isinf(inputs.events).any():
      raise wire.invalid("finite numbers or NaN as info", "an infinity")

  def close(self, process: int) -> None:
    """Ends the session of an inference process."""
    with self._lock:
      del self._open[process]

  def _join(self, hello: Mapping[str, Any]) -> "_Session":
    process, count = hello.get("process"), len(self._reported)
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
      session = _Session(
        self, process, self._reported[process], self._acted, self._seeds.take(1)
      )
      self._open[process] = session
      return session

  def _direct(self, hello: Mapping[str, Any]) -> serving.Session:
    """Sends an actor to the inference processes, each time in another order."""
    count = leases.num_envs(hello, self._num_slots)
    with self._lock:
      addresses = [x for k in sorted(self._open) if (x := self._addresses(k))]
    if not addresses:
      raise wire.Refusal(
        wire.StatusCode.UNAVAILABLE, "no inference process has connected yet"
      )
    first = next(self._turn) % len(addresses)
    welcome = {
      "addresses": addresses[first:] + addresses[:first],
      "first_seed": self._seeds.take(count),
      "env_steps": self._acted.env_steps,
    }
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
    reported: np.ndarray,
    acted: counters.ActingCounts,
    seed: int,
  ) -> None:
    self.welcome = {"first_seed": seed}
    self.measured = np.full(len(MEASURED), np.nan)
    self._server = server
    self._process = process
    self._acted = acted
    self._environments = acted.environments(reported)
    self._has_joined = np.zeros(len(reported), np.bool_)
    self._lock = threading.Lock()
    self._closed = False

  def __call__(self, inputs: Forward) -> np.int32:
    """Counts what a message reports, and takes its unrolls."""
    self._server.check(inputs, len(self._has_joined))
    with self._lock:
      if self._closed:
        raise wire.Refusal(wire.StatusCode.CANCELLED, "this session is over")
      for event in inputs.events:
        self._count(event)
    self.measured = inputs.measured
    return self._server.shares.take(inputs.share)

  def close(self) -> None:
    """Counts the environments' unrolls as discarded when the stream ends."""
    with self._lock:
      self._closed = True
      left = np.flatnonzero(self._has_joined)
      self._environments.leave(left)
      self._acted.add_discarded(len(left))
    self._server.close(self._process)

  def _count(self, event: np.ndarray) -> None:
    kind, slot, number = map(int, event[:3])
    index = np.array([slot])
    if kind >= JOINED and self._has_joined[slot] == (kind == JOINED):
      raise wire.invalid("events of environments that have joined", "others")
    if kind == STEPS:
      self._acted.add(number, *np.zeros((2, 0)))
    elif kind == DISCARDED:
      self._acted.add_discarded(number)
    elif kind == JOINED:
      self._has_joined[slot] = True
      self._environments.join(index)
    elif kind == LEFT:
      self._has_joined[slot] = False
      self._environments.leave(index)
    else:
      game = event[3:4], event[2:3], event[None, 4:]
      self._environments.add(0, index, *game)


def _no_actions(inputs: types.Tree) -> types.Tree:
  raise wire.invalid("rows at the address of an inference process", "rows")
