"""Training in a run directory: everything around a pipeline while it runs."""

import contextlib
import dataclasses
import functools
import inspect
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from seedx import checkpoint, metrics, signals, types
from seedx import files as files_lib
from seedx.app import (
  cluster_learner,
  descriptions,
  devices,
  directory,
  launching,
  run_sinks,
  scales,
)
from seedx.app.runs import (
  checkpointer,
  evaluations,
  records,
  run_folders,
  warm_start,
)
from seedx.app.settings import opponents
from seedx.envs import functions
from seedx.launch import config as launch_config
from seedx.launch import instances
from seedx.runtime import (
  clocks,
  hangs,
  host_links,
  process,
  progress,
  running,
)
from seedx.runtime import hosts as hosts_lib


@dataclasses.dataclass(frozen=True)
class Run:
  """The result of a run.

  Attributes:
    run_dir: directory with `config.json`, `metrics.jsonl`, `checkpoints/`,
      TensorBoard events and `learning_curve.png`. Only learner host 0 writes
      the directory; other hosts have the path in their options.
    metrics: the last line of metrics.
    evaluation: summary of the last evaluation; empty if there was none.
    restarts: number of processes that died and were started again.
    status: exit status for the program: 0, or that of the signal that ended the
      run, see `signals`.
    host: index of this learner host.
    steps_before: number of env steps before this start of a resumed run.
    seconds_before: seconds before this start of a resumed run.
    is_saved: whether the last checkpoint is on the disk.
    unwritten: names of what could not be written, such as the last checkpoint;
      empty on other hosts than host 0.
  """

  run_dir: pathlib.Path
  metrics: Mapping[str, metrics.Value]
  evaluation: str = ""
  restarts: int = 0
  status: int = 0
  host: int = 0
  steps_before: int = 0
  seconds_before: float = 0.0
  is_saved: bool = True
  unwritten: Sequence[str] = ()

  @property
  def interrupted(self) -> bool:
    """Whether Ctrl-C or another signal ended the run."""
    return bool(self.status)

  @property
  def place(self) -> str:
    """Sentence about where the files are, and what could not be written."""
    if self.unwritten:
      names = ", ".join(self.unwritten)
      return f"not written: {names}; the rest is in {self.run_dir}"
    return f"checkpoints, metrics and learning_curve.png are in {self.run_dir}"

  @property
  def lines(self) -> list[dict[str, Any]]:
    """All lines of metrics, from the run's directory."""
    return metrics.read_lines(self.run_dir / run_folders.METRICS)


def train(
  config: process.Config,
  *,
  sinks: Sequence[metrics.Sink] = (),
  return_interrupted: bool = False,
  **options: Any,
) -> Run:
  """Trains with a pipeline's config, and starts the pipeline's other processes.

  Ctrl-C, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 end the run early, after
  everything is written.

  Args:
    config: pipeline's config, such as `seed.Config(agent=vtrace.Config())`.
    sinks: additional sinks for the lines of metrics, such as your own logger.
    return_interrupted: whether to return normally from a run that a signal
      ended. By default the signal also ends the script, which could otherwise
      begin its next run.
    **options: fields of `Config`; `resume` may be True for "auto".

  Raises:
    types.ConfigError: a setting is wrong, or the directory cannot be used.
    KeyboardInterrupt: Ctrl-C ended the run; everything is written.
    SystemExit: another signal ended the run; the status is as in a shell, and
      after SIGUSR1 and SIGUSR2 that of SIGTERM.
    launch.hosts.LostError: another learner host has died.
    OSError: the last checkpoint could not be saved, as on a full disk; all else
      is done. If a signal ended the run, this error is the cause of the one
      above.
    Exception: any error of one of the run's threads.
  """
  if options.get("resume") is True:
    options["resume"] = run_folders.AUTO
  files = directory.Config(**options).resolved()
  if files.resumed:
    resumed = records.read(files.resume)
    records.check_experiment(resumed, None, files.resume)
    recorded = records.of(config, config, None)
    records.check_classes(resumed, recorded, files.resume)
    records.check_resumed(resumed, config, files.run_dir)
  ended = run(config, files, sinks=sinks)
  failure = None if ended.is_saved else OSError(ended.place)
  if ended.status and not return_interrupted:
    if ended.status == signals.status(signal.SIGINT):
      raise KeyboardInterrupt from failure
    raise SystemExit(ended.status) from failure
  if failure is not None:
    raise failure
  return ended


def _with_fields(function: Callable[..., Any]) -> inspect.Signature:
  """Returns a signature with the fields of `Config` in place of `options`."""
  signature = inspect.signature(function)
  *own, _ = signature.parameters.values()
  fields = inspect.signature(directory.Config).parameters.values()
  named = [x.replace(kind=inspect.Parameter.KEYWORD_ONLY) for x in fields]
  return signature.replace(parameters=[*own, *named])


train.__signature__ = _with_fields(train)  # type: ignore[attr-defined]


def run(
  config: process.Config,
  files: directory.Config,
  *,
  asked: Any = None,
  experiment: str | None = None,
  presets: Sequence[str] = (),
  others_join: bool = False,
  sinks: Sequence[metrics.Sink] = (),
  started_seconds: float | None = None,
) -> Run:
  """Trains with a pipeline's config; see `train`.

  Args:
    config: config of the pipeline.
    files: the run's directory, and how often the run is saved and evaluated.
    asked: the config to record in `config.json`; `config` if None.
    experiment: name of the experiment; None for a script.
    presets: one line for each preset that changed settings.
    others_join: whether the pipeline's other processes are started separately
      and join; if not, this process starts them.
    sinks: additional sinks for the lines of metrics.
    started_seconds: start of the run's clock, a time of `time.monotonic`; now
      if None. On another machine, the clock starts with the training there.
  """
  wall_clock = clocks.WallClock(started_seconds)
  functions.check_not_importing()
  if not isinstance(config, process.Config):
    raise types.ConfigError(
      "expected a pipeline's config, see runtime.process.Config; found"
      f" {type(config).__qualname__} of {type(config).__module__}"
    )
  asked = asked or config
  record = records.of(config, asked, experiment)
  shared = records.settings_of_all_hosts(asked)
  config, files = _with_opponents(config, files)
  work = _Work(config, files, record, shared, presets, others_join, sinks)
  stop = threading.Event()
  with (
    files_lib.tentative(),
    signals.stopping(stop, experiment is not None) as ending,
  ):
    launching = getattr(config, "launching", launch_config.Config())
    if launching.learner_on_cluster and not others_join:
      return _on_cluster(work, stop, ending)
    return _run(work, stop, ending, wall_clock)


def _with_opponents(
  config: process.Config, files: directory.Config
) -> tuple[process.Config, directory.Config]:
  env = opponents.resolved(config.env, files.trust)
  other = dataclasses.replace(env, env_options=files.evaluate_env_options)
  other = opponents.resolved(other, files.trust)
  files = dataclasses.replace(files, evaluate_env_options=other.env_options)
  return dataclasses.replace(config, env=env), files


@dataclasses.dataclass(frozen=True)
class _Work:
  """The arguments of `run`, and values that follow from them."""

  config: process.Config
  files: directory.Config
  record: records.Record
  settings_of_all_hosts: Mapping[str, Any]
  presets: Sequence[str]
  others_join: bool
  sinks: Sequence[metrics.Sink]


def _on_cluster(
  work: _Work, stop: threading.Event, ending: signals.Ending
) -> Run:
  """Trains on a machine of a cluster; on another if that one dies."""
  config: Any = work.config  # A `process.ServerConfig`.
  launching, address = config.launching, config.address
  if _learner_hosts(config).hosts > 1:
    raise types.ConfigError(
      "expected one learner host with learner_on_cluster, found"
      f" {_learner_hosts(config).hosts}"
    )
  if address and not address.startswith(("0.0.0.0:", "[::]:")):
    raise types.ConfigError(
      "expected no address or 0.0.0.0:PORT for the learner with"
      f" learner_on_cluster, since it may move; found {address}"
    )
  resumes = bool(work.files.resumed)
  if work.files.init_from:
    # The other machine's working directory may differ.
    path = os.path.abspath(os.path.expanduser(work.files.init_from))
    files = dataclasses.replace(work.files, init_from=path)
    work = dataclasses.replace(work, files=files)
  with directory.opened(work.files, work.record) as run_dir:
    pass  # Makes and checks the directory; the learner locks it where it runs.
  there = functools.partial(_run_there, work)
  return cluster_learner.run(there, launching, run_dir, resumes, stop, ending)


def _run_there(
  work: _Work,
  run_dir: pathlib.Path,
  resumes: bool,
  stop: threading.Event,
  ending: signals.Ending,
) -> Run:
  files = dataclasses.replace(
    work.files,
    run_dir="" if resumes else str(run_dir),
    resume=str(run_dir) if resumes else "",
  )
  work = dataclasses.replace(work, files=files)
  return _run(work, stop, ending, clocks.WallClock())


def _run(
  work: _Work,
  stop: threading.Event,
  ending: signals.Ending,
  wall_clock: clocks.WallClock,
) -> Run:
  with host_links.joined(_learner_hosts(work.config), stop, ending) as learners:
    devices.check()
    context = process.Context(stop, learners, wall_clock)
    if learners.count > 1:
      host_links.check_same(work.settings_of_all_hosts)
    may_exit = ending.in_main and learners.count == 1
    watch = hangs.Watch(ending, work.config.hang_seconds, may_exit)
    train_here = _follow if learners.index else _lead
    try:
      run = train_here(work, context, ending, watch)
    finally:
      watch.close()
  return dataclasses.replace(
    run, status=run.status or learners.status, host=learners.index
  )


def _learner_hosts(config: process.Config) -> hosts_lib.Config:
  learner = getattr(config, "learner", None)
  if isinstance(learner, hosts_lib.Config):
    return learner
  return hosts_lib.Config()


def _follow(
  work: _Work,
  context: process.Context,
  ending: signals.Ending,
  watch: hangs.Watch,
) -> Run:
  """Trains on a host without a directory: any learner host except host 0."""
  config, files, record = work.config, work.files, work.record
  with (
    devices.explaining_memory(),
    launching.sockets(config, work.others_join, watch) as sockets,
  ):
    config, nodes, processes = launching.launched(config, record, sockets)
    try:
      trainer = config.learn(context)
      launching.bind(trainer, config, record, nodes)
      _share_state(trainer, context.hosts)
      last = running.run(
        trainer, context, (), config.log_seconds, processes.check, watch
      )
    finally:
      processes.stop()
  return Run(
    pathlib.Path(files.resumed or files.run_dir),
    last,
    restarts=processes.restarts,
    status=ending.status,
  )


def _share_state(trainer: process.Process, learners: hosts_lib.Hosts) -> None:
  """Copies the state of host 0, possibly restored, to all hosts."""
  if learners.count == 1:
    return
  state = host_links.broadcast(
    b"" if learners.index else checkpoint.to_bytes(trainer.saved())
  )
  if learners.index:
    arrays = checkpoint.from_bytes(np.frombuffer(state, np.uint8))
    trainer.restore(
      lambda shapes: checkpoint.like(arrays, shapes, "the state of host 0")
    )
    # The restored time includes the start of host 0, so this host counts only
    # from now.
    trainer.acted.wall_clock.restart()


def _lead(
  work: _Work,
  context: process.Context,
  ending: signals.Ending,
  watch: hangs.Watch,
) -> Run:
  """Trains on host 0, which has the run's directory."""
  config, files, record = work.config, work.files, work.record
  with (
    devices.explaining_memory(),
    directory.opened(files, record) as run_dir,
    launching.sockets(config, work.others_join, watch) as sockets,
  ):
    opponents.check(config.env)  # Before anything is started.
    taken, record = _warm(config, files, record)
    loggers = [*run_sinks.loggers(files, config, run_dir), *work.sinks]
    # The other processes start first, because their imports take seconds, on
    # other CPU cores.
    config, nodes, processes = launching.launched(config, record, sockets)
    watch.leaving.append(processes.stop)
    try:
      if not files.quiet:
        descriptions.introduce(
          record.name, config, taken, work.presets, run_dir
        )
      evaluation = evaluations.of(config, files, run_dir)
      trainer = _trainer(config, context)
      launching.bind(trainer, config, record, nodes)
      saver = checkpointer.Checkpointer(trainer, run_dir, files, evaluation)
      added = [x for x in (saver, evaluation) if x is not None]
      measures = [*trainer.measures, *added]
      trainer = dataclasses.replace(trainer, measures=measures)
      if taken is not None:
        _begin(trainer, taken)
      if files.resumed:
        saver.restore()
        _check_total(config, record, files, trainer.clock.now())
      steps_before = trainer.clock.now()
      _share_state(trainer, context.hosts)
      records.write(run_dir, record)
      sizes = scales.Check(config.agent, config.env, trainer.acted)
      check = functools.partial(
        _check, processes, saver, sizes, evaluation, files, context.stop
      )
      sinks = run_sinks.make(
        config, files, run_dir, record, evaluation, loggers, work.others_join
      )
      # Closing the sinks may take long, so the last checkpoint comes first.
      with watch.closing(sinks), _rescued(saver, context.hosts, watch):
        last = running.run(
          trainer, context, sinks, config.log_seconds, check, watch
        )
        saver.finish(bool(ending.status or context.hosts.status))
    finally:
      processes.stop()
  is_drawn = run_sinks.draw(config.env.env, record.name, run_dir, files)
  return Run(
    run_dir,
    last,
    evaluation=evaluation.words if evaluation else "",
    restarts=processes.restarts,
    status=ending.status,
    steps_before=steps_before,
    seconds_before=trainer.acted.wall_clock.past_seconds,
    is_saved=saver.is_saved,
    unwritten=_unwritten(saver, evaluation, sinks, is_drawn),
  )


def _unwritten(
  saver: checkpointer.Checkpointer,
  evaluation: evaluations.Periodic | None,
  sinks: Sequence[metrics.Background],
  is_drawn: bool,
) -> list[str]:
  lost = evaluation.lost if evaluation else {}
  return [
    *saver.unwritten,
    *(name for sink in sinks for name in sink.unwritten),
    *(f"{number} {name}" for name, number in lost.items()),
    *([] if is_drawn else [run_folders.CURVE]),
  ]


def _trainer(
  config: process.Config, context: process.Context
) -> process.Process:
  """Returns what trains here; several hosts do not save their replays."""
  trainer = config.learn(context)
  if trainer.replay is None or context.hosts.count == 1:
    return trainer
  print(
    "checkpoints do not include the replays of several learner hosts; they"
    " start empty after a resume",
    file=sys.stderr,
  )
  return dataclasses.replace(trainer, replay=None)


def _warm(
  config: process.Config, files: directory.Config, record: records.Record
) -> tuple[warm_start.Origin | None, records.Record]:
  """Returns what a run begins with, and its record with the origin.

  A resumed run keeps its origin, and takes nothing.
  """
  if files.resumed:
    resumed = records.read(files.resumed)
    warm_start.check_resumed(resumed, files)
    return None, dataclasses.replace(record, init_from=resumed.init_from)
  taken = warm_start.take(config, files)
  origin = None if taken is None else taken.origin
  return taken, dataclasses.replace(record, init_from=origin)


def _begin(trainer: process.Process, taken: warm_start.Origin) -> None:
  if trainer.begin is None:
    raise types.ConfigError(
      "expected no --init-from, because this pipeline's process has no `begin`;"
      " see runtime.process.Process"
    )
  trainer.begin(taken.params, taken.statistics)


@contextlib.contextmanager
def _rescued(
  saver: checkpointer.Checkpointer,
  learners: hosts_lib.Hosts,
  watch: hangs.Watch,
) -> Iterator[None]:
  """Saves the newest state of a run that ends with an error."""

  def rescue(has_ended: bool = False, resumes: bool = True) -> None:
    if message := saver.rescue(has_ended, resumes):
      signals.print_at_once(f"{message}\n")

  watch.saver, learners.rescue = saver, rescue
  try:
    yield
  except BaseException as error:
    # A TimeoutError reports threads that are still running.
    rescue(
      has_ended=not isinstance(error, TimeoutError),
      resumes=not isinstance(error, progress.StuckError),
    )
    raise


def _check(
  processes: instances.Instances,
  saver: checkpointer.Checkpointer,
  sizes: scales.Check,
  evaluation: evaluations.Periodic | None,
  files: directory.Config,
  stop: threading.Event,
) -> None:
  processes.check()
  saver.check()
  if not files.quiet:
    sizes()
  if evaluation is not None:
    mean = evaluation.mean
  else:
    mean = sizes.acted.score() if sizes.acted.returns.is_full else None
  if mean is not None and mean >= files.stop_at:
    stop.set()


def _check_total(
  config: process.Config,
  record: records.Record,
  files: directory.Config,
  env_steps: int,
) -> None:
  """Prints a message if a resumed run has no env step left.

  Raises:
    types.ConfigError: a new `--total-steps` leaves no env step.
  """
  if env_steps < config.total_steps:
    return
  old_total = records.read(files.resume).options["total_steps"]
  if record.options["total_steps"] != old_total:
    raise types.ConfigError(
      f"expected --total-steps of more than the {env_steps:,} that the run has"
      f" made, found {config.total_steps:,}"
    )
  print("the run has made all of its steps; a larger --total-steps adds some")
