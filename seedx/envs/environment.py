"""What all environments have in common, and how each kind is made."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from seedx import types
from seedx.envs import config as env_config


class Environment(Protocol):
  """Environments of one kind, of which `recv` returns those that are ready.

  One thread may call `recv` while another calls `send`. When an episode has
  ended, the next action of that environment is ignored and its next row is the
  FIRST of a new episode, with reward 0 and discount 1. The discount is 0 where
  an episode terminates, and not where a time limit cuts it off.

  Attributes:
    spec: what one environment takes and gives.
    num_envs: how many environments there are.
    batch_size: how many rows `recv` returns.
  """

  spec: types.EnvironmentSpec
  num_envs: int
  batch_size: int

  def reset(self) -> None:
    """Starts every environment; call it once, before the first `recv`."""
    ...

  def recv(self) -> types.Rows:
    """Waits for `batch_size` environments; returns their rows.

    The arrays are the caller's own. Ask only for rows of environments that do
    not wait for their actions.

    Raises:
      RuntimeError: an environment has failed.
      ValueError: an environment goes on, and yet no action is legal in it.
    """
    ...

  def send(self, index: np.ndarray, action: np.ndarray) -> None:
    """Gives environments their actions.

    Args:
      index: `[B]` int32, environments that `recv` returned and that have had no
        action since. B is `batch_size` or any other number.
      action: `[B, *action_shape]`; floats are clipped to their bounds.

    Raises:
      ValueError: the shape is another, or a discrete action is out of range.
    """
    ...

  def render(self) -> np.ndarray:
    """A frame `[H, W, 3]` uint8 of environment 0.

    Raises:
      types.ConfigError: there is none, or `make` was not told `render=True`.
    """
    ...

  def close(self) -> None:
    """Ends the environments; `recv` must not be waiting."""
    ...


def make(
  config: env_config.Config,
  num_envs: int,
  *,
  batch_size: int | None = None,
  seed: int = 0,
  num_threads: int = 1,
  render: bool = False,
) -> Environment:
  """Makes environments; `reset` starts them.

  Args:
    config: which environment, EnvPool's or one of the user's.
    num_envs: at least 1.
    batch_size: rows of a `recv`, from 1 to `num_envs`. If smaller than
      `num_envs`, `recv` returns the first that are ready and the others step
      meanwhile. None means `num_envs`: every `recv` returns all of them, in
      order.
    seed: environment k is seeded with `seed + k`.
    num_threads: threads that step environments of EnvPool, or processes that
      step others; at least 1.
    render: whether `render` will be asked for frames.

  Raises:
    types.ConfigError: as `spec` does, or where a number is out of range.
  """
  # EnvPool is imported by those who use it: it takes a second with JAX.
  if env_config.is_own(config):
    from seedx.envs import process_adapter

    kind: Callable[..., Environment] = process_adapter.ProcessEnvironment
  else:
    from seedx.envs import envpool_adapter

    kind = envpool_adapter.EnvPoolEnvironment
  return kind(
    config,
    num_envs,
    batch_size=batch_size,
    seed=seed,
    num_threads=num_threads,
    render=render,
  )


def spec(config: env_config.Config) -> types.EnvironmentSpec:
  """What one environment takes and gives.

  Args:
    config: which environment. One of the user's is made once in a process to
      find out, in a process of its own.

  Returns:
    The spec. Observations of 64 bits are narrowed to 32. Floating point
    observations are given without bounds, which are often placeholders.

  Raises:
    types.ConfigError: the environment, an option, an info key, the action mask
      or the transform is unknown or cannot be used, a system library is
      missing, or the actions are not supported.
  """
  if env_config.is_own(config):
    from seedx.envs import process_adapter

    return process_adapter.spec(config)
  from seedx.envs import envpool_spec

  return envpool_spec.spec(config)
