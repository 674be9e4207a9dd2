"""Gorila's worker: actor, replay and learner in one process.

It reports to the coordinator after each unroll, see `reports`. Gradients go to
the parameter servers, and parameters come from there; neither passes through
the coordinator.
"""

import dataclasses
import math
import threading
from collections.abc import Sequence

import jax
import jax.flatten_util
import numpy as np
import optax

from seedx import envs, metrics, types, wire
from seedx.acting import local_actor, protocol, unroll_store
from seedx.agents import base
from seedx.learning import experience, updates
from seedx.pipelines.gorila import parameter_server, reports

_WAIT_SERVERS = "parameter servers"
_RETRY_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of one worker.

  Attributes:
    address: of the coordinator.
    env: the environment.
    agent: that acts and learns.
    plan: of its own replay.
    seed: of the run, for the initial parameters.
    workers: options of all workers.
    max_gradient_norm: gradients with a larger global norm are scaled down.
    outlier_deviations: gradients whose loss is further above the running mean
      of the worker's losses, in standard deviations, are dropped.
    security: how processes know each other.
  """

  address: str
  env: envs.Config
  agent: base.Config
  plan: experience.Plan
  seed: int
  workers: local_actor.WorkersConfig
  max_gradient_norm: float
  outlier_deviations: float
  security: wire.Security = wire.LOCAL


def run(work: Work, stop: threading.Event) -> None:
  """Works until the coordinator says that the run is over, or `stop` is set.

  Raises:
    types.ConfigError: the environment cannot be made.
    wire.WireError: it is refused.
  """
  spec = envs.spec(work.env)
  agent = work.agent.make(spec, None, work.plan.horizon)
  num_envs = work.workers.envs_per_worker
  layout = unroll_store.Layout.of(agent, work.workers.unroll_length, num_envs)
  programs = local_actor.Programs(agent, spec, layout)
  learner = _Learner(work, agent)
  names = _warm_up(work, programs, learner)

  def session(client: wire.Client) -> None:
    exchange = wire.Exchange(
      client,
      reports.REPORT,
      inputs=reports.layout(layout.length, num_envs, names),
      outputs=wire.NOTHING,
      hello={"num_envs": num_envs},
    )
    try:
      _Worker(work, programs, learner, client, exchange, stop, names).run()
    finally:
      exchange.close()

  try:
    wire.until_done(
      *(work.address, session, stop, "worker", _RETRY_SECONDS),
      security=work.security,
    )
  finally:
    learner.client.close()


def _warm_up(
  work: Work, programs: local_actor.Programs, learner: "_Learner"
) -> list[str]:
  """Compiles before a place is taken, which another may have left.

  Returns:
    The names of the metrics of gradients.
  """
  device = jax.local_devices()[0]
  state, acting, _ = learner.newest()
  programs.warm_up(acting, device)
  source, share = _source_and_share(
    programs.agent, programs.spec, work.plan, work.workers
  )
  batch = jax.tree.map(
    lambda x: np.zeros(x.shape, x.dtype), source.batch_for(share)
  )
  *_, values = learner.gradient(
    state, jax.random.key(0), jax.device_put(batch, device)
  )
  return sorted(values)


def replay_bytes(
  agent: base.Agent,
  spec: types.EnvironmentSpec,
  plan: experience.Plan,
  workers: local_actor.WorkersConfig,
) -> int:
  """The bytes of a worker's replay."""
  source, share = _source_and_share(agent, spec, plan, workers)
  return source.bytes_for(share)


def metric_names(
  agent: base.Agent,
  spec: types.EnvironmentSpec,
  plan: experience.Plan,
  workers: local_actor.WorkersConfig,
) -> list[str]:
  """The names of the metrics of a worker's gradients."""
  source, share = _source_and_share(agent, spec, plan, workers)
  key = jax.random.key(0)
  _, output = jax.eval_shape(
    agent.gradients,
    jax.eval_shape(agent.init, key),
    key,
    source.batch_for(share),
  )
  return sorted(output.metrics)


def _source_and_share(
  agent: base.Agent,
  spec: types.EnvironmentSpec,
  plan: experience.Plan,
  workers: local_actor.WorkersConfig,
) -> tuple[experience.Replayed, types.Share]:
  period, num_envs = workers.unroll_length, workers.envs_per_worker
  source = plan.source(
    agent, period, jax.local_devices()[:1], jax.random.key(0)
  )
  assert isinstance(source, experience.Replayed)
  layout = unroll_store.Layout.of(agent, period, num_envs)
  return source, local_actor.Programs(agent, spec, layout).share()


class Outliers:
  """Tells which losses are far above the running mean of those before.

  One that is not finite is an outlier, and never counts in the mean.
  """

  def __init__(
    self, deviations: float, decay: float = 0.99, warm_up: int = 100
  ) -> None:
    """Knows no loss yet.

    Args:
      deviations: how far above is too far, in standard deviations.
      decay: of the running mean and variance, per loss.
      warm_up: losses before any is called an outlier.
    """
    self._deviations = deviations
    self._decay = decay
    self._warm_up = warm_up
    self._count = 0
    self._mean = 0.0
    self._square = 0.0

  def __call__(self, loss: float) -> bool:
    """Whether a loss is an outlier; it counts from now on."""
    if not math.isfinite(loss):
      return True
    deviation = math.sqrt(max(0.0, self._square - self._mean**2))
    outlier = (
      self._count >= self._warm_up
      and loss > self._mean + self._deviations * deviation
    )
    self._count += 1
    # The mean of all so far, until they are more than it remembers.
    step = max(1.0 - self._decay, 1.0 / self._count)
    self._mean += step * (loss - self._mean)
    self._square += step * (loss**2 - self._square)
    return outlier


class _Learner:
  """Gradients, and the parameters that they are of."""

  def __init__(self, work: Work, agent: base.Agent) -> None:
    self.outliers = Outliers(work.outlier_deviations)
    state = jax.jit(agent.init)(jax.random.key(work.seed))
    flat, unravel = jax.flatten_util.ravel_pytree(state.params)
    self.client = parameter_server.Client(np.asarray(flat), work.security)
    clip = optax.clip_by_global_norm(work.max_gradient_norm)

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
      gradients, share, output = updates.computed(agent, state, rng_key, batch)
      # A parameter server sees a part of the gradient, not its norm.
      clipped, _ = clip.update(gradients.params, clip.init(gradients.params))
      vector, _ = jax.flatten_util.ravel_pytree(clipped)
      return vector, 1.0 - share, output.weight, output.metrics

    self.gradient = jax.jit(gradient)
    self._with_params = jax.jit(with_params)
    self._acting = jax.jit(agent.acting)

  def newest(self) -> tuple[base.AgentState, types.Tree, np.int32]:
    """The newest state, what acts by it, and its version."""
    client = self.client
    version = np.int32(client.version)
    # Copies: JAX reads its arguments later, when the client's have gone on.
    state = self._with_params(
      client.params.copy(),
      client.target_params.copy(),
      version,
      np.float32(client.resets),
    )
    return state, self._acting(state), version


class _Worker:
  """One session: acts, replays, and sends gradients."""

  def __init__(
    self,
    work: Work,
    programs: local_actor.Programs,
    learner: _Learner,
    client: wire.Client,
    exchange: wire.Exchange,
    stop: threading.Event,
    metric_names: Sequence[str],
  ) -> None:
    first_seed = protocol.first_seed(exchange.welcome)
    act_key, self._learn_key, replay_key = jax.random.split(
      jax.random.key(first_seed), 3
    )
    device = jax.local_devices()[0]
    self._waits = metrics.Waits(
      dict.fromkeys(
        (metrics.WAIT_ENVIRONMENTS, metrics.WAIT_LEARNER, _WAIT_SERVERS), 1
      )
    )
    self._learner = learner
    self._security = work.security
    self._client = client
    self._exchange = exchange
    self._stop = stop
    self._source = work.plan.source(
      programs.agent, work.workers.unroll_length, [device], replay_key
    )
    self._actor = local_actor.LocalActor(
      programs,
      work.env,
      seed=first_seed,
      rng_key=act_key,
      device=device,
      waits=self._waits,
      exploration=protocol.exploration(
        exchange.welcome, work.workers.envs_per_worker
      ),
    )
    self._unreported = local_actor.Unreported(
      work.workers.envs_per_worker, programs.layout.length
    )
    self._batches = 0
    self._reported_bytes = learner.client.transferred_bytes
    self._newest = dict.fromkeys(metric_names, np.float32(np.nan))
    self._reset_counts()

  def run(self) -> None:
    """Works until the run is over."""
    try:
      if not self._connected():
        return
      state, acting, version = self._learner.newest()
      while not self._stop.is_set():
        rows, unroll = self._actor.observe(acting, version)
        self._unreported.add(rows)
        if unroll is not None:
          with self._waits.timed(metrics.WAIT_LEARNER):
            for batch in self._source([types.Share(unroll)]):
              if not self._learn(state, batch.parts[0]):
                return
              state, acting, version = self._learner.newest()
          if not self._report():
            return
        self._actor.act(acting, version)
    finally:
      self._actor.close()

  def _learn(self, state: base.AgentState, batch: types.Sample) -> bool:
    """Sends the gradient of a batch; False if the run is over."""
    key = jax.random.fold_in(self._learn_key, self._batches)
    self._batches += 1
    gradient, resets, weight, values = jax.device_get(
      self._learner.gradient(state, key, batch)
    )
    if not np.isfinite(gradient).all():
      self._skipped += 1
      return True
    self._newest = {k: np.float32(x) for k, x in values.items()}
    if "loss" in values and self._learner.outliers(float(values["loss"])):
      self._outliers += 1
      return True
    try:
      with self._waits.timed(_WAIT_SERVERS):
        applied, staleness = self._learner.client.push(gradient, resets)
    except wire.WireError as error:
      if error.code is not wire.StatusCode.UNAVAILABLE:
        raise
      return self._connected()
    if not applied:
      self._stale += 1
      return True
    self._gradients += 1
    self._learned_steps += float(weight)
    self._staleness += staleness
    return True

  def _connected(self) -> bool:
    """Connects to the parameter servers; False if the run is over first."""
    doubts = wire.Doubts("worker", self._security)
    servers: list[str] = []
    while not self._stop.is_set() and self._report():
      try:
        servers = self._servers()
        self._learner.client.connect(servers)
        return True
      except wire.WireError as error:
        if error.code is not wire.StatusCode.UNAVAILABLE:
          raise
        doubts.look(servers)
        self._stop.wait(_RETRY_SECONDS)
    return False

  def _servers(self) -> list[str]:
    """Where the parameter servers listen now."""
    nothing = wire.NOTHING
    stream = self._client.stream(reports.SERVERS, (), nothing, nothing)
    stream.cancel()
    return reports.addresses(stream.welcome)

  def _report(self) -> bool:
    """Says what has been done; False if the run is over."""
    steps, num_steps = self._unreported.take()
    total_bytes = self._learner.client.transferred_bytes
    shares = self._waits.shares()

    counts = reports.Counts(
      gradients=np.int32(self._gradients),
      stale=np.int32(self._stale),
      outliers=np.int32(self._outliers),
      skipped=np.int32(self._skipped),
      learned_steps=np.float32(self._learned_steps),
      staleness=np.float32(self._staleness / max(1, self._gradients)),
      newest=self._newest,
      wire_bytes=np.int64(total_bytes - self._reported_bytes),
      wait_environments=np.float32(shares[metrics.WAIT_ENVIRONMENTS]),
      learning=np.float32(shares[metrics.WAIT_LEARNER]),
      wait_servers=np.float32(shares[_WAIT_SERVERS]),
    )
    self._reported_bytes = total_bytes
    self._reset_counts()
    report = reports.Report(steps, np.int32(num_steps), counts)
    return self._exchange(report) is not None

  def _reset_counts(self) -> None:
    self._gradients = self._stale = self._outliers = self._skipped = 0
    self._learned_steps = self._staleness = 0.0
