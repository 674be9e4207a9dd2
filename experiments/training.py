"""What every training program does around its pipeline."""

import dataclasses
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from seedx import launch, metrics

_INTERRUPTED_STATUS = 130


class Run(Protocol):
  """A pipeline's own process."""

  def run(self, check: Callable[[], None]) -> None:
    """Runs to the end, calling `check` every now and then."""


def run(
  options: Any,
  make: Callable[[Sequence[metrics.Sink], threading.Event], Run],
  nodes: list[launch.Node],
) -> int:
  """Runs a pipeline in this process, and its nodes in processes beside it.

  Args:
    options: the experiment's, a dataclass with `env`, `total_steps` and
      `run_dir`; it is written to `config.json`.
    make: `(sinks, stop) -> Run`.
    nodes: what runs beside it on this machine.

  Returns:
    The exit status: 0, or 130 after Ctrl-C.
  """
  name = pathlib.Path(sys.modules[type(options).__module__].__file__ or "").stem
  directory = options.run_dir or os.path.join(
    "runs", name, time.strftime("%Y%m%d-%H%M%S")
  )
  run_dir = metrics.open_run_dir(directory)
  stop = _stop_on_signals()
  processes = launch.Processes(nodes)
  try:
    metrics.write_config(run_dir, dataclasses.asdict(options))
    sinks: list[metrics.Sink] = [
      metrics.JsonLines(run_dir / "metrics.jsonl"),
      metrics.TensorBoard(run_dir),
      metrics.Console(options.total_steps),
    ]
    make(sinks, stop).run(processes.check)
  finally:
    processes.stop()
  metrics.learning_curve(
    run_dir / "metrics.jsonl",
    run_dir / "learning_curve.png",
    f"{name} on {options.env}",
  )
  print(f"results are in {run_dir}", flush=True)
  return _INTERRUPTED_STATUS if stop.is_set() else 0


def _stop_on_signals() -> threading.Event:
  """An event that Ctrl-C sets; the second Ctrl-C exits at once."""
  stop = threading.Event()

  def handle(number: int, frame: object) -> None:
    del number, frame
    if stop.is_set():
      os._exit(_INTERRUPTED_STATUS)
    stop.set()
    print("stopping; Ctrl-C again to exit at once", file=sys.stderr)

  signal.signal(signal.SIGINT, handle)
  signal.signal(signal.SIGTERM, handle)
  return stop
