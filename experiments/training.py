"""What every training program does around its pipeline."""

import dataclasses
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium

from seedx import launch, metrics

INTERRUPTED_STATUS = 130


class Run(Protocol):
  """A pipeline's own process."""

  def run(self, check: Callable[[], None]) -> Mapping[str, Any]:
    """Runs to the end and returns the last line of metrics.

    It calls `check` every now and then, and lets through what that raises.
    """


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
  interrupted = stop_on_signals(stop)
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
  return INTERRUPTED_STATUS if interrupted.is_set() else 0


def stop_on_signals(stop: threading.Event) -> threading.Event:
  """Lets the first Ctrl-C set `stop`, and the second end the process.

  Returns:
    An event that is set by Ctrl-C, and by nothing else.
  """
  interrupted = threading.Event()

  def handle(number: int, frame: object) -> None:
    del number, frame
    if interrupted.is_set():
      os._exit(INTERRUPTED_STATUS)
    interrupted.set()
    stop.set()
    print("\nstopping; Ctrl-C again to exit at once", file=sys.stderr)

  signal.signal(signal.SIGINT, handle)
  signal.signal(signal.SIGTERM, handle)
  return interrupted


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
