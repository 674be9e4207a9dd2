"""Trains in a directory: what is done around a pipeline while it runs."""

import contextlib
import dataclasses
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seedx import checkpoint, launch, metrics, types
from seedx.app import (
  checkpointer,
  configs,
  evaluations,
  plot,
  run_dirs,
)
from seedx.launch import joining
from seedx.runtime import process, signals


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(checkpointer.Config, evaluations.Config):
  """The directory of a run, and how often it is saved and evaluated.

  Attributes:
    run_dir: directory of the results; runs/<experiment>/<time> if empty.
    resume: directory of a run to resume.
    trust: run the code that a directory to resume names; only its options count
      if not.
  """

  run_dir: str = ""
  resume: str = ""
  trust: bool = False

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be."""
    checkpointer.Config.__post_init__(self)
    evaluations.Config.__post_init__(self)


@dataclasses.dataclass(frozen=True)
class Run:
  """What a run left.

  Attributes:
    run_dir: with `config.json`, `metrics.jsonl`, `checkpoints/`, TensorBoard
      events and `learning_curve.png`.
    metrics: the last line of metrics.
    evaluation: what the last evaluation found, in words; empty for none.
    restarts: processes that died and were started again.
    status: exit status of a program that does nothing else; 0, or that of the
      signal that ended it, see `signals`.
  """

  run_dir: pathlib.Path
  metrics: Mapping[str, metrics.Value]
  evaluation: str = ""
  restarts: int = 0
  status: int = 0

  @property
  def interrupted(self) -> bool:
    """Whether Ctrl-C or another signal ended it."""
    return bool(self.status)

  @property
  def lines(self) -> list[dict[str, Any]]:
    """All lines of metrics."""
    return metrics.read_lines(self.run_dir / "metrics.jsonl")


def train(config: Any, *, show: bool = True, **options: Any) -> Run:
  """Trains what a pipeline's config says, with its processes on this machine.

  Ctrl-C, SIGTERM and SIGHUP end it early, with everything written.

  Args:
    config: such as `seed.Config(agent=vtrace.Config())`.
    show: progress, on the terminal.
    **options: fields of `Config`.

  Returns:
    What it left.

  Raises:
    types.ConfigError: it cannot be run so.
    Exception: whatever a thread of the run failed with.
  """
  files = Config(**options)
  if files.resume:
    before = run_dirs.config(files.resume)
    run_dirs.check_experiment(before, None, files.resume)
    own = run_dirs.record(config, config, None)
    run_dirs.check_classes(before, own, files.resume)
    run_dirs.check_resumed(before, config, files)
  return run(config, files, show=show)


def run(
  config: Any,
  files: Config,
  *,
  asked: Any = None,
  experiment: str | None = None,
  alone: bool = False,
  show: bool = True,
) -> Run:
  """Trains what a pipeline's config says; see `train`.

  Args:
    config: of the pipeline.
    files: where it goes.
    asked: the config that `config.json` is to show; `config` if None.
    experiment: the name of the program that trains, if one does.
    alone: whether the pipeline's other processes are started by others.
    show: progress, on the terminal.
  """
  pipeline = pipeline_of(config)
  record = run_dirs.record(config, asked or config, experiment)
  context = process.Context()
  with (
    signals.stopping(context.stop, experiment is not None) as ending,
    _open(files, record) as run_dir,
    _sockets(config, alone) as sockets,
  ):
    config = config.with_sockets(sockets) if sockets else config
    nodes = pipeline.nodes(config)
    # Their imports take as long as what follows, on other cores.
    processes = launch.Processes([] if alone else nodes, sockets)
    try:
      evaluation = evaluations.of(config, files, run_dir)
      own = pipeline.learn(config, context)
      if own.server is not None:
        _roles(config, record, nodes, own.addresses).bind(own.server)
      kept = checkpointer.Checkpointer(own, run_dir, files, evaluation)
      if files.resume:
        kept.restore()
        _check_total(config, record, files, own.acted.env_steps)
      run_dirs.write(run_dir, record)

      def check() -> None:
        processes.check()
        kept.check()

      last = process.run(
        own,
        context,
        _sinks(config, run_dir, show, kept, evaluation),
        config.log_seconds,
        check,
      )
      kept.finish(bool(ending.status))
    finally:
      processes.stop()
  _draw(config.env.env, record.name, run_dir)
  return Run(
    run_dir,
    last,
    evaluation=evaluation.words if evaluation else "",
    restarts=processes.restarts,
    status=ending.status,
  )


def _sockets(
  config: process.Config, alone: bool
) -> contextlib.AbstractContextManager[str]:
  """A folder for the sockets of processes here; empty where none is needed."""
  if alone or not isinstance(config, process.ServerConfig):
    return contextlib.nullcontext("")
  return tempfile.TemporaryDirectory(prefix="seedx-")


def _roles(
  config: Any,
  record: run_dirs.Config,
  nodes: Sequence[launch.Node],
  addresses: Mapping[str, launch.Addresses],
) -> joining.Roles:
  """What processes that join a run are told."""
  names = {*configs.settings(config), "agent"}
  options = {k: v for k, v in record.options.items() if k in names}
  return joining.Roles(nodes, record.experiment or "", options, addresses)


def pipeline_of(config: Any) -> Any:
  """The pipeline of a config: the module that defines its class.

  Raises:
    types.ConfigError: it is none: it has no `nodes` or no `learn`.
  """
  module = sys.modules[type(config).__module__]
  if not hasattr(module, "nodes") or not hasattr(module, "learn"):
    raise types.ConfigError(
      f"expected a pipeline's config, found {type(config).__qualname__} of"
      f" {module.__name__}, which has no nodes and learn beside it"
    )
  return module


def _sinks(
  config: process.Config,
  run_dir: pathlib.Path,
  show: bool,
  *others: evaluations.HasNewest | None,
) -> Sequence[metrics.Sink]:
  """Where the lines of metrics go; a disk that is full does not end the run."""
  lines = metrics.JsonLines(run_dir / "metrics.jsonl")
  files: list[metrics.Sink] = [
    evaluations.Lines(metrics.Background(name, sink), *others)
    for name, sink in (
      ("metrics.jsonl", lines),
      ("TensorBoard's events", metrics.TensorBoard(run_dir)),
    )
  ]
  if show:
    console = metrics.Console(config.total_steps)
    files.append(metrics.Background("the progress", console))
  return files


def _draw(env: str, name: str, run_dir: pathlib.Path) -> None:
  """Draws the learning curve, or says why it cannot."""
  try:
    lines = metrics.read_lines(run_dir / "metrics.jsonl")
    plot.draw({env: {name: [lines]}}, run_dir / "learning_curve.png")
  except (OSError, types.ConfigError) as error:
    print(f"there is no learning_curve.png: {error}", file=sys.stderr)


@contextlib.contextmanager
def _open(files: Config, record: run_dirs.Config) -> Iterator[pathlib.Path]:
  """The directory of the run, which no other process uses meanwhile."""
  name = files.resume or files.run_dir
  name = name or os.path.join(
    "runs", record.name, time.strftime("%Y%m%d-%H%M%S")
  )
  is_new = not os.path.exists(os.path.expanduser(name))
  run_dir = metrics.open_run_dir(name)
  with run_dirs.claimed(run_dir):
    if not files.resume and (run_dir / "config.json").exists():
      saved = checkpoint.Checkpoints(checkpointer.directory(run_dir)).steps()
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


def _check_total(
  config: process.Config,
  record: run_dirs.Config,
  files: Config,
  env_steps: int,
) -> None:
  """Says where nothing is left to do.

  Raises:
    types.ConfigError: that is not what was asked for.
  """
  if env_steps < config.total_steps:
    return
  before = run_dirs.config(files.resume).options["total_steps"]
  if record.options["total_steps"] != before:
    raise types.ConfigError(
      f"expected --total-steps of more than the {env_steps:,} that the run has"
      f" made, found {config.total_steps:,}"
    )
  print("the run has made all of its steps; a larger --total-steps adds some")
