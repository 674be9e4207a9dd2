"""Reports of Gorila's workers to the coordinator, and their totals.

A worker opens the stream `REPORT` with a hello of `{"num_envs": n}`, gets slots
as in `protocol`, and sends a `Report` after each unroll. The welcome of the
stream `SERVERS` is `{"addresses": [...]}`, where the parameter servers listen.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seedx import launch, metrics, types, wire
from seedx.acting import episodes, sessions
from seedx.agents import base
from seedx.learning import experience
from seedx.runtime import counters

REPORT = "report"
SERVERS = "servers"
_MOST = 2**31 - 1
_MOST_BYTES = 2**50


class Counts(NamedTuple):
  """What a worker counted since its last report.

  Attributes:
    gradients: `[]` int32, applied by all parameter servers.
    stale: `[]` int32, dropped by one of them.
    outliers: `[]` int32, dropped by the worker.
    skipped: `[]` int32, dropped by the worker, because they were not finite.
    learned_steps: `[]` float32, env steps of the applied.
    staleness: `[]` float32, their mean, in updates.
    newest: `[]` float32 each, the agent's metrics of the newest gradient by
      name; NaN before the first.
    wire_bytes: `[]` int64, sent to and received from parameter servers.
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
    num_steps: `[]` int32, how many steps there are of each environment.
    counts: of the worker.
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
    max_rows: environments of a worker.
    metric_names: of the agent's metrics.
  """
  integer, number = np.zeros((), np.int32), np.zeros((), np.float32)
  counts = Counts(
    *(integer,) * 4,
    *(number,) * 2,
    dict.fromkeys(metric_names, number),
    np.zeros((), np.int64),
    *(number,) * 3,
  )
  numbers = np.zeros(length, np.float32)
  steps = episodes.Steps(np.zeros(length, np.uint8), *(numbers,) * 3)
  return wire.Layout.of(
    Report(steps, wire.once(integer), wire.once(counts)), max_rows
  )


def servers(addresses: launch.Addresses) -> wire.Session:
  """A session that says where the parameter servers listen.

  Raises:
    wire.Refused: UNAVAILABLE, not all are known yet.
  """
  welcome = {"addresses": addresses.all()}
  return wire.FunctionSession(lambda nothing: nothing, welcome)


def addresses(welcome: Mapping[str, Any]) -> list[str]:
  """The addresses that `servers` says.

  Raises:
    wire.WireError: FAILED_PRECONDITION, it says something else.
  """
  found = welcome.get("addresses")
  if not isinstance(found, list) or not all(map(launch.is_address, found)):
    raise wire.unwelcome("addresses", found)
  return found


class Reports:
  """Counts what workers report.

  Attributes:
    learned: what has been counted of learning.
  """

  def __init__(
    self,
    connected: sessions.Sessions,
    is_ready: Callable[[], bool],
    replay: experience.ReplayConfig,
    needs: base.Needs,
  ) -> None:
    """Nothing is counted yet.

    Args:
      connected: the workers.
      is_ready: whether they may come: the parameter servers have what they are
        to go on from.
      replay: of each worker.
      needs: of the agent.
    """
    self._replay = replay
    self._needs = needs
    self.learned = counters.Learned()
    self._connected = connected
    self._is_ready = is_ready
    self._lock = threading.Lock()
    self._totals = {
      "gradients_stale": 0,
      "gradients_outliers": 0,
      "wire_bytes": 0,
    }

  def bind(
    self, server: wire.Server, inputs: wire.Layout, known: launch.Addresses
  ) -> None:
    """Binds what workers call.

    Args:
      server: of the coordinator.
      inputs: of reports, see `layout`.
      known: where the parameter servers listen.
    """
    server.bind_stream(REPORT, self.open, inputs, wire.NOTHING)
    server.bind_stream(
      SERVERS, lambda hello: servers(known), wire.NOTHING, wire.NOTHING
    )

  def open(self, hello: Mapping[str, Any]) -> "_Session":
    """Takes in a worker, once the servers have what was restored.

    Raises:
      wire.Refused: they have not; or see `sessions.Sessions.open`.
    """
    if not self._is_ready():
      raise wire.Refused(
        wire.StatusCode.UNAVAILABLE, "the run is being restored"
      )
    return _Session(self, self._connected, self._connected.open(hello))

  def measure(self) -> dict[str, metrics.Value]:
    """What it adds to a line of metrics: acting and learning wait in turn."""
    shares = self._connected.measure()
    learning = 1.0 - shares[metrics.WAIT_LEARNER]
    return {**shares, metrics.WAIT_EXPERIENCE: learning, **self._totals}

  def check(self, counts: Counts, acted: float) -> float:
    """Checks what a worker counted.

    Args:
      counts: since its last report.
      acted: steps of which it has not yet learned.

    Returns:
      Steps of which it has not yet learned now.

    Raises:
      wire.Refused: INVALID_ARGUMENT, a number is out of its range.
    """
    replay, gradients = self._replay, counts.gradients.item()
    made = 0
    for name in ("gradients", "stale", "outliers", "skipped"):
      wire.check_range(name, getattr(counts, name), 0, _MOST)
      made += getattr(counts, name).item()
    steps_per_gradient = replay.steps_per_update(self._needs.learned_steps)
    # One that was begun before may be due.
    most = acted / steps_per_gradient + 1
    wire.check_range("gradients that its steps allow", made, 0, most)
    window = self._needs.window
    assert window is not None  # It learns from a replay.
    learned = gradients * replay.replay_batch_size * window
    wire.check_range("learned_steps", counts.learned_steps, 0, learned)
    wire.check_range("staleness", counts.staleness, 0, _MOST)
    wire.check_range("wire_bytes", counts.wire_bytes, 0, _MOST_BYTES)
    wire.check_range("wait_servers", counts.wait_servers, 0, 1)
    return acted - made * steps_per_gradient

  def count(self, counts: Counts) -> None:
    """Adds what a worker counted."""
    rest = counts._asdict()
    newest = {name: x.item() for name, x in rest.pop("newest").items()}
    one = {name: x.item() for name, x in rest.items()}
    with self._lock:
      self._totals["gradients_stale"] += one["stale"]
      self._totals["gradients_outliers"] += one["outliers"]
      self._totals["wire_bytes"] += one["wire_bytes"]
    newest["servers_wait"] = one["wait_servers"]
    self.learned.skip(one["skipped"])
    if one["gradients"]:
      self.learned.add(
        one["learned_steps"],
        one["staleness"],
        {name: x for name, x in newest.items() if math.isfinite(x)},
        one["gradients"],
      )


class _Session:
  """One worker's reports.

  Attributes:
    welcome: what the worker is told first.
  """

  def __init__(
    self,
    reports: Reports,
    connected: sessions.Sessions,
    session: sessions.Session,
  ) -> None:
    self.welcome = session.welcome
    self._reports = reports
    self._connected = connected
    self._session = session
    # Steps of which it has not yet learned.
    self._acted = 0.0

  def __call__(self, inputs: Report) -> tuple[()]:
    """Takes a report of all the worker's environments.

    Raises:
      wire.Refused: it is not of all of them, a number is out of its range, or
        steps are not in order.
    """
    counts, steps = inputs.counts, inputs.steps
    rows, length = steps.step_type.shape
    num_steps = inputs.num_steps.item()
    wire.check_range("num_steps", num_steps, 0, length)
    acted = self._reports.check(counts, self._acted + rows * num_steps)
    self._connected.count(
      self._session,
      episodes.Steps(*(leaf[:, :num_steps] for leaf in steps)),
      waits=(counts.wait_environments.item(), counts.learning.item()),
    )
    self._acted = acted
    self._reports.count(counts)
    return ()

  def close(self) -> None:
    """Frees the worker's slots."""
    self._connected.close(self._session)
