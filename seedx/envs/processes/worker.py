"""The program of a process that steps environments of a `ProcessEnvironment`.

The program runs in a new interpreter, which may import JAX even if its parent
may not, and ends when the parent closes the pipes, or has ended for any reason.
"""

import dataclasses
import functools
import inspect
import os
import pickle
import random
import select
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import connection
from typing import Any

import dm_env
import numpy as np
import tree

from seedx import types
from seedx.envs import config as env_config
from seedx.envs import finishing
from seedx.envs.processes import messages, single, single_dm_env

_FIRST = int(dm_env.StepType.FIRST)
_MID = int(dm_env.StepType.MID)
_LAST = int(dm_env.StepType.LAST)


def main(requests: int, replies: int, memory: int) -> None:
  """Serves the parent until it closes its pipes or ends.

  Args:
    requests: file descriptor from which messages are read.
    replies: file descriptor to which messages are written.
    memory: file descriptor of the shared rows.
  """
  threading.Thread(
    target=_exit_with_parent, args=(replies,), daemon=True
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
  os._exit(status)  # Does not wait for environments' threads.


class _Failure(Exception):
  """A failure of an environment, with its index, its seed and a traceback."""


class _Worker:
  """The environments of a process, which have the same `signature`."""

  def __init__(
    self, job: messages.Job, memory: int, ready: Callable[[], None]
  ) -> None:
    self._name, self._first = job.config.env, job.first
    self._seed = job.seed
    # For environments that draw from the generators of the process.
    random.seed(job.seed + job.first)
    np.random.seed(job.seed + job.first)
    self._environments = []
    for k in range(job.first, job.first + job.count):
      self._environments.append(_make(job.config, job.seed + k, job.render))
      ready()
    signature, *others = map(_signature, self._environments)
    for other in others:
      messages.check_same(self._name, signature, other)
    self.signature = signature
    # Paths include the entries of `info`, which have been added by now.
    self._leaves = [
      dataclasses.replace(leaf, path=path)
      for path, leaf in tree.flatten_with_path(
        self._environments[0].observation
      )
    ]
    # The environments were reset when made; the first RESET uses that reset.
    self._first_observations = {
      i: environment.first_observation
      for i, environment in enumerate(self._environments)
    }
    try:
      for observation in self._first_observations.values():
        for leaf in self._leaves:
          leaf.read(observation)
    except ValueError as error:
      raise types.ConfigError(f"{self._name}: {error}") from error
    self._ended = [True] * job.count
    self._game_return = [0.0] * job.count
    self._logs_info = bool(job.config.log_info)
    self._shared = messages.shared_rows(
      signature,
      self._environments[0].action.spec,
      job.num_envs,
      len(job.config.log_info),
      memory,
    )

  def answer(self, message: bytes) -> bytes:
    kind, payload = message[:1], message[1:]
    if kind == messages.STEP:
      self._step_all(np.frombuffer(payload, np.int32))
      return messages.ROWS + payload
    if kind == messages.RESET:
      count = len(self._environments)
      self._ended = [True] * count
      self._game_return = [0.0] * count
      index = np.arange(count, dtype=np.int32) + self._first
      self._step_all(index)
      return messages.FIRST_ROWS + index.tobytes()
    assert kind == messages.RENDER, kind
    return self._render()

  def close(self) -> None:
    for environment in self._environments:
      environment.close()

  def _step_all(self, index: np.ndarray) -> None:
    shared = self._shared
    actions = self._environments[0].action.rows(shared.action[index])
    rows = []
    for k, action in zip(index.tolist(), actions, strict=True):
      try:
        rows.append(self._step(k, action))
      except types.ConfigError:
        raise  # It would happen again after a restart.
      except BaseException as error:  # SystemExit too.
        reason = f"\n{traceback.format_exc()}"
        if isinstance(error, single.WrongStepError):
          reason = str(error)
        raise _Failure(
          finishing.failure(self._name, k, self._seed, reason)
        ) from None
    (
      shared.step_type[index],
      shared.reward[index],
      shared.discount[index],
      shared.episode_return[index],
    ) = zip(*rows, strict=True)

  def _step(self, k: int, action: Any) -> tuple[int, float, float, float]:
    """Writes the observation of environment k; returns the rest of its row."""
    i = k - self._first
    environment = self._environments[i]
    if self._ended[i]:
      self._ended[i] = False
      observation = self._first_observations.pop(i, None)
      if observation is None:
        observation = environment.reset()
      self._write(k, observation)
      return _FIRST, 0.0, 1.0, np.nan
    observation, reward, discount, last = environment.step(action)
    self._write(k, observation)
    self._game_return[i] += reward
    if not last:
      return _MID, reward, discount, np.nan
    game_return, self._game_return[i] = self._game_return[i], 0.0
    self._ended[i] = True
    if self._logs_info:
      self._shared.info[k] = environment.last_info
    return _LAST, reward, discount, game_return

  def _write(self, k: int, observation: types.Tree) -> None:
    for leaf, array in zip(self._leaves, self._shared.observation, strict=True):
      array[k] = leaf.read(observation)

  def _render(self) -> bytes:
    try:
      frame = single.attempt(self._name, "render", self._environments[0].render)
      frame = finishing.checked_frame(frame, self._name)
    except types.ConfigError as error:
      return messages.REFUSAL + str(error).encode()
    return messages.FRAME + pickle.dumps(frame)


def _exit_with_parent(replies: int) -> None:
  # A poll without events returns only when the pipe has no reader.
  poll = select.poll()
  poll.register(replies, 0)
  poll.poll()
  os._exit(0)


def _serve(
  requests: connection.Connection, replies: connection.Connection, memory: int
) -> None:
  try:
    job = _job(requests.recv_bytes())
    ready = functools.partial(replies.send_bytes, messages.READY)
    worker = _Worker(job, memory, ready)
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
      reply = worker.answer(message)
    except types.ConfigError as error:
      replies.send_bytes(messages.REFUSAL + str(error).encode())
      return
    except _Failure as failure:
      replies.send_bytes(messages.FAILURE + str(failure).encode())
      return
    replies.send_bytes(reply)
  worker.close()


def _job(message: bytes) -> messages.Job:
  try:
    return pickle.loads(message)
  except Exception as error:
    raise types.ConfigError(
      "expected options that can be unpickled in another process, found"
      f" {error!r}"
    ) from error


def _make(config: env_config.Config, seed: int, render: bool) -> single.Single:
  """Calls the factory, resets its environment; raises only ConfigErrors."""
  name = config.env
  factory = env_config.load_function(name, "an environment factory")
  parameters = _parameters(factory)
  arguments = _arguments(config, parameters, seed, render)
  env = single.attempt(name, "the factory", factory, **arguments)
  if isinstance(env, dm_env.Environment):
    if "seed" not in parameters:
      raise types.ConfigError(
        f"{name}: expected a factory with a parameter named seed, without which"
        " a dm_env.Environment cannot be seeded, found the parameters"
        f" ({', '.join(parameters)})"
      )
    return single_dm_env.Single(config, env)
  # Gymnasium is not imported here: dm_env's processes start 0.1 s sooner. A
  # factory that returns a Gymnasium environment has imported Gymnasium.
  gymnasium = sys.modules.get("gymnasium")
  if gymnasium is not None and isinstance(env, gymnasium.Env):
    from seedx.envs.processes import single_gymnasium

    return single_gymnasium.Single(config, env, seed)
  kind = type(env)
  if gymnasium is not None and isinstance(env, gymnasium.vector.VectorEnv):
    raise types.ConfigError(
      f"{name}: expected the factory to return one environment, found a vector"
      " of environments; --num-envs or --envs-per-actor sets their number"
    )
  raise types.ConfigError(
    f"{name}: expected the factory to return a gymnasium.Env or a"
    f" dm_env.Environment, found {kind.__module__}.{kind.__qualname__}; derive"
    f" it from one of them, or use jax:{name} if it consists of JAX functions"
  )


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
  try:
    return inspect.signature(factory).parameters
  except (TypeError, ValueError):  # Some functions in C have no signature.
    return {}


def _arguments(
  config: env_config.Config,
  parameters: Mapping[str, inspect.Parameter],
  seed: int,
  render: bool,
) -> dict[str, Any]:
  name = config.env
  arguments = dict(config.env_options)
  if "seed" in arguments:
    raise types.ConfigError(
      f"{name}: option 'seed' is not supported: pass the argument seed;"
      " environment k gets seed + k."
    )
  takes_any = any(x.kind is x.VAR_KEYWORD for x in parameters.values())
  accepted = [
    key
    for key, x in parameters.items()
    if x.kind in (x.POSITIONAL_OR_KEYWORD, x.KEYWORD_ONLY)
  ]
  for key in arguments:
    if parameters and key not in accepted and not takes_any:
      raise types.ConfigError(
        f"{name}: unknown option {key!r}. "
        + env_config.suggestion(key, sorted({*accepted} - {"seed"}))
      )
  if "seed" in accepted:
    arguments["seed"] = seed
  if render and ("render_mode" in accepted or takes_any):
    arguments["render_mode"] = "rgb_array"
  return arguments


def _signature(environment: single.Single) -> messages.Signature:
  specs = tree.map_structure(lambda leaf: leaf.spec, environment.observation)
  return messages.Signature(
    specs,
    environment.action.native,
    environment.normalizers,
    environment.render_fps,
  )
