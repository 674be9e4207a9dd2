"""Programs of `experiments`, run in the process of a test."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import jax
import pytest

ROOT = pathlib.Path(__file__).parent.parent
# Of processes that a module starts; see `compiled_quickly`.
_ENVIRONMENT = {}


@contextlib.contextmanager
def signals_kept():
  """A program takes Ctrl-C over; the next test needs it back."""
  handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield
  finally:
    for number, handler in handlers.items():
      signal.signal(number, handler)


@pytest.fixture(autouse=True)
def own_signals():
  """Each test has its own."""
  with signals_kept():
    yield


@pytest.fixture(scope="module", autouse=True)
def compiled_quickly():
  """Leaves most optimizations out: what these tests run is short."""
  name = "jax_disable_most_optimizations"
  before = jax.config.values[name]
  jax.config.update(name, True)
  _ENVIRONMENT[name.upper()] = "True"
  yield
  del _ENVIRONMENT[name.upper()]
  jax.config.update(name, before)


def start(program, *words):
  """Runs a program in a process of its own."""
  return subprocess.Popen(
    [sys.executable, "-m", program.__name__, *words],
    cwd=ROOT,
    env={**os.environ, **_ENVIRONMENT},
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )


def refused(program, words, capfd):
  """What a program says that exits with status 2: one line, on stderr."""
  capfd.readouterr()
  with pytest.raises(SystemExit) as caught:
    program.main(list(words))
  assert caught.value.code == 2
  out, err = capfd.readouterr()
  assert "Traceback" not in out + err
  lines = [line for line in err.splitlines() if line.startswith("error: ")]
  assert len(lines) == 1 and err.endswith(lines[0] + "\n")
  return lines[0]
