"""The sinks of a run's metrics, and its learning curve."""

import pathlib
from collections.abc import Sequence

from seedx import envs, metrics, signals, types
from seedx.app import directory, plot, profiling
from seedx.app.runs import evaluations, records, run_folders
from seedx.app.settings import configs
from seedx.runtime import process

# A user's logger may have to send its last lines to a server.
_LOGGER_SECONDS = 60.0


def loggers(
  files: directory.Config, config: process.Config, run_dir: pathlib.Path
) -> list[metrics.Sink]:
  """Makes the sink of `--sink`; raises types.ConfigError if that fails."""
  if not files.sink:
    return []
  make = envs.load_function(files.sink, "a sink factory")
  try:
    return [make(run_dir, configs.in_json(config))]
  except Exception as error:  # A user's function may raise anything.
    raise types.ConfigError(
      f"--sink {files.sink} raises {envs.in_one_line(error)}"
    ) from error


def make(
  config: process.Config,
  files: directory.Config,
  run_dir: pathlib.Path,
  record: records.Record,
  evaluation: evaluations.Periodic | None,
  loggers: Sequence[metrics.Sink],
  others_join: bool,
) -> Sequence[metrics.Background]:
  """Makes the sinks of metrics; a failing sink does not end the run."""
  sinks = [
    metrics.Background(
      run_folders.METRICS, metrics.JsonLines(run_dir / run_folders.METRICS)
    ),
    metrics.Background(
      "TensorBoard's events", _tensorboard(run_dir, record, evaluation)
    ),
    *(
      metrics.Background(type(x).__qualname__, x, _LOGGER_SECONDS)
      for x in loggers
    ),
  ]
  if files.profile:
    trace = profiling.Trace(run_dir, files.profile)
    sinks.append(metrics.Background("the profile", trace, _LOGGER_SECONDS))
  if not files.quiet:
    console = metrics.Console(
      config.total_steps,
      interval_seconds=files.log_every,
      others_join=others_join,
    )
    sinks.append(metrics.Background("the progress", console))
  return sinks


def _tensorboard(
  run_dir: pathlib.Path,
  record: records.Record,
  evaluation: evaluations.Periodic | None,
) -> metrics.Sink:
  from seedx.metrics import events  # It loads tensorboardX.

  settings = {
    name: value
    for name, value in record.options.items()
    if name in ("env", "seed") or name not in record.unlabelled
  }
  settings["experiment"] = record.name
  videos = evaluation.videos if evaluation else None
  return events.TensorBoard(run_dir, settings, videos)


def draw(
  env: str, name: str, run_dir: pathlib.Path, config: evaluations.Config
) -> bool:
  """Draws the learning curve, or prints why it cannot and returns False."""
  try:
    lines = metrics.read_lines(run_dir / run_folders.METRICS)
    is_offline = bool(lines) and metrics.unit(lines[0]) == "updates"
    is_other = is_offline or bool(config.evaluate_env_options)
    metric = "evaluation_return" if is_other else "episode_return"
    plot.draw({env: {name: [lines]}}, run_dir / run_folders.CURVE, metric)
  except (OSError, types.ConfigError) as error:
    signals.print_at_once(f"cannot draw learning_curve.png: {error}\n")
    return False
  return True
