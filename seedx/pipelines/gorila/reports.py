"""Reports of Gorila's workers to the coordinator, and their totals.

A worker opens the stream `REPORT` with a hello of `{"num_envs": n}`, leases
slots as in `protocol`, and sends a `Report` after each unroll. On the stream
`SERVERS`, the welcome `{"addresses": [...]}` names the parameter servers.
"""

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree

from seedx import metrics, replay, types, wire
from seedx.acting import episodes, sessions
from seedx.agents import base
from seedx.launch import admission
from seedx.runtime import progress
from seedx.wire import serving

REPORT = "report"
SERVERS = "servers"
_MAX_COUNT = 2**31 - 1
_MAX_BYTES = 2**50


class Counts(NamedTuple):
  """A worker's counts since its previous report.

  Attributes:
    gradients: `[]` int32, number of gradients that all servers applied.
    stale: `[]` int32, number of gradients that a server dropped.
    outliers: `[]` int32, number of gradients dropped for their loss.
    skipped: `[]` int32, number of gradients dropped as not finite.
    learned_steps: `[]` float32, number of env steps of applied gradients.
    staleness: `[]` float32, mean staleness of applied gradients, in updates.
    newest: `[]` float32 each, the agent's metrics of the newest gradient by
      name; NaN before the first one.
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
  """A worker's experience and counts since its previous report.

  Attributes:
    steps: `[N, L]`, see `local_actor.Backlog.take`.
    num_steps: `[]` int32, number of steps of each environment.
    counts: counts of gradients, bytes and waits.
  """

  steps: episodes.Steps
  num_steps: types.Array
  counts: Counts


def layout(
  length: int, max_rows: int, metric_names: Sequence[str], num_info: int = 0
) -> wire.Layout:
  """Returns the layout of reports: `max_rows` rows of L = `length` steps.

  `num_info` is the number of logged entries of `info`.
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
    info=np.zeros((length, num_info), np.float32) if num_info else (),
  )
  return wire.Layout.of(
    Report(steps, wire.once(integer), wire.once(counts)), max_rows
  )


def addresses(welcome: Mapping[str, Any]) -> list[str]:
  """Returns the addresses in a welcome of `SERVERS`.

  Raises:
    wire.WireError: FAILED_PRECONDITION, no list of valid addresses.
  """
  values = welcome.get("addresses")
  if not isinstance(values, list) or not all(map(admission.is_address, values)):
    raise wire.bad_welcome("addresses", values)
  return values


class Reports:
  """Totals of all workers' reports; any thread may use them.

  Attributes:
    learned: counts of the gradients that servers applied.
  """

  def __init__(
    self,
    connected: sessions.Sessions,
    is_ready: Callable[[], bool],
    replay: replay.Config,
    needs: base.Needs,
  ) -> None:
    """Starts all totals at 0.

    Args:
      connected: sessions of the workers.
      is_ready: returns whether workers may connect.
      replay: settings of each worker's replay.
      needs: needs of the agent.
    """
    self.learned = progress.Progress()
    self._connected = connected
    self._is_ready = is_ready
    self._replay = replay
    self._needs = needs
    self._lock = threading.Lock()
    names = "gradients_stale", "gradients_outliers", "wire_bytes"
    self._totals = dict.fromkeys(names, 0)

  def bind(
    self,
    server: serving.Server,
    inputs: wire.Layout,
    servers: admission.Addresses,
  ) -> None:
    """Binds the workers' streams; `inputs` is the layout of their reports."""

    def answer(hello: Mapping[str, Any]) -> serving.Session:
      del hello
      welcome = {"addresses": servers.all()}
      return serving.FunctionSession(lambda nothing: nothing, welcome)

    server.bind_stream(REPORT, self.open, inputs, wire.NOTHING)
    server.bind_stream(SERVERS, answer, wire.NOTHING, wire.NOTHING)

  def open(self, hello: Mapping[str, Any]) -> serving.Session:
    """Opens a worker's session, after the parameter servers are restored.

    Raises:
      wire.Refusal: UNAVAILABLE, servers are not restored; or see
        `sessions.Sessions.open`.
    """
    if not self._is_ready():
      raise wire.Refusal(
        wire.StatusCode.UNAVAILABLE, "the run is being restored"
      )
    session = self._connected.open(hello)
    unlearned = 0.0

    def take(report: Report) -> tuple[()]:
      nonlocal unlearned
      unlearned = self._take(session, report, unlearned)
      return ()

    close = functools.partial(self._connected.close, session)
    return serving.FunctionSession(take, session.welcome, close)

  def measure(self) -> dict[str, metrics.Value]:
    """Returns its metrics."""
    # Acting waits while a worker learns, and learning waits while it acts.
    shares = self._connected.measure()
    learning = 1.0 - shares[metrics.WAIT_LEARNER]
    return {**shares, metrics.WAIT_EXPERIENCE: learning, **self._totals}

  def count(self, counts: Counts) -> None:
    """Adds a worker's counts to the totals."""
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
    self, session: sessions.Session, report: Report, unlearned: float
  ) -> float:
    """Counts a report; returns the env steps that are not yet learned from.

    Raises:
      wire.Refusal: rows are missing, a number is out of its range, or steps are
        out of order; nothing is counted.
    """
    counts, steps = report.counts, report.steps
    rows, length = steps.step_type.shape
    num_steps = report.num_steps.item()
    wire.check_range("num_steps", num_steps, 0, length)
    unlearned = self._check(counts, unlearned + rows * num_steps)
    self._connected.count(
      session,
      tree.map_structure(lambda leaf: leaf[:, :num_steps], steps),
      waits=(counts.wait_environments.item(), counts.learning.item()),
    )
    self.count(counts)
    return unlearned

  def _check(self, counts: Counts, unlearned: float) -> float:
    """Checks the counts; returns the env steps left to learn from."""
    made = 0
    for name in ("gradients", "stale", "outliers", "skipped"):
      wire.check_range(name, getattr(counts, name), 0, _MAX_COUNT)
      made += getattr(counts, name).item()
    steps_per_gradient = self._replay.steps_per_update(
      self._needs.learned_steps
    )
    # One more gradient may be due from earlier steps.
    maximum = unlearned / steps_per_gradient + 1
    wire.check_range("gradients that its steps allow", made, 0, maximum)
    assert self._needs.window is not None  # The agent learns from a replay.
    batch_steps = self._replay.replay_batch_size * self._needs.window
    learned = counts.gradients.item() * batch_steps
    wire.check_range("learned_steps", counts.learned_steps, 0, learned)
    wire.check_range("staleness", counts.staleness, 0, _MAX_COUNT)
    wire.check_range("wire_bytes", counts.wire_bytes, 0, _MAX_BYTES)
    wire.check_range("wait_servers", counts.wait_servers, 0, 1)
    return unlearned - made * steps_per_gradient
