"""Traces of runs: the spans in them, and when they start and end."""

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
  """Returns the names of all events in a folder's trace."""
  (path,) = folder.glob("plugins/profile/*/*.trace.json.gz")
  events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
  return {event.get("name") for event in events}


@pytest.mark.slow
def test_a_trace_has_spans_of_inference_and_of_learning(tmp_path):
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
  """A fake of JAX's profiler, which records its calls."""

  def __init__(self, monkeypatch):
    self.calls = []
    monkeypatch.setattr(
      jax.profiler, "start_trace", lambda *_, **__: self.calls.append("start")
    )
    monkeypatch.setattr(
      jax.profiler, "stop_trace", lambda: self.calls.append("stop")
    )


def test_a_trace_starts_after_an_update_and_lasts_for_its_seconds(monkeypatch):
  profiler, now = Profiler(monkeypatch), [0.0]
  clock = python_types.SimpleNamespace(monotonic=lambda: now[0])
  monkeypatch.setattr(profiling, "time", clock)
  trace = profiling.Trace("unused", seconds=2.0)

  def line(updates):
    now[0] += 1.0
    trace.write({"learner_steps": updates})
    return profiler.calls.copy()

  assert line(0) == line(0) == line(1) == []
  assert line(5) == line(6) == ["start"]
  assert line(7) == line(8) == line(9) == ["start", "stop"]
  trace.close()
  assert profiler.calls == ["start", "stop"]
  # A trace ends with its run; one that has not begun does not end.
  trace = profiling.Trace("unused", seconds=100.0)
  trace.close()
  assert line(1) == ["start", "stop"]
  assert line(2) == ["start", "stop", "start"]
  trace.close()
  trace.close()
  assert profiler.calls == ["start", "stop"] * 2
