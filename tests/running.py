"""A pipeline's own process and its nodes, all on threads of this process."""

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
from seedx.runtime import process
from seedx.runtime import running as running_lib


def wait_until(condition, failed=lambda: None, seconds=300):
  """Waits until a condition holds.

  Args:
    condition: function that returns whether it holds.
    failed: function that raises where waiting makes no sense any more.
    seconds: after which the condition counts as never to hold. A machine
      that is busy with other things must not reach it.

  Raises:
    AssertionError: the condition has not held in time.
  """
  deadline = time.monotonic() + seconds
  while not condition():
    failed()
    assert time.monotonic() < deadline, f"not within {seconds} s"
    time.sleep(0.01)


class Lines:
  """A sink that keeps its lines."""

  def __init__(self):
    self.lines = []

  def write(self, line):
    self.lines.append(dict(line))

  def close(self):
    pass


class Own:
  """A pipeline's own process, with nothing set in motion.

  Attributes:
    config: the pipeline's.
    nodes: what runs beside it.
    context: that it was made in.
    stop: ends it.
    process: what runs.
    sink: has the lines of metrics.
  """

  def __init__(self, config):
    self.config = config
    self.nodes = config.nodes()
    self.context = process.Context()
    self.stop = self.context.stop
    self.process = config.learn(self.context)
    self.sink = Lines()

  @property
  def acted(self):
    """What has been counted of acting."""
    return self.process.acted

  @property
  def learner(self):
    """The part with the agent's state."""
    return self.process.parts.get("agent")

  @property
  def learned(self):
    """What has been counted of learning by many workers."""
    return self.process.parts["learned"]

  @property
  def inferences(self):
    """The inference devices of SEED."""
    return self._served(protocol.ACT).__self__._acting.devices

  @property
  def unrolls(self):
    """Who takes in the unrolls of actors that act by themselves."""
    return self._served(unroll_messages.EXPERIENCE).__self__

  def _served(self, name):
    return self.process.server._methods[name].open_session

  def run(self, check=lambda: None):
    """Runs the process alone; returns the last line."""
    return running_lib.run(
      self.process, self.context, [self.sink], self.config.log_seconds, check
    )


class Running(Own):
  """Runs from entering to leaving; a failure of any thread is raised then.

  What a test spies on is wrapped before it enters.

  Attributes:
    failures: what threads have raised so far.
  """

  def __init__(self, config, actors=None):
    """Starts nothing yet.

    Args:
      config: the pipeline's.
      actors: how many run; None for all that there is place for.
    """
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
    """Waits until a condition holds, or something has failed."""
    wait_until(lambda: condition() or self.failures)

  def wait_for_steps(self, env_steps):
    """Waits until at least `env_steps` are counted."""
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
  """An agent's config whose agents are changed by a function."""

  config: base.Config
  change: Callable[[base.Agent], base.Agent]

  def make(self, spec, axis_name=None, horizon=None):
    return self.change(self.config.make(spec, axis_name, horizon))


def replaced(config, **changes):
  """A pipeline's config with fields changed, its own or those of its parts."""
  names = {field.name for field in dataclasses.fields(config)}
  parts = collections.defaultdict(dict)
  for name in changes.keys() - names:
    (part,) = (x for x in names if hasattr(getattr(config, x), name))
    parts[part][name] = changes.pop(name)
  for part, fields in parts.items():
    before = changes.get(part, getattr(config, part))
    changes[part] = dataclasses.replace(before, **fields)
  return dataclasses.replace(config, **changes)


class Message(NamedTuple):
  """What an actor sent, and what was counted of it."""

  session: sessions.Session
  env_steps: np.ndarray
  episode_return: np.ndarray
  unroll: types.Unroll
  priorities: types.Tree


class Spy:
  """What goes through the learner of actors that act for themselves.

  Attributes:
    sessions: of all actors.
    messages: in the order in which they are cut into shares.
    learned: batches, of each the parts of all cores.
    published: acting parameters by their version.
  """

  def __init__(self, own):
    """Listens to a process that has not started."""
    self.sessions, self.messages, self.learned = [], [], []
    unrolls, learner = own.unrolls, own.learner
    acting, version = learner.newest()
    self.published = {version: copied(acting)}
    enter, count = unrolls.sessions.open, unrolls.sessions.count
    add = unrolls._shares.add
    learn, publish = learner.learn, learner.publish
    counted = threading.local()

    def spy_open(hello):
      self.sessions.append(enter(hello))
      return self.sessions[-1]

    def spy_count(session, steps, waits):
      env_steps = np.sum(steps.step_type != dm_env.StepType.FIRST, axis=1)
      counted.arguments = session, env_steps, steps.episode_return
      count(session, steps, waits)

    def spy_add(unroll, priorities):
      self.messages.append(Message(*counted.arguments, unroll, priorities))
      return add(unroll, priorities)

    def spy_learn(batch):
      self.learned.append(copied(batch.parts))
      learn(batch)

    def spy_publish(**options):
      # Before: who fetches it may be quick.
      self.published[learner.steps] = copied(learner.acting())
      publish(**options)

    unrolls.sessions.open = spy_open
    unrolls.sessions.count = spy_count
    unrolls._shares.add = spy_add
    learner.learn = spy_learn
    learner.publish = spy_publish

  def heard(self, num_actors, messages):
    """Whether so many actors have sent so many messages each."""
    sent = collections.Counter(id(x.session) for x in list(self.messages))
    return sum(n >= messages for n in sent.values()) >= num_actors

  def of(self, session):
    """The messages of an actor."""
    return [message for message in self.messages if message.session is session]


def key_of(session):
  """The key of an actor that computes actions by itself."""
  return jax.random.fold_in(jax.random.key(0), session.first_seed)


def copied(nest):
  """A nest of NumPy arrays of its own."""
  return jax.tree.map(np.array, nest)


def time_major(unroll):
  """`[S, L, ...]` unrolls as `[L, S, ...]`."""
  steps = unroll._replace(core_state=())
  steps = jax.tree.map(lambda x: np.swapaxes(x, 0, 1), steps)
  return steps._replace(core_state=unroll.core_state)


def joined(unrolls):
  """`[L, S_i, ...]` unrolls as one of `[L, sum S_i, ...]`."""
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
  """Names of the programs that are compiled meanwhile, by JAX's own events.

  Args:
    counts: asked in the thread that compiles, whether it counts.
  """
  names = []

  def listen(event, _, fun_name="", **__):
    if event == "/jax/core/compile/backend_compile_duration" and counts():
      # Such as jit(act).
      names.append(re.sub(r"^jit[(_]|\)$", "", fun_name))

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    yield names
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
