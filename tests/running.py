"""A pipeline's learner and its actors, all on threads of this process."""

import collections
import threading
import time
from typing import NamedTuple

import jax
import numpy as np

from seedx import types
from seedx.runtime import roster


class Lines:
  """A sink that keeps its lines."""

  def __init__(self):
    self.lines = []

  def write(self, line):
    self.lines.append(dict(line))

  def close(self):
    pass


class Running:
  """Runs from entering to leaving; a failure of any thread is raised then.

  Attributes:
    learner: the pipeline's; what a test spies on is wrapped before it enters.
    sink: has the lines of metrics.
    stop: ends it.
    failures: what threads have raised so far.
  """

  def __init__(self, pipeline, config, actors=None):
    """Starts nothing yet.

    Args:
      pipeline: a module with `Learner` and `actors`.
      config: the pipeline's.
      actors: how many run; None for all that there is place for.
    """
    self.config = config
    self.sink = Lines()
    self.stop = threading.Event()
    self.learner = pipeline.Learner(config, [self.sink], self.stop)
    node = pipeline.actors(config)
    self.failures = []
    count = node.count if actors is None else actors
    self.threads = [
      threading.Thread(target=self._act, args=(node,), daemon=True)
      for _ in range(count)
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
      self.learner.run()
    except BaseException as failure:
      self.failures.append(failure)

  def wait_for(self, condition, seconds=60):
    """Waits until a condition holds, or something has failed."""
    deadline = time.monotonic() + seconds
    while not condition() and not self.failures:
      assert time.monotonic() < deadline
      time.sleep(0.02)

  def wait_for_steps(self, env_steps, seconds=60):
    """Waits until so many env steps are counted."""
    self.wait_for(lambda: self.learner.progress.env_steps >= env_steps, seconds)

  def __exit__(self, *exception):
    if exception[0] is not None:
      self.stop.set()
    for thread in [self.main, *self.threads]:
      thread.join(60)
      assert not thread.is_alive()
    if exception[0] is None and self.failures:
      raise self.failures[0]


class Message(NamedTuple):
  """What an actor sent, and what was counted of it."""

  entry: roster.Entry
  env_steps: np.ndarray
  episode_return: np.ndarray
  unroll: types.Unroll
  priorities: types.Tree


class Spy:
  """What goes through the learner of actors that act for themselves.

  Attributes:
    entries: of all leases.
    messages: in the order in which they are cut into items.
    items: that the sink was given.
    learned: batches, of each the shares of all cores.
    published: acting parameters by their version.
  """

  def __init__(self, learner):
    """Listens to a learner that has not started."""
    self.entries, self.messages, self.items, self.learned = [], [], [], []
    collection, own = learner._collection, learner.learner
    acting, version = learner._snapshots.latest(own.cores[0])
    self.published = {version: copied(acting)}
    enter, count = collection._actors.enter, collection._actors.count
    add, sink = collection._items.add, collection._sink
    learn, publish = own.learn, learner._snapshots.publish
    counted = threading.local()

    def spy_enter(hello):
      self.entries.append(enter(hello))
      return self.entries[-1]

    def spy_count(*arguments):
      counted.arguments = arguments
      count(*arguments)

    def spy_add(unroll, priorities):
      self.messages.append(Message(*counted.arguments, unroll, priorities))
      return add(unroll, priorities)

    def spy_sink(item):
      self.items.append(item)
      return sink(item)

    def spy_learn(batch):
      self.learned.append(copied(batch))
      learn(batch)

    def spy_publish(acting, version):
      # Before: who fetches it may be quick.
      self.published[version] = copied(acting)
      publish(acting, version)

    collection._actors.enter = spy_enter
    collection._actors.count = spy_count
    collection._items.add = spy_add
    collection._sink = spy_sink
    own.learn = spy_learn
    learner._snapshots.publish = spy_publish

  def heard(self, num_actors, messages):
    """Whether so many actors have sent so many messages each."""
    sent = collections.Counter(id(x.entry) for x in list(self.messages))
    return sum(n >= messages for n in sent.values()) >= num_actors

  def of(self, entry):
    """The messages of an actor."""
    return [message for message in self.messages if message.entry is entry]


def copied(nest):
  """A nest of NumPy arrays of its own."""
  return jax.tree.map(np.array, nest)


def time_major(unroll):
  """`[S, L, ...]` unrolls as `[L, S, ...]`."""
  steps = jax.tree.map(lambda x: np.swapaxes(x, 0, 1), tuple(unroll[:-1]))
  return types.Unroll._make([*steps, unroll.core_state])


def joined(unrolls):
  """`[L, S_i, ...]` unrolls as one of `[L, sum S_i, ...]`."""
  steps = jax.tree.map(
    lambda *xs: np.concatenate(xs, axis=1), *[tuple(x[:-1]) for x in unrolls]
  )
  core_state = jax.tree.map(
    lambda *xs: np.concatenate(xs), *[x.core_state for x in unrolls]
  )
  return types.Unroll._make([*steps, core_state])


def assert_equal(actual, expected):
  """That two nests have the same leaves, exactly."""
  jax.tree.map(np.testing.assert_array_equal, actual, expected)
