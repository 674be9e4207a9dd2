"""Environments that sleep for the time of a step, for `simulated_host`.

A step takes time on a simulated core that does nothing else, whatever the
machine's cores do meanwhile: its end is computed, and `recv` sleeps until then.
Observations are made beforehand. This module loads no JAX, so that thin actors
can use it.
"""

import collections
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import dm_env
import numpy as np

from seedx import envs, types
from seedx.envs import environment, finishing

ENV = "benchmarks.sleeping:Environments"
# Number of time steps of an episode, so that resets are rare.
EPISODE = 1_000
_ACTIONS = 6
# Number of observations that were made beforehand.
_OBSERVATIONS = 64
_SHAPES = {"numbers": ((4,), np.float32), "frames": ((1, 84, 84), np.uint8)}
NUMBERS, FRAMES = _SHAPES


def config(kind: str, step_seconds: float) -> envs.Config:
  """Returns the config of environments of a kind, `NUMBERS` or `FRAMES`."""
  return envs.Config(ENV, {"kind": kind, "step_seconds": step_seconds})


def install() -> None:
  """Makes `envs.make` and `envs.spec` use these environments only."""
  kind: Any = lambda config: (Environments, spec)  # noqa: E731
  environment._kind = kind


def act(
  actor: Callable[[Any, threading.Event], None],
  work: Any,
  stop: threading.Event,
) -> None:
  """Runs an actor's program, such as `thin_actor.run`, with `install`."""
  install()
  actor(work, stop)


def spec(config: envs.Config) -> types.EnvironmentSpec:
  """See `envs.spec`."""
  shape, dtype = _SHAPES[config.env_options["kind"]]
  return types.EnvironmentSpec(
    observation=dm_env.specs.Array(shape, dtype, "observation"),
    action=dm_env.specs.DiscreteArray(_ACTIONS, dtype=np.int32),
  )


class Environments:
  """Environments on `num_threads` simulated cores; see `envs.Environment`.

  The cores step the environments in the order of their actions, those of one
  `send` in equal parts. One thread calls `send` and `recv`, and each `send` has
  `batch_size` environments.
  """

  def __init__(
    self,
    config: envs.Config,
    num_envs: int,
    *,
    batch_size: int | None = None,
    seed: int = 0,
    num_threads: int = 1,
    render: bool = False,
    restarts: Any = None,
  ) -> None:
    del render, restarts
    self.spec = spec(config)
    self.num_envs = num_envs
    self.batch_size = finishing.check_numbers(
      num_envs, batch_size, num_threads, seed
    )
    if num_envs % self.batch_size or self.batch_size % num_threads:
      raise types.ConfigError(
        "expected equal batches, and in each an equal part for each core, found"
        f" {num_envs} environments, {self.batch_size} in a batch, {num_threads}"
        " cores"
      )
    step_seconds = config.env_options["step_seconds"]
    self._batch_seconds = step_seconds * self.batch_size / num_threads
    # The time until which the cores are busy.
    self._busy = 0.0
    # Environments under way, and the times at which their steps end.
    self._stepping: collections.deque[tuple[np.ndarray, float]] = (
      collections.deque()
    )
    # Time of each environment in its episode, and the steps that its first
    # episode leaves out, so that not all end at once.
    self._time = np.zeros(num_envs, np.int64)
    self._skip = (EPISODE - 1) * np.arange(num_envs) // num_envs
    self._return = np.zeros(num_envs, np.float32)
    self._calls = 0
    shape = (_OBSERVATIONS + self.batch_size, *self.spec.observation.shape)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    self._observations = pixels.astype(self.spec.observation.dtype)

  def reset(self) -> None:
    """See `envs.Environment`."""
    index = np.arange(self.num_envs, dtype=np.int32)
    for batch in index.reshape(-1, self.batch_size):
      self._begin(batch)

  def recv(self) -> types.Rows:
    """See `envs.Environment`; observations are views of arrays that are kept.

    The observations of consecutive calls differ.
    """
    index, due_seconds = self._stepping.popleft()
    time.sleep(max(0.0, due_seconds - time.monotonic()))
    now = self._time[index]
    self._time[index] = (now + 1 + self._skip[index]) % (EPISODE + 1)
    self._skip[index] = 0
    is_step, last = now > 0, now == EPISODE
    reward = is_step.astype(np.float32)
    total = self._return[index] + reward
    self._return[index] = np.where(last, np.float32(0), total)
    start = self._calls % _OBSERVATIONS
    self._calls += 1
    timestep = dm_env.TimeStep(
      step_type=is_step.view(np.uint8) + last.view(np.uint8),
      reward=reward,
      discount=np.ones(self.batch_size, np.float32),
      observation=self._observations[start : start + self.batch_size],
    )
    return types.Rows(index, timestep, np.where(last, total, np.float32("nan")))

  def send(self, index: np.ndarray, action: np.ndarray) -> None:
    """See `envs.Environment`."""
    finishing.checked_action(self.spec.action, self.spec.action, index, action)
    self._begin(index)

  def render(self) -> NoReturn:
    """Raises types.ConfigError: there is no picture."""
    raise types.ConfigError("these environments have no picture")

  def close(self) -> None:
    """See `envs.Environment`."""

  def _begin(self, index: np.ndarray) -> None:
    """Puts a batch of environments at the end of the cores' queue."""
    begin = max(self._busy, time.monotonic())
    self._busy = begin + self._batch_seconds
    self._stepping.append((index, self._busy))
