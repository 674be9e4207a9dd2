"""Pipelines whose learner and nodes run on threads of the test's process."""

import collections
import contextlib
import dataclasses
import re
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import dm_env
import jax
import numpy as np

from seedx import types
from seedx.acting import protocol, sessions, unroll_messages
from seedx.agents import base
from seedx.runtime import process, running


def wait_until(condition, failed=lambda: None, seconds=300):
  """Waits until a condition holds.

  Args:
    condition: function that returns whether the condition holds.
    failed: function that raises if the condition can no longer come true.
    seconds: maximum seconds to wait, enough for a busy machine.
  """
  deadline = time.monotonic() + seconds
  while not condition():
    failed()
    assert time.monotonic() < deadline, f"still waiting after {seconds} s"
    time.sleep(0.01)


class Lines:
  """A sink that keeps its lines in a list."""

  def __init__(self):
    self.lines = []

  def write(self, line):
    self.lines.append(dict(line))

  def close(self):
    pass


class Own:
  """The learner's side of a pipeline, not started."""

  def __init__(self, config):
    self.config = config
    self.nodes = config.nodes()
    self.context = process.Context()
    self.stop = self.context.stop
    self.process = config.learn(self.context)
    self.sink = Lines()

  @property
  def acted(self):
    return self.process.acted

  @property
  def learner(self):
    """The part of the process with the agent's state."""
    return self.process.parts.get("agent")

  @property
  def learned(self):
    """Counters of what many workers have learned."""
    return self.process.parts["learned"]

  @property
  def inferences(self):
    return self._served(protocol.ACT).__self__._acting.devices

  @property
  def leases(self):
    return self._served(protocol.ACT).__self__.leases

  @property
  def unrolls(self):
    """The receiver of unrolls from unroll actors."""
    return self._served(unroll_messages.EXPERIENCE).__self__

  def _served(self, name):
    return self.process.server._methods[name].open_session

  def run(self, check=lambda: None):
    """Runs the process without its nodes; returns the last line of metrics."""
    return running.run(
      self.process, self.context, [self.sink], self.config.log_seconds, check
    )


class Running(Own):
  """A pipeline that runs within a `with` statement.

  The end of the statement raises the first failure of a thread. A test that
  spies on functions wraps them before the statement.
  """

  def __init__(self, config, actors=None):
    """Makes `actors` threads per node; None for `node.count`."""
    super().__init__(config)
    self.failures = []
    self.threads = [
      threading.Thread(target=self._act, args=(node,), daemon=True)
      for node in self.nodes
      for _ in range(node.count if actors is None else actors)
    ]

  def _act(self, node):
    try:
      node.run(node.config, self.stop)
    except BaseException as failure:
      self.failures.append(failure)

  def __enter__(self):
    for thread in self.threads:
      thread.start()
    self.main = threading.Thread(target=self._learn, daemon=True)
    self.main.start()
    return self

  def _learn(self):
    try:
      self.run()
    except BaseException as failure:
      self.failures.append(failure)

  def wait_for(self, condition):
    """Waits until a condition holds or a thread has failed."""
    wait_until(lambda: condition() or self.failures)

  def wait_for_steps(self, env_steps):
    self.wait_for(lambda: self.acted.env_steps >= env_steps)

  def __exit__(self, *exception):
    if exception[0] is not None:
      self.stop.set()
    for thread in [self.main, *self.threads]:
      thread.join(300)
      assert not thread.is_alive()
    if exception[0] is None and self.failures:
      raise self.failures[0]


@dataclasses.dataclass(frozen=True)
class Changed:
  """A config that applies a function to the agents of another config."""

  config: base.Config
  change: Callable[[base.Agent], base.Agent]

  def make(self, spec, axis_name=None, horizon=None):
    return self.change(self.config.make(spec, axis_name, horizon))


def replaced(config, **changes):
  """Returns a pipeline's config with changed fields, or fields of its parts."""
  names = {field.name for field in dataclasses.fields(config)}
  parts = collections.defaultdict(dict)
  for name in changes.keys() - names:
    (part,) = (x for x in names if hasattr(getattr(config, x), name))
    parts[part][name] = changes.pop(name)
  for part, fields in parts.items():
    old = changes.get(part, getattr(config, part))
    changes[part] = dataclasses.replace(old, **fields)
  return dataclasses.replace(config, **changes)


class Message(NamedTuple):
  """A message of an unroll actor, and the env steps counted for it."""

  session: sessions.Session
  env_steps: np.ndarray
  episode_return: np.ndarray
  unroll: types.Unroll
  priorities: types.Tree


class Spy:
  """A record of what a learner publishes, and receives from unroll actors.

  Attributes:
    sessions: sessions of all actors.
    messages: messages, in the order in which they are cut into shares.
    learned: batches learned from, each as the parts of all cores.
    published: acting parameters by version.
  """

  def __init__(self, own):
    """Wraps functions of an `Own` process that has not started."""
    self.sessions, self.messages, self.learned = [], [], []
    unrolls, learner = own.unrolls, own.learner
    acting, version = learner.newest()
    self.published = {version: copied(acting)}
    enter, count = unrolls.sessions.open, unrolls.sessions.count
    fill = unrolls._shares._full
    learn, publish = learner.learn, learner.publish
    counted = threading.local()

    def spy_open(hello):
      self.sessions.append(enter(hello))
      return self.sessions[-1]

    def spy_count(session, steps, waits):
      env_steps = np.sum(steps.step_type != dm_env.StepType.FIRST, axis=1)
      counted.arguments = session, env_steps, steps.episode_return
      count(session, steps, waits)

    def spy_fill(share):
      unroll = unroll_messages.swapped(share.data)
      self.messages.append(
        Message(*counted.arguments, unroll, share.priorities)
      )
      return fill(share)

    def spy_learn(batch):
      self.learned.append(copied(batch.parts))
      learn(batch)

    def spy_publish(**options):
      # Recorded first, since an actor may fetch the version at once.
      self.published[learner.version] = copied(learner.acting())
      publish(**options)

    unrolls.sessions.open = spy_open
    unrolls.sessions.count = spy_count
    unrolls._shares._full = spy_fill
    learner.learn = spy_learn
    learner.publish = spy_publish

  def have_sent(self, num_actors, messages):
    """Returns whether `num_actors` actors sent `messages` messages each."""
    sent = collections.Counter(id(x.session) for x in list(self.messages))
    return sum(n >= messages for n in sent.values()) >= num_actors

  def of(self, session):
    return [message for message in self.messages if message.session is session]


def key_of(session):
  return jax.random.fold_in(jax.random.key(0), session.lease.first_seed)


def copied(nest):
  return jax.tree.map(np.array, nest)


def time_major(unroll):
  """Transposes unrolls from `[S, L, ...]` to `[L, S, ...]`."""
  steps = unroll._replace(core_state=())
  steps = jax.tree.map(lambda x: np.swapaxes(x, 0, 1), steps)
  return steps._replace(core_state=unroll.core_state)


def joined(unrolls):
  """Joins unrolls of `[L, S_i, ...]` into one of `[L, sum S_i, ...]`."""
  steps = jax.tree.map(
    lambda *xs: np.concatenate(xs, axis=1),
    *[x._replace(core_state=()) for x in unrolls],
  )
  core_state = jax.tree.map(
    lambda *xs: np.concatenate(xs), *[x.core_state for x in unrolls]
  )
  return steps._replace(core_state=core_state)


@contextlib.contextmanager
def compiled(counts=lambda: True):
  """Yields a list that gets the names of the programs that JAX compiles.

  A program is left out if `counts` returns False in the thread that compiles.
  """
  names = []

  def listen(event, _, fun_name="", **__):
    if event == "/jax/core/compile/backend_compile_duration" and counts():
      # The event's name is, for example, jit(act).
      names.append(re.sub(r"^jit[(_]|\)$", "", fun_name))

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    yield names
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
