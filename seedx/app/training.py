"""Trains in a directory: what is done around a pipeline while it runs."""

import contextlib
import dataclasses
import functools
import math
import os
import pathlib
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from seedx import checkpoint, envs, metrics, signals, types, wire
from seedx import files as files_lib
from seedx.app import described, devices, elsewhere, plot, profiling
from seedx.app.cli import configs
from seedx.app.runs import checkpointer, evaluations, run_dirs
from seedx.launch import admission, hosts, instances, ray_cluster
from seedx.launch import config as launch_config
from seedx.launch import nodes as nodes_lib
from seedx.runtime import counters, hangs, process, running
from seedx.runtime import hosts as hosts_lib

# A logger of the user's may have to reach a server for its last lines.
_LOGGER_SECONDS = 60.0
_ALONE = hosts_lib.Config()
_NO_REPLAYS = (
  "checkpoints are without the replays of the learner hosts: they are empty"
  " after a resume"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(checkpointer.Config, evaluations.Config):
  """The directory of a run, and how often it is saved and evaluated.

  Attributes:
    run_dir: directory of the results; runs/<experiment>/<time> if empty.
    resume: directory of a run to resume.
    trust: run the code that a directory to resume names; only its options count
      if not.
    stop_at: mean return of the last 100 episodes at which the run ends early;
      where the run is evaluated, that of an evaluation.
    quiet: show no progress.
    log_every: seconds between two lines of progress, where it is a table.
    sink: MODULE:FACTORY of your own logger; it is called with the run's
      directory and options, and returns a `metrics.Sink`.
    profile: seconds of the run to record for XProf or Perfetto, once it learns;
      0 for none.
  """

  run_dir: str = types.setting("", changes="start")
  resume: str = types.setting("", changes="start")
  trust: bool = types.setting(False, changes="start")
  stop_at: float = types.setting(
    math.inf, changes="start", low=-types.MAX_VALUE, high=math.inf
  )
  quiet: bool = types.setting(False, changes="start")
  log_every: float = types.setting(
    10.0, changes="start", low=0.0, high=types.MAX_SECONDS
  )
  sink: str = types.setting("", changes="start")
  profile: float = types.setting(
    0.0, changes="start", low=0.0, high=types.MAX_SECONDS
  )

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be."""
    types.check_settings(self)
    for name in ("run_dir", "resume"):
      if "\0" in os.fspath(getattr(self, name)):
        raise types.ConfigError(
          f"expected {name} without a NUL character, found"
          f" {getattr(self, name)!r}"
        )


@dataclasses.dataclass(frozen=True)
class Run:
  """What a run left.

  Attributes:
    run_dir: with `config.json`, `metrics.jsonl`, `checkpoints/`, TensorBoard
      events and `learning_curve.png`; of host 0 alone, if there are several.
    metrics: the last line of metrics.
    evaluation: what the last evaluation found, in words; empty for none.
    restarts: processes that died and were started again.
    status: exit status of a program that does nothing else; 0, or that of the
      signal that ended it, see `signals`.
    host: index of this learner host.
  """

  run_dir: pathlib.Path
  metrics: Mapping[str, metrics.Value]
  evaluation: str = ""
  restarts: int = 0
  status: int = 0
  host: int = 0

  @property
  def interrupted(self) -> bool:
    """Whether Ctrl-C or another signal ended it."""
    return bool(self.status)

  @property
  def lines(self) -> list[dict[str, Any]]:
    """All lines of metrics."""
    return metrics.read_lines(self.run_dir / run_dirs.METRICS)


def train(
  config: process.Config,
  *,
  sinks: Sequence[metrics.Sink] = (),
  return_interrupted: bool = False,
  **options: Any,
) -> Run:
  """Trains what a pipeline's config says, with its processes on this machine.

  Ctrl-C, SIGTERM and SIGHUP end it early, with everything written.

  Args:
    config: such as `seed.Config(agent=vtrace.Config())`.
    sinks: more of them for the lines of metrics, such as a logger of yours.
    return_interrupted: return a run that a signal ended, as any other. By
      default the signal ends the script, too, which would else go on to its
      next run.
    **options: fields of `Config`.

  Returns:
    What it left.

  Raises:
    types.ConfigError: it cannot be run so.
    KeyboardInterrupt: Ctrl-C ended it; everything is written.
    SystemExit: another signal did, with the status that a shell gives it.
    Exception: whatever a thread of the run failed with.
  """
  files = Config(**options)
  if files.resume:
    before = run_dirs.config(files.resume)
    run_dirs.check_experiment(before, None, files.resume)
    own = run_dirs.record(config, config, None)
    run_dirs.check_classes(before, own, files.resume)
    run_dirs.check_resumed(before, config, files.run_dir)
  ended = run(config, files, sinks=sinks)
  if ended.status and not return_interrupted:
    if ended.status == signals.status(signal.SIGINT):
      raise KeyboardInterrupt
    raise SystemExit(ended.status)
  return ended


def run(
  config: process.Config,
  files: Config,
  *,
  asked: Any = None,
  experiment: str | None = None,
  presets: Sequence[str] = (),
  alone: bool = False,
  sinks: Sequence[metrics.Sink] = (),
) -> Run:
  """Trains what a pipeline's config says; see `train`.

  Args:
    config: of the pipeline.
    files: where it goes.
    asked: the config that `config.json` is to show; `config` if None.
    experiment: the name of the program that trains, if one does.
    presets: lines that name what presets have changed.
    alone: whether the pipeline's other processes are started by others.
    sinks: more of them for the lines of metrics.
  """
  _check_pipeline(config)
  asked = asked or config
  record = run_dirs.record(config, asked, experiment)
  alike = run_dirs.of_all_hosts(asked)
  work = _Work(config, files, record, alike, presets, alone, sinks)
  stop = threading.Event()
  with (
    files_lib.tentative(),
    signals.stopping(stop, experiment is not None) as ending,
  ):
    launching = getattr(config, "launching", launch_config.Config())
    if launching.learner_on_cluster and not alone:
      return _on_cluster(work, stop, ending)
    return _run(work, stop, ending)


@dataclasses.dataclass(frozen=True)
class _Work:
  """What `run` is to do, for any machine; see there."""

  config: process.Config
  files: Config
  record: run_dirs.Config
  of_all_hosts: Mapping[str, Any]
  presets: Sequence[str]
  alone: bool
  sinks: Sequence[metrics.Sink]


def _on_cluster(
  work: _Work, stop: threading.Event, ending: signals.Ending
) -> Run:
  """Trains on a machine of a cluster, and on another where that dies."""
  config: Any = work.config  # It has a server, see `process.ServerConfig`.
  launching, address = config.launching, config.address
  if _among(config).hosts > 1:
    raise types.ConfigError(
      "expected one learner host with learner_on_cluster, found"
      f" {_among(config).hosts}"
    )
  if address and not address.startswith(("0.0.0.0:", "[::]:")):
    raise types.ConfigError(
      "expected no address with learner_on_cluster, or all of its machine's,"
      f" 0.0.0.0:PORT, since it may move; found {address}"
    )
  resumes = bool(work.files.resume)
  with _open(work.files, work.record) as run_dir:
    pass  # Nobody trains in it.
  there = functools.partial(_run_there, work)
  return elsewhere.run(there, launching, run_dir, resumes, stop, ending)


def _run_there(
  work: _Work,
  run_dir: pathlib.Path,
  resumes: bool,
  stop: threading.Event,
  ending: signals.Ending,
) -> Run:
  """Trains on this machine of a cluster; see `elsewhere.run`."""
  files = dataclasses.replace(
    work.files,
    run_dir="" if resumes else str(run_dir),
    resume=str(run_dir) if resumes else "",
  )
  return _run(dataclasses.replace(work, files=files), stop, ending)


def _run(work: _Work, stop: threading.Event, ending: signals.Ending) -> Run:
  """Trains here, with other learner hosts if there are some; see `run`."""
  with hosts.joined(_among(work.config), stop, ending) as found:
    context = process.Context(stop, found)
    if found.count > 1:
      hosts.check_same(work.of_all_hosts)
    leaves = ending.in_main and found.count == 1
    watch = hangs.Watch(ending, work.config.hang_seconds, leaves)
    train_here = _help if found.index else _lead
    try:
      run = train_here(work, context, ending, watch)
    finally:
      watch.close()
  return dataclasses.replace(
    run, status=run.status or found.status, host=found.index
  )


def _among(config: process.Config) -> hosts_lib.Config:
  """The learner hosts of a run; pipelines without a learner have one."""
  learner = getattr(config, "learner", None)
  return learner if isinstance(learner, hosts_lib.Config) else _ALONE


def _help(
  work: _Work,
  context: process.Context,
  ending: signals.Ending,
  watch: hangs.Watch,
) -> Run:
  """Trains on a host that has no directory; see `run`."""
  config, files, record = work.config, work.files, work.record
  with (
    devices.explaining_memory(),
    _sockets(config, work.alone, watch) as sockets,
  ):
    config, nodes, processes = _launched(config, sockets)
    try:
      own = config.learn(context)
      if own.server is not None:
        _roles(config, record, nodes, own.addresses).bind(own.server)
      _take_over(own, context.hosts)
      last = running.run(
        own, context, (), config.log_seconds, processes.check, watch
      )
    finally:
      processes.stop()
  return Run(
    pathlib.Path(files.resume or files.run_dir),
    last,
    restarts=processes.restarts,
    status=ending.status,
  )


def _take_over(own: process.Process, among: hosts_lib.Hosts) -> None:
  """Has all hosts go on from the state of host 0, which may be restored."""
  if among.count == 1:
    return
  found = hosts.broadcast(
    b"" if among.index else checkpoint.to_bytes(own.saved())
  )
  if among.index:
    arrays = checkpoint.from_bytes(np.frombuffer(found, np.uint8))
    own.restore(
      lambda shapes: checkpoint.like(arrays, shapes, "the state of host 0")
    )


def _lead(
  work: _Work,
  context: process.Context,
  ending: signals.Ending,
  watch: hangs.Watch,
) -> Run:
  """Trains on the host that has the run's directory; see `run`."""
  config, files, record = work.config, work.files, work.record
  with (
    devices.explaining_memory(),
    _open(files, record) as run_dir,
    _sockets(config, work.alone, watch) as sockets,
  ):
    own_sinks = [*_named(files, config, run_dir), *work.sinks]
    # Their imports take as long as what follows, on other cores.
    config, nodes, processes = _launched(config, sockets)
    watch.leaving.append(processes.stop)
    try:
      if not files.quiet:
        _introduce(record.name, config.env.env, work.presets, run_dir)
        _introduce_network(config)
      evaluation = evaluations.of(config, files, run_dir)
      own = config.learn(context)
      if own.replay is not None and context.hosts.count > 1:
        own = dataclasses.replace(own, replay=None)
        print(_NO_REPLAYS, file=sys.stderr)
      if own.server is not None:
        _roles(config, record, nodes, own.addresses).bind(own.server)
      kept = checkpointer.Checkpointer(own, run_dir, files, evaluation)
      rare = [x for x in (kept, evaluation) if x is not None]
      own = dataclasses.replace(own, measures=[*own.measures, *rare])
      if files.resume:
        kept.restore()
        _check_total(config, record, files, own.acted.env_steps)
      _take_over(own, context.hosts)
      run_dirs.write(run_dir, record)

      def check() -> None:
        processes.check()
        kept.check()
        if _is_solved(own.acted, evaluation, files.stop_at):
          context.stop.set()

      sinks = _sinks(config, files, run_dir, work.alone, own_sinks)
      # Their ends may take long, so the last checkpoint comes before them.
      with watch.closing(sinks), _rescued(kept, context.hosts, watch):
        last = running.run(
          own, context, sinks, config.log_seconds, check, watch
        )
        kept.finish(bool(ending.status or context.hosts.status))
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


@contextlib.contextmanager
def _rescued(
  kept: checkpointer.Checkpointer, among: hosts_lib.Hosts, watch: hangs.Watch
) -> Iterator[None]:
  """Saves the newest state of a run that ends badly."""

  def rescue(has_ended: bool = False) -> None:
    if words := kept.rescue(has_ended):
      signals.say(f"{words}\n")

  watch.kept, among.rescue = kept, rescue
  try:
    yield
  except BaseException as error:
    rescue(has_ended=not isinstance(error, TimeoutError))
    raise


def _introduce(
  name: str, env: str, presets: Sequence[str], run_dir: pathlib.Path
) -> None:
  """Prints what trains, on what, where it goes, and what presets changed."""
  words = [f"{name} on {env}", devices.described()]
  with contextlib.suppress(OSError):  # It may be a file on a full disk.
    # Not wrapped: it may be copied.
    print(*words, run_dir, sep=" | ", file=sys.stderr, flush=True)
    for line in presets:
      print(line, file=sys.stderr, flush=True)
    if unused := devices.unused():
      print(unused, file=sys.stderr, flush=True)


def _introduce_network(config: process.Config) -> None:
  """Prints in one line which network is trained."""
  words = described.network(config.agent, config.env)
  with contextlib.suppress(OSError):  # It may be a file on a full disk.
    print(words, file=sys.stderr, flush=True)


def _is_solved(
  acted: counters.Acted,
  evaluation: evaluations.Periodic | None,
  stop_at: float,
) -> bool:
  """Whether the mean return of enough episodes has reached what was asked."""
  if evaluation is not None:
    mean = evaluation.mean
  else:
    mean = acted.score() if acted.returns.is_full else None
  return mean is not None and mean >= stop_at


@contextlib.contextmanager
def _sockets(
  config: process.Config, alone: bool, watch: hangs.Watch
) -> Iterator[str]:
  """A folder for the sockets of processes here; empty where none is needed."""
  if alone or not isinstance(config, process.ServerConfig):
    yield ""
    return
  folder = tempfile.TemporaryDirectory(prefix="seedx-")
  watch.leaving.append(folder.cleanup)
  with folder as path:
    yield path


def _launched(
  config: Any, sockets: str
) -> tuple[Any, list[nodes_lib.Node], instances.Instances]:
  """Starts the processes of a run beside this one.

  Args:
    config: of the pipeline.
    sockets: a folder for them; empty if others start the processes.

  Returns:
    The config with the addresses that they have, the nodes, and the processes.
  """
  if not sockets:
    return config, config.nodes(), instances.Processes([])
  if config.launching.launcher == "processes":
    config = config.with_sockets(sockets)
    address = wire.reached(config.address)
    config.security.of_client(address)
    nodes = dataclasses.replace(config, address=address).nodes()
    return config, nodes, instances.Processes(nodes, sockets)
  cluster = ray_cluster.Cluster(config.launching)
  try:
    address = config.address or cluster.free_address()
    config = dataclasses.replace(config, address=address)
    # Before anything is started on other machines.
    config.security.of_server(address)
    reached = cluster.reached(address)
    nodes = dataclasses.replace(config, address=reached).nodes()
    code = envs.code_in(configs.in_json(config))
    there = ray_cluster.on_cluster(nodes, reached, config.security, code)
    return config, nodes, ray_cluster.Tasks(there, config.launching, cluster)
  except BaseException:
    cluster.leave()
    raise


def _roles(
  config: process.Config,
  record: run_dirs.Config,
  nodes: Sequence[nodes_lib.Node],
  addresses: Mapping[str, admission.Addresses],
) -> admission.Roles:
  """What processes that join a run are told."""
  names = {*configs.settings(config), "agent"}
  options = {k: v for k, v in record.options.items() if k in names}
  return admission.Roles(nodes, record.experiment or "", options, addresses)


def _check_pipeline(config: process.Config) -> None:
  """Raises types.ConfigError for a config of something else."""
  if not isinstance(config, process.Config):
    raise types.ConfigError(
      "expected a pipeline's config, see runtime.process.Config; found"
      f" {type(config).__qualname__} of {type(config).__module__}"
    )


def _named(
  files: Config, config: process.Config, run_dir: pathlib.Path
) -> list[metrics.Sink]:
  """The sink that the command line names, if it names one.

  Raises:
    types.ConfigError: it cannot be made.
  """
  if not files.sink:
    return []
  make = envs.load_function(files.sink, "a sink factory")
  try:
    return [make(run_dir, configs.in_json(config))]
  except Exception as error:  # A user's function may raise anything.
    raise types.ConfigError(
      f"--sink {files.sink} raises {envs.in_one_line(error)}"
    ) from error


def _sinks(
  config: process.Config,
  files: Config,
  run_dir: pathlib.Path,
  alone: bool,
  own: Sequence[metrics.Sink],
) -> Sequence[metrics.Sink]:
  """Where the lines of metrics go; one that fails does not end the run."""
  from seedx.metrics import events  # It loads tensorboardX.

  sinks = [
    metrics.Background(
      run_dirs.METRICS, metrics.JsonLines(run_dir / run_dirs.METRICS)
    ),
    metrics.Background("TensorBoard's events", events.TensorBoard(run_dir)),
    *(
      metrics.Background(type(x).__qualname__, x, _LOGGER_SECONDS) for x in own
    ),
  ]
  if files.profile:
    trace = profiling.Trace(run_dir, files.profile)
    sinks.append(metrics.Background("the profile", trace, _LOGGER_SECONDS))
  if not files.quiet:
    console = metrics.Console(
      config.total_steps, interval_seconds=files.log_every, alone=alone
    )
    sinks.append(metrics.Background("the progress", console))
  return sinks


def _draw(env: str, name: str, run_dir: pathlib.Path) -> None:
  """Draws the learning curve, or says why it cannot."""
  try:
    lines = metrics.read_lines(run_dir / run_dirs.METRICS)
    plot.draw({env: {name: [lines]}}, run_dir / run_dirs.CURVE)
  except (OSError, types.ConfigError) as error:
    print(f"there is no learning_curve.png: {error}", file=sys.stderr)


@contextlib.contextmanager
def _open(files: Config, record: run_dirs.Config) -> Iterator[pathlib.Path]:
  """The directory of the run, which no other process uses meanwhile."""
  asked = os.path.expanduser(files.resume or files.run_dir)
  if asked:
    if not files.resume and os.path.isdir(asked):
      # Before anything is written in there.
      with run_dirs.claimed(asked):
        _check_free(asked)
    run_dir = pathlib.Path(files_lib.open_folder(asked))
  else:
    run_dir = run_dirs.new("", record.name)
  with run_dirs.claimed(run_dir):
    if not files.resume:
      _check_free(run_dir)  # Another run may just have ended.
    try:
      yield run_dir
    except types.ConfigError:
      folder = files_lib.Folder(run_dir)
      if not files.resume and not folder.has(run_dirs.METRICS):
        folder.remove(run_dirs.CONFIG)  # It has not begun.
      raise


def _check_free(run_dir: str | os.PathLike[str]) -> None:
  """Checks that a directory has nothing of what a new run writes.

  Raises:
    types.ConfigError: it has.
  """
  folder = files_lib.Folder(run_dir)
  if folder.has(run_dirs.CONFIG):
    saved = checkpoint.Checkpoints(checkpointer.directory(run_dir)).steps()
    # There may be none, of a run that has failed early.
    way = "go on with it by --resume" if saved else "remove it"
    raise types.ConfigError(
      f"expected a --run-dir without a run, found one in {str(run_dir)!r};"
      f" {way}, or choose another"
    )
  files_lib.check_free(run_dir, {*run_dirs.FILES, checkpointer.DIRECTORY})


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
