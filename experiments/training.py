"""What every training program does around its pipeline."""

import contextlib
import os
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium

from experiments import (
  evaluations,
  keeper,
  options,
  runs,
  settings,
  signals,
)
from seedx import checkpoint, launch, metrics, types, wire
from seedx.agents import base
from seedx.pipelines import seed, sync
from seedx.runtime import feeds


def run_sync(
  given: Any,
  make_agent: base.MakeAgent,
  replay: feeds.ReplayConfig | None = None,
) -> int:
  """Trains an agent in the pipeline `sync`.

  Args:
    given: options of `settings.Sync` and `settings.Common`.
    make_agent: of the environment's spec.
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
  return run(
    given, make_agent, lambda sinks, stop: sync.Trainer(config, sinks, stop), []
  )


def run_seed(given: Any, make_agent: base.MakeAgent) -> int:
  """Trains an agent in the pipeline `seed`.

  Args:
    given: options of `settings.Seed` and `settings.Common`.
    make_agent: of the environment's spec.

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
      make_agent,
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
  given: Any,
  make_agent: base.MakeAgent,
  make: Callable[[Sequence[metrics.Sink], threading.Event], keeper.Run],
  nodes: list[launch.Node],
) -> int:
  """Runs a pipeline in this process, and its nodes in processes beside it.

  Args:
    given: options of `settings.Common`; they are written to `config.json`.
    make_agent: of the environment's spec.
    make: `(sinks, stop) -> Run`; `stop` is set where the run is to end early.
    nodes: what runs beside it on this machine.

  Returns:
    The exit status: 0, or 130 after Ctrl-C.
  """
  experiment = options.module(type(given))
  stop = threading.Event()
  interrupted = signals.stop_on_signals(stop)
  with _run_dir(given, experiment) as run_dir:
    # Their imports take as long as what follows, on other cores.
    processes = launch.Processes(nodes)
    try:
      evaluation = None
      if given.evaluate_every_steps:
        evaluation = evaluations.Periodic(given, make_agent, run_dir)
      sinks: list[metrics.Sink] = [
        evaluations.Lines(x, evaluation)
        for x in (
          metrics.JsonLines(run_dir / "metrics.jsonl"),
          metrics.TensorBoard(run_dir),
        )
      ]
      own = make([*sinks, metrics.Console(given.total_steps)], stop)
      kept = keeper.Keeper(
        own, run_dir, given.checkpoint_every_seconds, evaluation
      )
      if given.resume:
        kept.restore()
        _check_total(given, own.progress.env_steps)
      runs.write(run_dir, given)

      def check() -> None:
        processes.check()
        kept.check()

      last = own.run(check)
      kept.finish(interrupted.is_set())
    finally:
      processes.stop()
  metrics.learning_curve(
    run_dir / "metrics.jsonl",
    run_dir / "learning_curve.png",
    f"{runs.short(experiment)} on {given.env}",
  )
  if processes.restarts:
    print(f"processes that died and were started again: {processes.restarts}")
  print(_verdict(given.env, last))
  if evaluation is not None and evaluation.words:
    print(f"evaluation: {evaluation.words}")
  print(
    f"checkpoints, metrics and learning_curve.png are in {run_dir}", flush=True
  )
  return signals.INTERRUPTED_STATUS if interrupted.is_set() else 0


@contextlib.contextmanager
def _run_dir(given: Any, experiment: str) -> Iterator[pathlib.Path]:
  """The directory of the run, which no other process uses meanwhile."""
  name = given.resume or given.run_dir
  name = name or os.path.join(
    "runs", runs.short(experiment), time.strftime("%Y%m%d-%H%M%S")
  )
  is_new = not os.path.exists(os.path.expanduser(name))
  run_dir = metrics.open_run_dir(name)
  with runs.claimed(run_dir):
    if not given.resume and (run_dir / "config.json").exists():
      saved = checkpoint.Checkpoints(keeper.directory(run_dir)).steps()
      # There may be none, of a run that has failed early.
      way = "go on with it by --resume" if saved else "remove it"
      raise types.ConfigError(
        f"expected a --run-dir without a run, found one in {str(run_dir)!r};"
        f" {way}, or choose another"
      )
    try:
      yield run_dir
    except types.ConfigError:
      if is_new and not any(run_dir.iterdir()):
        run_dir.rmdir()  # It has not begun.
      raise


def _check_total(given: Any, env_steps: int) -> None:
  """Says where nothing is left to do.

  Raises:
    types.ConfigError: that is not what was asked for.
  """
  if env_steps < given.total_steps:
    return
  if given.total_steps != runs.config(given.resume).options["total_steps"]:
    raise types.ConfigError(
      f"expected --total-steps of more than the {env_steps:,} that the run has"
      f" made, found {given.total_steps:,}"
    )
  print("the run has made all of its steps; a larger --total-steps adds some")


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
