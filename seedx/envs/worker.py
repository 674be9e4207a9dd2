"""The process that steps some environments of a `ProcessEnvironment`.

It is a fresh interpreter, which can have JAX where its parent has none. It ends
when the parent closes its pipes or is gone, in any way.
"""

import os
import pickle
import select
import sys
import threading
import traceback
from collections.abc import Mapping
from multiprocessing import connection
from typing import Any

import dm_env
import numpy as np
import tree

from seedx import types
from seedx.envs import messages, observations, single

_FIRST = int(dm_env.StepType.FIRST)
_MID = int(dm_env.StepType.MID)
_LAST = int(dm_env.StepType.LAST)


def main(requests: int, replies: int, memory: int) -> None:
  """Works until the parent needs it no more.

  Args:
    requests: a file descriptor to read from.
    replies: a file descriptor to write to.
    memory: a file descriptor of the memory that is shared.
  """
  threading.Thread(
    target=_leave_with_parent, args=(replies,), daemon=True
  ).start()
  status = 0
  try:
    _serve(
      connection.Connection(requests, writable=False),
      connection.Connection(replies, readable=False),
      memory,
    )
  except BaseException:
    traceback.print_exc()
    status = 1
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)  # The environments' threads must not keep it alive.


class _Failure(Exception):
  """An environment has failed; the text says which, and how."""


class _Leaf:
  """Where a part of an observation comes from, and goes to.

  Attributes:
    place: `[N, ...]`, where the part of each environment goes.
  """

  def __init__(self, path: tuple[str, ...], leaf: single.Leaf) -> None:
    self._path, self._spec, self._offset = path, leaf.spec, leaf.offset
    kind = self._spec.dtype.kind
    self._kinds = "iu" if kind in "iu" else kind
    self.place: np.ndarray

  def read(self, observation: types.Tree) -> np.ndarray:
    """The part of an observation; raises `ValueError` where it is wrong."""
    value = observation
    for key in self._path:
      if not isinstance(value, Mapping) or key not in value:
        raise ValueError(
          f"expected {key!r} in the observation, found"
          f" {list(value) if isinstance(value, Mapping) else type(value)}"
        )
      value = value[key]
    if type(value) is not np.ndarray:
      value = np.asarray(value)
    if value.shape != self._spec.shape or value.dtype.kind not in self._kinds:
      raise ValueError(
        f"expected the observation {'/'.join(self._path)}".rstrip()
        + f" to have shape {self._spec.shape} and dtype {self._spec.dtype}, as"
        f" the environment says, found shape {value.shape} and dtype"
        f" {value.dtype}"
      )
    return value if self._offset is None else value - self._offset


class _Worker:
  """The environments of a process.

  Attributes:
    signature: theirs.
    environments: themselves.
  """

  def __init__(self, job: messages.Job) -> None:
    self._name, self._first = job.config.env, job.first
    self.environments = [
      single.make(job.config, job.seed + k, job.render)
      for k in range(job.first, job.first + job.count)
    ]
    # What the environments were reset to when they were made.
    self._started: list[types.Tree] = []
    for environment in self.environments:
      leaves, signature = _leaves(environment), _signature(environment)
      if not self._started:
        self._leaves, self.signature = leaves, signature
      messages.check_same(self._name, self.signature, signature)
      _check(self._name, leaves, environment.started)
      self._started.append(environment.started)
    self._ended = [True] * job.count
    self._game_return = [0.0] * job.count

  def use(self, places: messages.Places) -> None:
    """Says where rows go, and actions come from."""
    self._places = places
    for leaf, place in zip(self._leaves, places.observation, strict=True):
      leaf.place = place

  def reset(self) -> np.ndarray:
    """Starts all; returns their indices."""
    self._ended = [True] * len(self._ended)
    self._game_return = [0.0] * len(self._ended)
    index = np.arange(len(self._ended), dtype=np.int32) + self._first
    self.step(index)
    return index

  def step(self, index: np.ndarray) -> None:
    """Steps environments, and writes their rows."""
    places = self._places
    actions = self.environments[0].action.translated(places.action[index])
    rows = []
    for k, action in zip(index.tolist(), actions, strict=True):
      try:
        rows.append(self._step(k, action))
      except BaseException:  # SystemExit too.
        raise _Failure(
          f"environment {k} of {self._name} failed:\n{traceback.format_exc()}"
        ) from None
    (
      places.step_type[index],
      places.reward[index],
      places.discount[index],
      places.episode_return[index],
    ) = zip(*rows, strict=True)

  def _step(self, k: int, action: Any) -> tuple[int, float, float, float]:
    i = k - self._first
    environment = self.environments[i]
    if self._ended[i]:
      self._ended[i] = False
      started, self._started[i] = self._started[i], None
      self._write(k, environment.reset() if started is None else started)
      return _FIRST, 0.0, 1.0, np.nan
    observation, reward, discount, last = environment.step(action)
    self._write(k, observation)
    self._game_return[i] += reward
    if not last:
      return _MID, reward, discount, np.nan
    game_return, self._game_return[i] = self._game_return[i], 0.0
    self._ended[i] = True
    return _LAST, reward, discount, game_return

  def _write(self, k: int, observation: Any) -> None:
    for leaf in self._leaves:
      leaf.place[k] = leaf.read(observation)


def _leave_with_parent(replies: int) -> None:
  # Who asks for no event is told of one: that nobody can read any more.
  poll = select.poll()
  poll.register(replies, 0)
  poll.poll()
  os._exit(0)


def _serve(
  requests: connection.Connection, replies: connection.Connection, memory: int
) -> None:
  try:
    job = _job(requests.recv_bytes())
    worker = _Worker(job)
  except types.ConfigError as error:
    replies.send_bytes(messages.REFUSAL + str(error).encode())
    return
  replies.send_bytes(messages.SIGNATURE + pickle.dumps(worker.signature))
  while True:
    try:
      message = requests.recv_bytes()
    except EOFError:
      break
    try:
      reply = _answer(worker, job, memory, message)
    except _Failure as failure:
      replies.send_bytes(messages.FAILURE + str(failure).encode())
      return
    if reply:
      replies.send_bytes(reply)
  for environment in worker.environments:
    environment.close()


def _job(message: bytes) -> messages.Job:
  try:
    return pickle.loads(message)
  except Exception as error:
    raise types.ConfigError(
      f"expected options that a process of its own can read, found {error!r}"
    ) from error


def _answer(
  worker: _Worker, job: messages.Job, memory: int, message: bytes
) -> bytes:
  kind, rest = message[:1], message[1:]
  if kind == messages.STEP:
    worker.step(np.frombuffer(rest, np.int32))
    return messages.ROWS + rest
  if kind == messages.RESET:
    return messages.FIRST_ROWS + worker.reset().tobytes()
  if kind == messages.RENDER:
    return _frame(worker, job.config.env)
  assert kind == messages.MEMORY, kind
  worker.use(messages.places(worker.signature, int(rest), memory))
  return b""


def _frame(worker: _Worker, name: str) -> bytes:
  try:
    frame = single.attempt(name, "render", worker.environments[0].render)
    frame = observations.checked_frame(frame, name)
  except types.ConfigError as error:
    return messages.REFUSAL + str(error).encode()
  return messages.FRAME + pickle.dumps(frame)


def _leaves(environment: single.Single) -> list[_Leaf]:
  """The leaves of an observation, in the order of `tree.flatten`."""
  return [
    _Leaf(path, leaf)
    for path, leaf in tree.flatten_with_path(environment.observation)
  ]


def _signature(environment: single.Single) -> messages.Signature:
  observation = tree.map_structure(
    lambda leaf: leaf.spec, environment.observation
  )
  return messages.Signature(observation, environment.action.spec)


def _check(name: str, leaves: list[_Leaf], observation: types.Tree) -> None:
  try:
    for leaf in leaves:
      leaf.read(observation)
  except ValueError as error:
    raise types.ConfigError(f"{name}: {error}") from error
