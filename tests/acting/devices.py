"""A fake inference device, and thin actors without a connection."""

import collections
import queue
import types as types_lib

import dm_env
import numpy as np

from seedx import envs, types, wire
from seedx.acting import decoder, inference_server, protocol
from seedx.runtime import counters, seeding
from seedx.wire import serving

CARTPOLE = envs.Config("CartPole-v1")


class Device:
  """A fake inference device: each batch is one message, each action is 0.

  Attributes:
    batches: the newest batches.
  """

  def __init__(self, sizes, acted, layouts):
    self.sizes = sizes
    self.env = np.zeros(sizes.layout.num_slots, np.int32)
    inputs, self._outputs = layouts
    self.received = decoder.Decoder(
      inputs, sizes.layout, sizes.reported, acted, returns_are_sums=True
    )
    self.requests = types_lib.SimpleNamespace(put=self._put)
    self.batches = collections.deque(maxlen=100)

  @property
  def rows(self):
    """Number of rows in `batches`."""
    return sum(len(batch.slot) for batch in self.batches)

  def _put(self, message):
    taken, batch = self.received.take([message], [message.rows])
    if taken:
      self.batches.append(batch)
      zeros = np.zeros(message.rows, np.int32)
      for reply in self._outputs.encode_all(zeros, [message.rows]):
        message.reply(reply)
    return True


class Served:
  """An inference server of fake devices, for CartPole.

  Attributes:
    acted: counts of the experience.
    devices: the fake devices.
    server: the inference server.
    layouts: layouts of rows and actions.
  """

  def __init__(self, sizes):
    self.acted = counters.ActingCounts()
    spec = envs.spec(CARTPOLE)
    self.layouts = protocol.act_layouts(spec, sizes[0].padded[-1])
    self.devices = [Device(each, self.acted, self.layouts) for each in sizes]
    acting = types_lib.SimpleNamespace(
      devices=self.devices, layouts=self.layouts
    )
    self.server = inference_server.InferenceServer(
      acting, seeding.Seeds(0), self.acted
    )

  def open(self, num_envs):
    """Opens an actor's session."""
    return Actor(self.server.open({"num_envs": num_envs}), self.layouts)


class Actor:
  """A thin actor without a connection."""

  def __init__(self, session, layouts):
    self.session = session
    self.close = session.close
    self.answers = queue.SimpleQueue()
    self._inputs, self._outputs = layouts

  def __call__(self, rows):
    """Sends rows; returns their actions, or raises the refusal."""
    self.send(rows)
    return self.receive()

  def send(self, rows):
    """Sends rows."""
    message = self._inputs.encode(rows)
    request = serving.Request(message, len(rows.index), self.answers.put)
    self.session.receive(request)

  def receive(self):
    """Returns the actions for the oldest rows, or raises the refusal."""
    answer = self.answers.get(timeout=300)
    if isinstance(answer, wire.Refusal):
      raise answer
    return self._outputs.decode(answer)


def row(step_type, **changes):
  """Returns `Rows` of one environment; `changes` are values of fields."""
  timestep = dm_env.TimeStep(
    np.array([step_type], np.uint8),
    np.array([changes.pop("reward", 1)], np.float32),
    np.array([changes.pop("discount", 1)], np.float32),
    np.full((1, 4), changes.pop("observation", 0), np.float32),
  )
  index = np.array([changes.pop("index", 0)], np.int32)
  assert not changes
  return types.Rows(index, timestep, np.array([np.nan], np.float32))
