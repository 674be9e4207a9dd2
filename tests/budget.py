"""A pytest plugin that limits the CPU seconds of tests.

`conftest.py` registers it. The CPU seconds of a test include those of the child
processes that it has waited for. CPU seconds are measured in units of a
calibration loop of the same run, so that the speed and the load of the machine
do not matter.
"""

import collections
import fcntl
import fnmatch
import gc
import inspect
import pathlib
import resource
import statistics
import time

import pytest

# Maximum CPU seconds of each test in a set; the other sets have no limit.
LIMITS = {"fast": 5.0, "slow": 60.0}
# A run fails only above this multiple of a limit: on a shared machine, the same
# test takes up to a third more than in the run before.
_NOISE = 1.5
# Tests with other limits: maximum CPU seconds, and the reason.
_FIRST = "compiles the programs that the tests of its file share"
DEAR = {
  "tests/pipelines/anakin_test.py::*": (10.0, _FIRST),
  "tests/pipelines/apex_test.py::*": (10.0, _FIRST),
  "tests/app/app_test.py::test_any_pipeline_trains_*": (10.0, _FIRST),
  "tests/app/export_test.py::*": (10.0, _FIRST),
  "tests/pipelines/pipelines_test.py::*": (10.0, _FIRST),
  "tests/pipelines/resume_test.py::*": (10.0, _FIRST),
  "tests/envs/own_envs_test.py::test_a_worker_survives_signals_*": (
    10.0,
    "the last test of its file, whose forked workers end with it",
  ),
}
SETS = ("slow", "long", "alone")
# Bound here, since tests may replace `time.monotonic`.
_now = time.monotonic
# CPU seconds of `_calibration_loop` on the machine on which limits were set.
_UNIT_SECONDS = 0.018
_CALIBRATE_EVERY_SECONDS = 30.0
_DEAREST = 10
# Memory above which compiled programs are dropped between files.
_MEMORY_BYTES = 1.2 * 2**30


class Meter:
  """A meter of the tests that run in this process."""

  def __init__(self, config, cache):
    self._config, self._cache = config, cache
    self._start = cpu_seconds()
    self._loops, self._calibrated = [], 0.0
    self._events = collections.Counter()

  def pytest_collection_finish(self):
    """Starts to listen to JAX's events."""
    import jax

    if hasattr(self._config, "workerinput"):
      # Imported here, so that no test pays for the import.
      from seedx.envs import families

      families.envpool()
    jax.monitoring.register_event_listener(self._listen)
    _share_compilations(self._cache, self._events)
    # Frequent garbage collections are useless: tracing makes few cycles, and
    # imported modules are never freed.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    self._start = cpu_seconds()

  def _listen(self, event, **_):
    name = event.removeprefix("/jax/compilation_cache/cache_")
    if name in ("hits", "misses"):
      self._events[name] += 1

  @pytest.hookimpl(wrapper=True)
  def pytest_runtest_makereport(self, item, call):
    """Adds the CPU seconds of a test's phase to its report."""
    report = yield
    now = cpu_seconds()
    if _now() - self._calibrated > _CALIBRATE_EVERY_SECONDS:
      self._loops.append(_calibration_loop())
      self._calibrated = _now()
    unit = statistics.median(self._loops) / _UNIT_SECONDS
    report.cpu_seconds, report.unit = now - self._start, unit
    self._start = cpu_seconds()
    return report

  def pytest_runtest_teardown(self, item, nextitem):
    """Drops compiled programs between files if memory has grown."""
    if nextitem is None or nextitem.path != item.path:
      pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
      if pages * resource.getpagesize() > _MEMORY_BYTES:
        _free_memory()

  @pytest.hookimpl(trylast=True)
  def pytest_sessionfinish(self):
    """Sends the sums of this process to the process that prints them."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    self.output = {
      "cpu_seconds": cpu_seconds(),
      "peak_bytes": peak,
      **{name: self._events[name] for name in ("hits", "misses")},
    }
    if hasattr(self._config, "workeroutput"):
      self._config.workeroutput["budget"] = self.output


class Budget:
  """The CPU seconds of the tests of all processes, and their limits."""

  def __init__(self, meter, limited):
    """Makes a budget.

    Args:
      meter: meter of this process if it runs the tests itself; None otherwise.
      limited: whether tests above their limits are reported and, if they are
        far above, fail the run.
    """
    self._meter, self._limited, self._outputs = meter, limited, []
    self._seconds = collections.Counter()
    self._sets = {}

  @pytest.hookimpl(optionalhook=True)
  def pytest_testnodedown(self, node):
    """Receives the sums of a worker process."""
    self._outputs.append(getattr(node, "workeroutput", {}).get("budget", {}))

  def pytest_runtest_logreport(self, report):
    """Adds the CPU seconds of a test's phase."""
    seconds = getattr(report, "cpu_seconds", 0.0)
    self._seconds[report.nodeid] += seconds / getattr(report, "unit", 1.0)
    marks = [name for name in SETS if name in report.keywords]
    self._sets[report.nodeid] = marks[-1] if marks else "fast"

  @pytest.hookimpl(tryfirst=True)
  def pytest_sessionfinish(self, session):
    """Makes a passed run fail if a test exceeded its limit by far."""
    if session.exitstatus == 0 and self._fails():
      session.exitstatus = pytest.ExitCode.TESTS_FAILED

  def pytest_terminal_summary(self, terminalreporter):
    """Prints the most expensive tests and the sums."""
    if self._meter is not None:
      self._outputs.append(self._meter.output)
    write = terminalreporter.write_line
    terminalreporter.section("CPU seconds")
    for nodeid, seconds in self._seconds.most_common(_DEAREST):
      write(f"{seconds:7.1f} {nodeid}")
    for name in ("fast", *SETS):
      ids = [x for x in self._seconds if self._sets[x] == name]
      total = sum(self._seconds[x] for x in ids)
      if ids:
        write(f"{total:7.1f} {name}: {len(ids)} tests")
    sums = collections.Counter()
    for output in self._outputs:
      sums.update(output)
    peak = max((x.get("peak_bytes", 0) for x in self._outputs), default=0)
    compiled = sums["hits"] + sums["misses"]
    write(
      f"{sums['cpu_seconds']:7.1f} all processes, not calibrated; "
      f"largest peak {peak / 2**30:.2f} GiB; {sums['hits']} of {compiled} "
      f"programs ({sums['hits'] / max(compiled, 1):.0%}) from JAX's cache"
    )
    for nodeid, (seconds, limit) in self._too_dear().items():
      write(
        f"TOO DEAR: {nodeid} took {seconds:.1f} CPU seconds, limit {limit}; "
        "make it cheaper, move it to another set, or give a reason in "
        "tests/budget.py",
        red=True,
      )

  def _too_dear(self):
    if not self._limited:
      return {}
    limits = {
      nodeid: max(
        [LIMITS.get(self._sets[nodeid], float("inf"))]
        + [x for p, (x, _) in DEAR.items() if fnmatch.fnmatch(nodeid, p)]
      )
      for nodeid in self._seconds
    }
    return {
      nodeid: (seconds, limits[nodeid])
      for nodeid, seconds in self._seconds.items()
      if seconds > limits[nodeid]
    }

  def _fails(self):
    return any(
      seconds > _NOISE * limit for seconds, limit in self._too_dear().values()
    )


def cpu_seconds():
  """Returns the CPU seconds of this process and its waited-for children."""
  usages = map(
    resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
  )
  return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def register(config, cache, limited):
  """Registers the plugin; `cache` is the folder of JAX's persistent cache."""
  if hasattr(config, "workerinput"):
    config.pluginmanager.register(Meter(config, cache))
    return
  alone = not getattr(config.option, "numprocesses", None)
  meter = Meter(config, cache) if alone else None
  if alone:
    config.pluginmanager.register(meter)
  config.pluginmanager.register(Budget(meter, limited))


def _calibration_loop():
  start = time.thread_time()
  names = {}
  for k in range(100_000):
    names[str(k % 1000)] = (k, len(names))
  return time.thread_time() - start


def _free_memory():
  import ctypes

  import jax

  jax.clear_caches()
  gc.collect()
  ctypes.CDLL(None).malloc_trim(0)


def _share_compilations(folder, events):
  """Makes a process wait for another one that compiles the same program.

  JAX's persistent cache has no lock: two processes that miss a program both
  compile it. This function wraps private functions of JAX 0.10 to 0.12. If JAX
  lacks these, programs are compiled twice.
  """
  from jax._src import compiler

  write = getattr(compiler, "_compile_and_write_cache", None)
  read = getattr(compiler, "_cache_read", None)
  if write is None or read is None:
    return
  folder.mkdir(parents=True, exist_ok=True)
  num_arguments = len(inspect.signature(read).parameters)

  def compile_once(
    backend, computation, devices, options, callbacks, module_name, key
  ):
    path = folder / f"lock-{int.from_bytes(key[-8:].encode()) % 64}"
    with path.open("w") as file:
      fcntl.flock(file, fcntl.LOCK_EX)
      # `read` takes the callbacks only in JAX 0.12.
      arguments = (module_name, key, options, backend, devices, callbacks)
      program, _ = read(*arguments[:num_arguments])
      if program is not None:
        events.update(hits=1)  # JAX does not count this hit.
        return program
      return write(
        backend, computation, devices, options, callbacks, module_name, key
      )

  compiler._compile_and_write_cache = compile_once
