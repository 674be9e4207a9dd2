"""A trace of a part of a run, which shows where its time goes."""

import os
import time

import jax

from seedx import files, metrics


class Trace:
  """A sink that starts a trace at the second line of metrics with updates.

  JAX's profiler writes to `RUN_DIR/profile/plugins/profile/TIME/`. XProf opens
  `RUN_DIR/profile` (`pip install xprof`, `xprof RUN_DIR/profile`); Perfetto
  opens the file `*.trace.json.gz` there. Host threads have spans with these
  names: `receive` checks and counts messages, `act` starts an inference step,
  `reply` waits for the actions and hands them out, `collect` copies finished
  unrolls, `learn` starts an update and waits for the previous one.
  """

  def __init__(self, run_dir: str | os.PathLike[str], seconds: float) -> None:
    """Makes a sink, which records nothing yet.

    Args:
      run_dir: directory of the run; the trace goes to `profile` in it, or, if
        that exists, to `profile-2` and so on.
      seconds: seconds to record; the next line of metrics then ends the trace.
    """
    self._run_dir = run_dir
    self._seconds = seconds
    self._lines = 0
    self._ends: float | None = None

  def write(self, line: metrics.Line) -> None:
    """Starts or ends the trace if that is due."""
    if not line.get("learner_steps"):
      return
    self._lines += 1
    if self._lines == 2:
      options = jax.profiler.ProfileOptions()
      options.python_tracer_level = 0  # The tracer would slow all threads.
      directory = files.open_new_folder(self._run_dir, "profile")
      jax.profiler.start_trace(str(directory), profiler_options=options)
      self._ends = time.monotonic() + self._seconds
    elif self._ends is not None and time.monotonic() >= self._ends:
      self.close()

  def close(self) -> None:
    """Ends the trace and writes it."""
    if self._ends is not None:
      self._ends = None
      jax.profiler.stop_trace()
