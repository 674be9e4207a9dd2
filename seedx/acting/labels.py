"""Labellers: processes that compute the targets of windows.

A labeller opens the stream `LABELS`. Each of its requests has the targets of
the windows that the reply before had, except the first request, whose `version`
is -1. It fetches the lagged parameters on the stream `TARGETS` (`parameters`).
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np

from seedx import envs, types, wire
from seedx.acting import parameters
from seedx.agents import acting_step, base
from seedx.wire import serving

LABELS, TARGETS = "labels", "targets"
_W = TypeVar("_W")


class Labels(NamedTuple):
  """The targets of windows.

  Attributes:
    version: `[]` int32, see `base.Targets`; -1 without windows.
    labels: `[L, B]` float32.
  """

  version: types.Array
  labels: types.Array


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of one labeller.

  Attributes:
    address: address of the learner.
    env: the environment.
    agent: config of the agent.
    batch_size: number of windows that are labelled at a time.
    fetch_interval: number of such batches between two fetches of parameters.
    security: TLS and token of the connection.
  """

  address: str
  env: envs.Config
  agent: base.Config
  batch_size: int
  fetch_interval: int
  security: wire.Security = wire.LOCAL


def run(work: Work, stop: threading.Event) -> None:
  """Labels until the run is over or `stop` is set.

  Raises:
    wire.WireError: the learner refuses this labeller.
  """
  spec = envs.spec(work.env)
  agent = work.agent.make(spec)
  assert agent.targets is not None and agent.label is not None
  targets_of, label = agent.targets, jax.jit(agent.label)
  sample = example(agent, spec, work.batch_size)
  initial = jax.jit(lambda key: targets_of(agent.init(key)))
  targets = initial(jax.random.key(0))
  device = jax.local_devices()[0]
  # Compiles before connecting, so that no windows wait for compilation.
  zeros = np.asarray(label(targets, jax.random.key(0), sample))
  inputs, outputs = _layouts(sample, zeros)
  # Labellers draw different actions.
  seed = int.from_bytes(np.random.default_rng().bytes(4), "little")

  def session(client: wire.Client) -> None:
    with contextlib.ExitStack() as opened:
      fetched = parameters.Copy(client, targets, device, TARGETS)
      opened.callback(fetched.close)
      exchange = client.exchange(LABELS, inputs, outputs)
      opened.callback(exchange.close)
      newest, number = fetched.newest(), 0
      request = Labels(np.int32(-1), zeros)
      while newest is not None and not stop.is_set():
        if (windows := exchange(request)) is None:
          return
        number += 1
        if number % work.fetch_interval == 0:
          newest = fetched.newest()
          if newest is None:
            return
        key = jax.random.fold_in(jax.random.key(seed), number)
        labels = np.asarray(label(newest.acting, key, windows))
        request = Labels(np.int32(newest.acting.version), labels)

  wire.until_done(
    work.address, session, stop, "labeller", security=work.security
  )


def example(
  agent: base.Agent, spec: types.EnvironmentSpec, batch_size: int
) -> types.Sample:
  """Returns windows of zeros, `[L, B, ...]`."""
  window = agent.needs.window
  assert window is not None
  inputs = acting_step.zero_inputs(spec, batch_size)
  unroll = types.Unroll(
    inputs,
    inputs.action_tm1,
    extras=(),
    version=np.zeros(batch_size, np.int32),
    core_state=(),
  )
  steps = jax.tree.map(lambda x: np.stack([np.asarray(x)] * window), unroll)
  return types.Sample(
    agent.needs.stored(steps), np.ones(batch_size, np.float32)
  )


class LabelServer(Generic[_W]):
  """The learner's server of labellers, each of which has some work."""

  def __init__(
    self,
    take: Callable[[], _W | None],
    sample: Callable[[_W], types.Sample],
    give: Callable[[_W, np.ndarray, int], None],
    give_back: Callable[[_W], object],
    newest: Callable[[], tuple[base.Targets, int]],
    version: Callable[[], int],
  ) -> None:
    """Makes the server; `bind` adds its streams to a `wire` server.

    Args:
      take: returns work when there is some, or None when the run is over.
      sample: returns the windows of some work.
      give: takes work, its targets, and the version of the targets' parameters.
      give_back: takes the work of a labeller that has left.
      newest: returns the newest targets, and the number of updates behind them.
      version: returns the number of updates so far.
    """
    self._take, self._sample = take, sample
    self._give, self._give_back = give, give_back
    self._newest, self._version = newest, version

  def bind(self, server: serving.Server, sample: types.Sample) -> None:
    """Binds the streams; `sample` has the shapes of all windows."""
    parameters.Source(self._newest).bind(server, TARGETS)
    zeros = np.zeros(sample.unroll.inputs.timestep.reward.shape, np.float32)
    inputs, outputs = _layouts(sample, zeros)

    def open_session(hello: Mapping[str, Any]) -> Any:
      return _Session(self)

    server.bind_stream(LABELS, open_session, inputs, outputs)


class _Session(Generic[_W]):
  """The session of one labeller."""

  def __init__(self, server: LabelServer[_W]) -> None:
    self.welcome: Mapping[str, Any] = {}
    self._server = server
    self._held: _W | None = None
    # Keeps work from a labeller that leaves while it waits for work.
    self._lock, self._has_left = threading.Lock(), False

  def __call__(self, request: Labels) -> types.Sample:
    """Takes the targets of the work before, and returns other work."""
    server, version = self._server, int(request.version)
    if self._held is not None:
      wire.check_range("version", request.version, 0, server._version())
      wire.check_finite("labels", request.labels)
      held, self._held = self._held, None
      server._give(held, np.array(request.labels), version)
    elif version >= 0:
      raise wire.invalid("version -1 before the first windows", version)
    work = server._take()
    with self._lock:
      if work is not None and self._has_left:
        server._give_back(work)
        work = None
      self._held = work
    if work is None:
      raise wire.Refusal(wire.StatusCode.CANCELLED, "this run is over")
    return server._sample(work)

  def close(self) -> None:
    """Gives the work back for another labeller."""
    with self._lock:
      self._has_left = True
      if self._held is not None:
        self._server._give_back(self._held)


def _layouts(
  sample: types.Sample, labels: np.ndarray
) -> tuple[wire.Layout, wire.Layout]:
  request = Labels(np.zeros((), np.int32), labels)
  return (
    wire.Layout.of(wire.once(request), 1),
    wire.Layout.of(wire.once(sample), 1),
  )
