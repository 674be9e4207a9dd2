"""What every training program does around its pipeline."""

import dataclasses
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium

from experiments import settings, signals
from seedx import launch, metrics, types, wire
from seedx.agents import base
from seedx.pipelines import seed, sync
from seedx.runtime import feeds

MakeAgent = Callable[[types.EnvironmentSpec, str | None], base.Agent]


class Run(Protocol):
  """A pipeline's own process."""

  def run(self, check: Callable[[], None]) -> Mapping[str, Any]:
    """Runs to the end and returns the last line of metrics.

    It calls `check` every now and then, and lets through what that raises.
    """


def run_sync(
  given: Any,
  make_agent: MakeAgent,
  replay: feeds.ReplayConfig | None = None,
) -> int:
  """Trains an agent in the pipeline `sync`.

  Args:
    given: options of `settings.Sync` and `settings.Common`.
    make_agent: of the environment's spec and the axis of learner cores.
    replay: of an agent that learns from one.

  Returns:
    The exit status.
  """
  config = sync.Config(
    env=settings.environment(given),
    make_agent=make_agent,
    total_steps=given.total_steps,
    seed=given.seed,
    num_envs=given.num_envs,
    unroll_length=given.unroll_length,
    micro_batches=given.micro_batches,
    env_threads=given.env_threads,
    learner_devices=given.learner_devices,
    replay=replay,
  )
  return run(given, lambda sinks, stop: sync.Trainer(config, sinks, stop), [])


def run_seed(given: Any, make_agent: MakeAgent) -> int:
  """Trains an agent in the pipeline `seed`.

  Args:
    given: options of `settings.Seed` and `settings.Common`.
    make_agent: of the environment's spec and the axis of learner cores.

  Returns:
    The exit status.
  """
  with tempfile.TemporaryDirectory() as sockets:
    config = seed.Config(
      env=settings.environment(given),
      make_agent=make_agent,
      address=given.address or f"unix:{sockets}/learner",
      total_steps=given.total_steps,
      seed=given.seed,
      num_actors=given.num_actors,
      envs_per_actor=given.envs_per_actor,
      actor_batch_size=given.actor_batch_size or given.envs_per_actor,
      unroll_length=given.unroll_length,
      batch_size=given.batch_size,
      micro_batches=given.micro_batches,
      inference_devices=given.inference_devices,
      learner_devices=given.learner_devices,
    )
    return run(
      given,
      lambda sinks, stop: seed.Learner(config, sinks, stop),
      [seed.actors(config)] if given.role == "all" else [],
    )


def run_node(node: launch.Node) -> int:
  """Runs a node of a pipeline whose other nodes run elsewhere.

  Returns:
    The exit status: 0, or 130 after Ctrl-C.

  Raises:
    types.ConfigError: the node is refused, or cannot do its work.
  """
  stop = threading.Event()
  interrupted = signals.stop_on_signals(stop)
  try:
    node.run(node.config, stop)
  except wire.WireError as error:
    raise types.ConfigError(f"this {node.role} is refused: {error}") from error
  return signals.INTERRUPTED_STATUS if interrupted.is_set() else 0


def run(
  options: Any,
  make: Callable[[Sequence[metrics.Sink], threading.Event], Run],
  nodes: list[launch.Node],
) -> int:
  """Runs a pipeline in this process, and its nodes in processes beside it.

  Args:
    options: the experiment's, a dataclass with `env`, `total_steps` and
      `run_dir`; it is written to `config.json`.
    make: `(sinks, stop) -> Run`; `stop` is set where the run is to end early.
    nodes: what runs beside it on this machine.

  Returns:
    The exit status: 0, or 130 after Ctrl-C.
  """
  name = pathlib.Path(sys.modules[type(options).__module__].__file__ or "").stem
  run_dir = metrics.open_run_dir(
    options.run_dir
    or os.path.join("runs", name, time.strftime("%Y%m%d-%H%M%S"))
  )
  metrics.write_config(run_dir, dataclasses.asdict(options))
  stop = threading.Event()
  interrupted = signals.stop_on_signals(stop)
  # Their imports take as long as what follows, on other cores.
  processes = launch.Processes(nodes)
  try:
    sinks: list[metrics.Sink] = [
      metrics.JsonLines(run_dir / "metrics.jsonl"),
      metrics.TensorBoard(run_dir),
      metrics.Console(options.total_steps),
    ]
    last = make(sinks, stop).run(processes.check)
  finally:
    processes.stop()
  metrics.learning_curve(
    run_dir / "metrics.jsonl",
    run_dir / "learning_curve.png",
    f"{name} on {options.env}",
  )
  print(_verdict(options.env, last))
  print(f"metrics and learning_curve.png are in {run_dir}", flush=True)
  return signals.INTERRUPTED_STATUS if interrupted.is_set() else 0


def _verdict(env_id: str, last: Mapping[str, Any]) -> str:
  """What the run reached, and whether that solves the environment."""
  found = last["episode_return"]
  if found is None:
    return "no episode has ended"
  reached = (
    f"{env_id}: mean return of the last 100 episodes {found:.1f} after"
    f" {last['env_steps']:,} env steps and {last['wall_seconds']:.0f} s"
  )
  known = gymnasium.registry.get(env_id)
  if known is None or known.reward_threshold is None:
    return reached
  threshold = known.reward_threshold
  word = "solved" if found >= threshold else "not solved"
  return f"{reached}: {word} (Gymnasium's threshold is {threshold:g})"
