"""Reports of Gorila's workers to the coordinator, and their totals.

A worker opens the stream `REPORT` with a hello of `{"num_envs": n}`, gets slots
as in `protocol`, and sends a `Report` after each unroll. The welcome of the
stream `SERVERS` is `{"addresses": [...]}`, where the parameter servers listen.
"""

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seedx import metrics, types, wire
from seedx import replay as replay_lib
from seedx.acting import episodes, sessions
from seedx.agents import base
from seedx.launch import admission
from seedx.runtime import counters
from seedx.wire import server as server_lib

REPORT = "report"
SERVERS = "servers"
_MOST = 2**31 - 1
_MOST_BYTES = 2**50


class Counts(NamedTuple):
  """What a worker counted since its last report.

  Attributes:
    gradients: `[]` int32, gradients that all parameter servers applied.
    stale: `[]` int32, gradients that one of them dropped.
    outliers: `[]` int32, gradients that the worker dropped for their loss.
    skipped: `[]` int32, gradients that it dropped as they were not finite.
    learned_steps: `[]` float32, env steps of those that were applied.
    staleness: `[]` float32, their mean staleness, in updates.
    newest: `[]` float32 each, the agent's metrics of the newest gradient by
      name; NaN before the first.
    wire_bytes: `[]` int64, bytes sent to and received from parameter servers.
    wait_environments: `[]` float32, share of time waiting for environments.
    learning: `[]` float32, share of time that acting waits for learning.
    wait_servers: `[]` float32, share of time waiting for parameter servers.
  """

  gradients: types.Array
  stale: types.Array
  outliers: types.Array
  skipped: types.Array
  learned_steps: types.Array
  staleness: types.Array
  newest: Mapping[str, types.Array]
  wire_bytes: types.Array
  wait_environments: types.Array
  learning: types.Array
  wait_servers: types.Array


class Report(NamedTuple):
  """What a worker has done since its last report.

  Attributes:
    steps: `[N, L]`, see `local_actor.Unreported.take`.
    num_steps: `[]` int32, number of steps of each environment.
    counts: the worker's counts.
  """

  steps: episodes.Steps
  num_steps: types.Array
  counts: Counts


def layout(
  length: int, max_rows: int, metric_names: Sequence[str]
) -> wire.Layout:
  """The layout of reports.

  Args:
    length: L, time steps of an unroll.
    max_rows: number of environments of a worker.
    metric_names: names of the agent's metrics.
  """
  integer, number = np.zeros((), np.int32), np.zeros((), np.float32)
  counts = Counts(
    gradients=integer,
    stale=integer,
    outliers=integer,
    skipped=integer,
    learned_steps=number,
    staleness=number,
    newest=dict.fromkeys(metric_names, number),
    wire_bytes=np.zeros((), np.int64),
    wait_environments=number,
    learning=number,
    wait_servers=number,
  )
  numbers = np.zeros(length, np.float32)
  steps = episodes.Steps(
    step_type=np.zeros(length, np.uint8),
    reward=numbers,
    discount=numbers,
    episode_return=numbers,
  )
  return wire.Layout.of(
    Report(steps, wire.once(integer), wire.once(counts)), max_rows
  )


def addresses(welcome: Mapping[str, Any]) -> list[str]:
  """The addresses in a welcome of `SERVERS`.

  Raises:
    wire.WireError: FAILED_PRECONDITION, there are none.
  """
  found = welcome.get("addresses")
  if not isinstance(found, list) or not all(map(admission.is_address, found)):
    raise wire.bad_welcome("addresses", found)
  return found


class Reports:
  """Counts what workers report; any thread may call it.

  Attributes:
    learned: counts of the gradients that servers applied.
  """

  def __init__(
    self,
    connected: sessions.Sessions,
    is_ready: Callable[[], bool],
    replay: replay_lib.Config,
    needs: base.Needs,
  ) -> None:
    """Counts from 0.

    Args:
      connected: the workers.
      is_ready: returns whether workers may connect: whether the parameter
        servers have what was restored.
      replay: the config of each worker's replay.
      needs: the agent's.
    """
    self.learned = counters.Learned()
    self._connected = connected
    self._is_ready = is_ready
    self._replay = replay
    self._needs = needs
    self._lock = threading.Lock()
    names = "gradients_stale", "gradients_outliers", "wire_bytes"
    self._totals = dict.fromkeys(names, 0)

  def bind(
    self,
    server: server_lib.Server,
    inputs: wire.Layout,
    servers: admission.Addresses,
  ) -> None:
    """Binds what workers call.

    Args:
      server: the coordinator's.
      inputs: layout of reports, see `layout`.
      servers: addresses of the parameter servers.
    """

    def answer(hello: Mapping[str, Any]) -> server_lib.Session:
      del hello
      welcome = {"addresses": servers.all()}
      return server_lib.FunctionSession(lambda nothing: nothing, welcome)

    server.bind_stream(REPORT, self.open, inputs, wire.NOTHING)
    server.bind_stream(SERVERS, answer, wire.NOTHING, wire.NOTHING)

  def open(self, hello: Mapping[str, Any]) -> server_lib.Session:
    """Takes in a worker, once the servers have what was restored.

    Raises:
      wire.Refused: they have not; or see `sessions.Sessions.open`.
    """
    if not self._is_ready():
      raise wire.Refused(
        wire.StatusCode.UNAVAILABLE, "the run is being restored"
      )
    session = self._connected.open(hello)
    acted = 0.0

    def take(report: Report) -> tuple[()]:
      nonlocal acted
      acted = self._take(session, report, acted)
      return ()

    close = functools.partial(self._connected.close, session)
    return server_lib.FunctionSession(take, session.welcome, close)

  def measure(self) -> dict[str, metrics.Value]:
    """What it adds to a line of metrics: acting and learning wait in turn."""
    shares = self._connected.measure()
    learning = 1.0 - shares[metrics.WAIT_LEARNER]
    return {**shares, metrics.WAIT_EXPERIENCE: learning, **self._totals}

  def count(self, counts: Counts) -> None:
    """Adds what a worker counted."""
    with self._lock:
      self._totals["gradients_stale"] += counts.stale.item()
      self._totals["gradients_outliers"] += counts.outliers.item()
      self._totals["wire_bytes"] += counts.wire_bytes.item()
    self.learned.skip(counts.skipped.item())
    if counts.gradients:
      newest = {name: x.item() for name, x in counts.newest.items()}
      newest["servers_wait"] = counts.wait_servers.item()
      self.learned.add(
        counts.learned_steps.item(),
        counts.staleness.item(),
        {name: x for name, x in newest.items() if math.isfinite(x)},
        counts.gradients.item(),
      )

  def _take(
    self, session: sessions.Session, report: Report, acted: float
  ) -> float:
    """Counts a report of all of a worker's environments.

    Args:
      session: the worker's.
      report: what it has done since its last one.
      acted: steps that it had not learned from then.

    Returns:
      The steps that it has not learned from now.

    Raises:
      wire.Refused: it is not of all of them, a number is out of its range, or
        steps are not in order; nothing is counted.
    """
    counts, steps = report.counts, report.steps
    rows, length = steps.step_type.shape
    num_steps = report.num_steps.item()
    wire.check_range("num_steps", num_steps, 0, length)
    acted = self._check(counts, acted + rows * num_steps)
    self._connected.count(
      session,
      episodes.Steps(*(leaf[:, :num_steps] for leaf in steps)),
      waits=(counts.wait_environments.item(), counts.learning.item()),
    )
    self.count(counts)
    return acted

  def _check(self, counts: Counts, acted: float) -> float:
    """The steps left to learn from; raises wire.Refused for a false number."""
    made = 0
    for name in ("gradients", "stale", "outliers", "skipped"):
      wire.check_range(name, getattr(counts, name), 0, _MOST)
      made += getattr(counts, name).item()
    steps_per_gradient = self._replay.steps_per_update(
      self._needs.learned_steps
    )
    # One that was begun before may be due.
    most = acted / steps_per_gradient + 1
    wire.check_range("gradients that its steps allow", made, 0, most)
    assert self._needs.window is not None  # It learns from a replay.
    batch_steps = self._replay.replay_batch_size * self._needs.window
    learned = counts.gradients.item() * batch_steps
    wire.check_range("learned_steps", counts.learned_steps, 0, learned)
    wire.check_range("staleness", counts.staleness, 0, _MOST)
    wire.check_range("wire_bytes", counts.wire_bytes, 0, _MOST_BYTES)
    wire.check_range("wait_servers", counts.wait_servers, 0, 1)
    return acted - made * steps_per_gradient
