"""The trace of a part of a run: what it has, and when it is written."""

import gzip
import json
import types as python_types

import jax
import pytest

from seedx import app, envs
from seedx.agents import vtrace
from seedx.app import profiling
from seedx.learning import learner
from seedx.pipelines import seed


def spans(folder):
  """The names of what threads of this machine did."""
  (path,) = folder.glob("plugins/profile/*/*.trace.json.gz")
  events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
  return {event.get("name") for event in events}


@pytest.mark.slow
def test_a_trace_names_what_threads_do(tmp_path):
  config = seed.Config(
    total_steps=20_000,
    log_seconds=0.05,
    env=envs.Config("CartPole-v1"),
    agent=vtrace.Config(hidden_sizes=(8,)),
    learner=learner.InboxConfig(unroll_length=5, batch_size=8),
  )
  app.train(config, run_dir=tmp_path, quiet=True, profile=0.2)
  names = spans(tmp_path / "profile")
  assert {"receive", "act", "reply", "collect", "learn"} <= names


class Profiler:
  """Stands for JAX's: writes down what it is told."""

  def __init__(self, monkeypatch):
    self.told = []
    monkeypatch.setattr(
      jax.profiler, "start_trace", lambda *_, **__: self.told.append("start")
    )
    monkeypatch.setattr(
      jax.profiler, "stop_trace", lambda: self.told.append("stop")
    )


def test_a_trace_begins_once_it_learns_and_ends_in_time(monkeypatch):
  profiler, now = Profiler(monkeypatch), [0.0]
  clock = python_types.SimpleNamespace(monotonic=lambda: now[0])
  monkeypatch.setattr(profiling, "time", clock)
  trace = profiling.Trace("unused", seconds=2.0)

  def line(updates):
    now[0] += 1.0
    trace.write({"learner_steps": updates})
    return profiler.told

  assert line(0) == line(0) == line(1) == []
  assert line(5) == line(6) == ["start"]
  assert line(7) == line(8) == line(9) == ["start", "stop"]
  trace.close()
  assert profiler.told == ["start", "stop"]


def test_a_run_that_ends_earlier_ends_its_trace(monkeypatch):
  profiler = Profiler(monkeypatch)
  trace = profiling.Trace("unused", seconds=100.0)
  for updates in (1, 2):
    trace.write({"learner_steps": updates})
  trace.close()
  trace.close()
  assert profiler.told == ["start", "stop"]
  trace = profiling.Trace("unused", seconds=100.0)
  trace.close()
  assert profiler.told == ["start", "stop"]
