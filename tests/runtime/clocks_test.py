"""The clock of a run, and the time in which JAX compiles."""

import time
import types as types_lib

import jax
import numpy as np
import pytest

from seedx.runtime import clocks

TRACE = "/jax/core/compile/jaxpr_trace_duration"
LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
COMPILE = "/jax/core/compile/backend_compile_duration"


@pytest.mark.parametrize(
  ("events", "seconds"),
  [
    # Ends and durations of events, in the order in which they end.
    ([(2, TRACE, 1), (4, LOWER, 2), (9, COMPILE, 4)], 7),
    # One trace within another, and a compilation within both.
    ([(2, TRACE, 1), (4, COMPILE, 1), (5, TRACE, 4), (6, TRACE, 5.5)], 5.5),
    # Two threads.
    ([(10, COMPILE, 4), (12, COMPILE, 5), (20, COMPILE, 1)], 7),
    # The cache's events are within those of compilations.
    ([(9, "/jax/compilation_cache/cache_retrieval_time_sec", 3)], 0),
  ],
)
def test_time_in_which_several_threads_or_functions_compile_counts_once(
  events, seconds, monkeypatch
):
  now = [0.0]
  fake = types_lib.SimpleNamespace(monotonic=lambda: now[0])
  monkeypatch.setattr(clocks, "time", fake)
  compiling = clocks.Compiling()
  for now[0], event, duration_seconds in events:
    compiling.add(event, duration_seconds, fun_name="act")
  assert compiling.seconds == pytest.approx(seconds)


def test_a_new_program_counts_and_its_second_call_does_not():
  clock = clocks.WallClock()
  assert clock.measure()["compile_seconds"] == 0
  doubled = jax.jit(lambda x: 2 * x)
  doubled(np.ones(3))
  line = clock.measure()
  assert 0 < line["compile_seconds"] <= line["wall_seconds"]
  doubled(np.ones(3))
  assert clock.measure()["compile_seconds"] == line["compile_seconds"]
  # Another run of this process counts its own programs.
  assert clocks.WallClock().measure()["compile_seconds"] == 0


def test_a_clock_counts_from_the_given_start_and_adds_earlier_starts():
  clock = clocks.WallClock(time.monotonic() - 1000)
  clock.past_seconds = 500.0
  assert 1500 <= clock.wall_seconds < 1600
  clock.restart()
  assert 500 <= clock.wall_seconds < 600
