"""Reports of Gorila's workers to the coordinator, and their totals.

A worker opens the stream `REPORT` with a hello of `{"num_envs": n}`, gets slots
as in `protocol`, and sends a `Report` after each unroll. The welcome of the
stream `SERVERS` is `{"addresses": [...]}`, where the parameter servers listen.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from seedx import launch, metrics, types, wire
from seedx.acting import sessions
from seedx.runtime import counters

REPORT = "report"
SERVERS = "servers"


class Counts(NamedTuple):
  """What a worker counted since its last report.

  Attributes:
    gradients: `[]` int32, applied by all parameter servers.
    stale: `[]` int32, dropped by one of them.
    outliers: `[]` int32, dropped by the worker.
    learned_steps: `[]` float32, env steps of the applied.
    staleness: `[]` float32, their mean, in updates.
    loss: `[]` float32, of the newest; NaN before the first.
    wire_bytes: `[]` int64, sent to and received from parameter servers.
    wait_environments: `[]` float32, share of time waiting for environments.
    learning: `[]` float32, share of time that acting waits for learning.
    wait_servers: `[]` float32, share of time waiting for parameter servers.
  """

  gradients: types.Array
  stale: types.Array
  outliers: types.Array
  learned_steps: types.Array
  staleness: types.Array
  loss: types.Array
  wire_bytes: types.Array
  wait_environments: types.Array
  learning: types.Array
  wait_servers: types.Array


class Report(NamedTuple):
  """What a worker has done since its last report.

  Attributes:
    env_steps: `[N]` int32, see `protocol.Experience`.
    episode_return: `[N, L]` float32, see `protocol.Experience`.
    counts: of the worker.
  """

  env_steps: np.ndarray
  episode_return: np.ndarray
  counts: Counts


def layout(length: int, max_rows: int) -> wire.Layout:
  """The layout of reports on unrolls of `length` time steps."""
  integer, number = np.zeros((), np.int32), np.zeros((), np.float32)
  counts = Counts(
    *(integer,) * 3, *(number,) * 3, np.zeros((), np.int64), *(number,) * 3
  )
  returns = np.zeros(length, np.float32)
  return wire.Layout.of(Report(integer, returns, wire.once(counts)), max_rows)


def servers(addresses: launch.Addresses) -> wire.Session:
  """A session that says where the parameter servers listen.

  Raises:
    wire.Refused: UNAVAILABLE, not all are known yet.
  """
  welcome = {"addresses": addresses.all()}
  return wire.FunctionSession(lambda nothing: nothing, welcome)


class Reports:
  """Counts what workers report.

  Attributes:
    learned: what has been counted of learning.
  """

  def __init__(
    self, connected: sessions.Sessions, is_ready: Callable[[], bool]
  ) -> None:
    """Nothing is counted yet.

    Args:
      connected: the workers.
      is_ready: whether they may come: the parameter servers have what they are
        to go on from.
    """
    self.learned = counters.Learned()
    self._connected = connected
    self._is_ready = is_ready
    self._lock = threading.Lock()
    self._totals = {
      "gradients_stale": 0,
      "gradients_outliers": 0,
      "wire_bytes": 0,
    }

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

  def count(self, counts: Counts) -> None:
    """Adds what a worker counted."""
    one = {name: x.item() for name, x in counts._asdict().items()}
    with self._lock:
      self._totals["gradients_stale"] += one["stale"]
      self._totals["gradients_outliers"] += one["outliers"]
      self._totals["wire_bytes"] += one["wire_bytes"]
    if one["gradients"]:
      self.learned.add(
        one["learned_steps"],
        one["staleness"],
        {"loss": one["loss"], "servers_wait": one["wait_servers"]},
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

  def __call__(self, inputs: Report) -> tuple[()]:
    """Takes a report of all the worker's environments.

    Raises:
      wire.Refused: it is not of all of them.
    """
    counts = inputs.counts
    self._connected.count(
      self._session,
      inputs.env_steps,
      inputs.episode_return,
      waits=(counts.wait_environments.item(), counts.learning.item()),
    )
    self._reports.count(counts)
    return ()

  def close(self) -> None:
    """Frees the worker's slots."""
    self._connected.close(self._session)
