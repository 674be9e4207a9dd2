"""Gorila's worker: actor, replay and learner in one process.

A worker reports to the coordinator after each unroll, see `reports`, and
exchanges gradients and parameters with the parameter servers directly.
"""

import contextlib
import dataclasses
import math
import threading
from typing import NamedTuple

import jax
import jax.flatten_util
import numpy as np
import optax

from seedx import envs, metrics, types, wire
from seedx.acting import local_actor, protocol, unroll_messages
from seedx.agents import base, optimizers
from seedx.learning import plans, updates
from seedx.pipelines.gorila import parameter_server, reports, settings

_WAIT_SERVERS = "parameter servers"
_RETRY_SECONDS = 0.5


def run(work: settings.Work, stop: threading.Event) -> None:
  """Works until the coordinator reports that the run is over, or `stop` is set.

  Raises:
    types.ConfigError: the environment cannot be made.
    wire.WireError: the coordinator or a parameter server refuses the worker.
  """
  spec = envs.spec(work.env)
  agent = work.agent.make(spec, None, work.plan.horizon)
  programs = work.workers.programs(agent, spec)
  shapes = Shapes.of(agent, spec, work.plan, work.workers)
  learner = _Learner(work, agent)
  _warm_up(programs, learner, shapes.batch)

  def session(client: wire.Client) -> None:
    hello = {"num_envs": work.workers.envs_per_worker}
    exchange = client.exchange(
      reports.REPORT, shapes.report, wire.NOTHING, hello
    )
    with contextlib.closing(exchange):
      _Worker(work, programs, learner, client, exchange, stop).run()

  try:
    wire.until_done(
      work.address,
      session,
      stop,
      "worker",
      _RETRY_SECONDS,
      security=work.security,
    )
  finally:
    learner.client.close()


class Shapes(NamedTuple):
  """The sizes and shapes of a worker's data, known before it runs.

  Attributes:
    replay_bytes: size of the replay in bytes.
    batch: shapes and dtypes of a batch from the replay.
    report: layout of reports.
  """

  replay_bytes: int
  batch: types.Tree
  report: wire.Layout

  @classmethod
  def of(
    cls,
    agent: base.Agent,
    spec: types.EnvironmentSpec,
    plan: plans.Plan,
    workers: local_actor.WorkersConfig,
  ) -> "Shapes":
    """Returns the shapes, which are the same for all workers of a run."""
    key, core_replay = jax.random.key(0), plan.replay_of_core(agent, cores=1)
    programs = workers.programs(agent, spec)
    share = programs.share()
    batch = core_replay.sample_of(share)
    state = jax.eval_shape(agent.init, key)
    _, output = jax.eval_shape(agent.gradients, state, key, batch)
    report = reports.layout(
      programs.layout.length,
      programs.layout.num_slots,
      sorted(output.metrics),
      len(spec.log_info),
    )
    return cls(core_replay.num_bytes(share), batch, report)


def _warm_up(
  programs: local_actor.Programs, learner: "_Learner", batch: types.Tree
) -> None:
  """Compiles before the worker joins, so that it leases no slots meanwhile."""
  device = jax.local_devices()[0]
  state, acting, _ = learner.newest()
  programs.warm_up(acting, device)
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), batch)
  *_, values = learner.gradient(
    state, jax.random.key(0), jax.device_put(zeros, device)
  )
  learner.metrics = dict.fromkeys(values, np.float32(np.nan))


def max_gradient_norm(agent: base.Config) -> float:
  """Returns the norm to which workers scale larger gradients down.

  Servers cannot, since each has only a slice of a gradient. The norm is
  infinite for an agent that does not clip, or that has a `transformation`.

  Raises:
    types.ConfigError: the agent's config has no such norm.
  """
  if not isinstance(agent, optimizers.Config):
    raise types.ConfigError(
      "expected an agent whose config has a max_gradient_norm, to which workers"
      f" scale gradients down, found {type(agent).__name__}"
    )
  if agent.transformation is not None or not agent.max_gradient_norm:
    return math.inf
  return agent.max_gradient_norm


class Outliers:
  """Detector of losses that are far above the running mean of earlier losses.

  A loss that is not finite is an outlier, and never counts in the mean.
  """

  def __init__(
    self, deviations: float = 5.0, decay: float = 0.99, warm_up: int = 100
  ) -> None:
    """Starts without losses.

    Args:
      deviations: largest distance of a loss above the running mean, in standard
        deviations.
      decay: factor by which a loss reduces the weights of all earlier losses.
      warm_up: number of losses before one can be an outlier.
    """
    self._deviations = deviations
    self._decay = decay
    self._warm_up = warm_up
    self._count = 0
    self._mean = 0.0
    self._mean_square = 0.0

  def __call__(self, loss: float) -> bool:
    """Returns whether a loss is an outlier; later means include the loss."""
    if not math.isfinite(loss):
      return True
    deviation = math.sqrt(max(0.0, self._mean_square - self._mean**2))
    outlier = (
      self._count >= self._warm_up
      and loss > self._mean + self._deviations * deviation
    )
    self._count += 1
    # A plain mean at first, until the decaying mean has enough losses.
    step = max(1.0 - self._decay, 1.0 / self._count)
    self._mean += step * (loss - self._mean)
    self._mean_square += step * (loss**2 - self._mean_square)
    return outlier


class _Learner:
  """The computation of gradients with the newest parameters.

  Attributes:
    client: client of the parameter servers.
    outliers: detector of outliers among the losses.
    metrics: metrics of the newest gradient; NaN before the first one.
    gradient: `(state, rng_key, batch)` -> the gradient as a vector, the
      fraction of the batch that is resets, its number of env steps, and its
      metrics.
  """

  def __init__(self, work: settings.Work, agent: base.Agent) -> None:
    self.outliers = Outliers()
    self.metrics: dict[str, np.float32] = {}
    state = jax.jit(agent.init)(jax.random.key(work.seed))
    flat, unravel = jax.flatten_util.ravel_pytree(state.params)
    self.client = parameter_server.Client(
      np.asarray(flat), work.num_shards, work.security
    )
    clip = optax.clip_by_global_norm(max_gradient_norm(work.agent))

    def with_params(
      params: jax.Array,
      target_params: jax.Array,
      version: jax.Array,
      resets: jax.Array,
    ) -> base.AgentState:
      has_target = bool(jax.tree.leaves(state.target_params))
      return dataclasses.replace(
        state,
        params=unravel(params),
        target_params=unravel(target_params) if has_target else (),
        updates=version,
        resets=resets,
      )

    def gradient(
      state: base.AgentState, rng_key: jax.Array, batch: types.Tree
    ) -> tuple[jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
      gradients, fraction, output = updates.compute_gradients(
        agent, state, rng_key, batch
      )
      # Parameter servers cannot clip: each has only a part of the gradient.
      clipped, _ = clip.update(gradients.params, clip.init(gradients.params))
      vector, _ = jax.flatten_util.ravel_pytree(clipped)
      return vector, 1.0 - fraction, output.weight, output.metrics

    self.gradient = jax.jit(gradient)
    self._with_params = jax.jit(with_params)
    self._acting = jax.jit(agent.acting)

  def newest(self) -> tuple[base.AgentState, types.Tree, np.int32]:
    client = self.client
    version = np.int32(client.version)
    # Copies: JAX may read arguments after the client has changed its arrays.
    state = self._with_params(
      client.params.copy(),
      client.target_params.copy(),
      version,
      np.float32(client.resets),
    )
    return state, self._acting(state), version


class _Worker:
  """One session of a worker: acts, replays, and sends gradients."""

  def __init__(
    self,
    work: settings.Work,
    programs: local_actor.Programs,
    learner: _Learner,
    client: wire.Client,
    exchange: wire.Stream,
    stop: threading.Event,
  ) -> None:
    first_seed = protocol.first_seed(exchange.welcome)
    act_key, self._learn_key, replay_key = jax.random.split(
      jax.random.key(first_seed), 3
    )
    device, num_envs = jax.local_devices()[0], work.workers.envs_per_worker
    waits = metrics.WAIT_ENVIRONMENTS, metrics.WAIT_LEARNER, _WAIT_SERVERS
    self._waits = metrics.Waits(dict.fromkeys(waits, 1))
    self._learner = learner
    self._security = work.security
    self._client = client
    self._exchange = exchange
    self._stop = stop
    self._source = work.plan.source(programs.agent, [device], replay_key)
    self._actor = local_actor.LocalActor(
      programs,
      protocol.env_at(work.env, exchange.welcome),
      seed=first_seed,
      rng_key=act_key,
      device=device,
      waits=self._waits,
      exploration=unroll_messages.exploration(exchange.welcome, num_envs),
    )
    self._unreported = local_actor.Backlog(
      num_envs, programs.layout.length, len(programs.spec.log_info)
    )
    self._batches = 0
    self._reported_bytes = learner.client.transferred_bytes
    self._reset_counts()

  def run(self) -> None:
    """Acts and learns until the run is over."""
    try:
      if not self._connect():
        return
      state, acting, version = self._learner.newest()
      while not self._stop.is_set():
        rows, unroll = self._actor.observe(acting, version)
        self._unreported.add(rows)
        if unroll is not None:
          with self._waits.timed(metrics.WAIT_LEARNER):
            share = types.Share(unroll, origin=self._actor.origin)
            for batch in self._source([share]):
              if not self._learn(state, batch.parts[0]):
                return
              state, acting, version = self._learner.newest()
          if not self._report():
            return
        self._actor.act(acting, version)
    finally:
      self._actor.close()

  def _learn(self, state: base.AgentState, batch: types.Sample) -> bool:
    """Sends the gradient of a batch; returns False if the run is over."""
    key = jax.random.fold_in(self._learn_key, self._batches)
    self._batches += 1
    gradient, resets, weight, values = jax.device_get(
      self._learner.gradient(state, key, batch)
    )
    if not np.isfinite(gradient).all():
      self._skipped += 1
      return True
    self._learner.metrics = {k: np.float32(x) for k, x in values.items()}
    if "loss" in values and self._learner.outliers(float(values["loss"])):
      self._outliers += 1
      return True
    try:
      with self._waits.timed(_WAIT_SERVERS):
        applied, staleness = self._learner.client.push(gradient, resets)
    except wire.WireError as error:
      if error.code is not wire.StatusCode.UNAVAILABLE:
        raise
      return self._connect()
    if not applied:
      self._stale += 1
      return True
    self._gradients += 1
    self._learned_steps += float(weight)
    self._staleness += staleness
    return True

  def _connect(self) -> bool:
    """Connects to the parameter servers; returns False if the run is over."""
    security_check = wire.SecurityCheck("worker", self._security)
    servers: list[str] = []
    while not self._stop.is_set() and self._report():
      try:
        stream = self._client.stream(
          reports.SERVERS, (), wire.NOTHING, wire.NOTHING
        )
        stream.close()
        servers = reports.addresses(stream.welcome)
        self._learner.client.connect(servers)
        return True
      except wire.WireError as error:
        if error.code is not wire.StatusCode.UNAVAILABLE:
          raise
        security_check.run(servers)
        self._stop.wait(_RETRY_SECONDS)
    return False

  def _report(self) -> bool:
    """Sends a report of the work done; returns False if the run is over."""
    steps, num_steps = self._unreported.take()
    total_bytes = self._learner.client.transferred_bytes
    waits = self._waits.measure()

    counts = reports.Counts(
      gradients=np.int32(self._gradients),
      stale=np.int32(self._stale),
      outliers=np.int32(self._outliers),
      skipped=np.int32(self._skipped),
      learned_steps=np.float32(self._learned_steps),
      staleness=np.float32(self._staleness / max(1, self._gradients)),
      newest=self._learner.metrics,
      wire_bytes=np.int64(total_bytes - self._reported_bytes),
      wait_environments=np.float32(waits[metrics.WAIT_ENVIRONMENTS]),
      learning=np.float32(waits[metrics.WAIT_LEARNER]),
      wait_servers=np.float32(waits[_WAIT_SERVERS]),
    )
    self._reported_bytes = total_bytes
    self._reset_counts()
    report = reports.Report(steps, np.int32(num_steps), counts)
    return self._exchange(report) is not None

  def _reset_counts(self) -> None:
    self._gradients = self._stale = self._outliers = self._skipped = 0
    self._learned_steps = self._staleness = 0.0
