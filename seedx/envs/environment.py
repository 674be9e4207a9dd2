"""The interface of all environments, and the functions that make them."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from seedx import types
from seedx.envs import config as env_config

if TYPE_CHECKING:
  from seedx.envs.processes import restarting


class Environment(Protocol):
  """Several environments of one kind; `recv` returns those that are ready.

  One thread may call `recv` while another calls `send`. After an episode has
  ended, the environment's next action is ignored and its next row is the FIRST
  of a new episode, with reward 0 and discount 1. The discount is 0 if an
  episode terminates, but not if a time limit truncates it.

  Attributes:
    spec: observations and actions of one environment.
    num_envs: number of environments.
    batch_size: number of rows that `recv` returns.
  """

  spec: types.EnvironmentSpec
  num_envs: int
  batch_size: int

  def reset(self) -> None:
    """Starts new episodes in all environments.

    Call it before the first `recv`, and only when no environment steps.
    """
    ...

  def recv(self) -> types.Rows:
    """Waits for `batch_size` environments and returns their rows.

    The caller owns the arrays. Call `recv` only while at least `batch_size`
    environments have been reset or have received an action. On a LAST step,
    whose action is ignored, an action mask without a legal action becomes one
    where all are legal.

    Raises:
      RuntimeError: an environment has failed.
      ValueError: no action is legal although the episode continues.
      types.ConfigError: the first episode of one of the user's environments has
        ended without an entry of the config's `log_info`.
    """
    ...

  def send(self, index: np.ndarray, action: np.ndarray) -> None:
    """Sends actions to environments.

    Args:
      index: `[B]` int32 indices of environments that wait for an action: `recv`
        has returned their rows. B may differ from `batch_size`.
      action: `[B, *action_shape]`; floats are clipped to the bounds of
        `spec.action`.

    Raises:
      ValueError: the shape is wrong, or a discrete action is out of range.
    """
    ...

  def render(self) -> np.ndarray:
    """Renders environment 0 as a frame, `[H, W, 3]` uint8.

    No other thread may call `recv` at the same time.

    Raises:
      types.ConfigError: the environment cannot be rendered, or `make` was not
        called with `render=True`.
    """
    ...

  def close(self) -> None:
    """Closes the environments; no thread may be waiting in `recv`."""
    ...


def make(
  config: env_config.Config,
  num_envs: int,
  *,
  batch_size: int | None = None,
  seed: int = 0,
  num_threads: int = 1,
  render: bool = False,
  restarts: "restarting.Restarts | None" = None,
) -> Environment:
  """Makes environments; `reset` starts them.

  Args:
    config: an environment of EnvPool's, of seedx's, or the user's own.
    num_envs: number of environments, at least 1.
    batch_size: number of rows that `recv` returns, from 1 to `num_envs`. If
      smaller than `num_envs`, `recv` returns the first rows that are ready
      while the other environments still step. None for `num_envs`: `recv`
      returns all rows, in order.
    seed: seed of environment 0; environment k has the seed `seed + k`.
    num_threads: number of threads that step EnvPool's environments, or of
      processes that step the user's own, at least 1.
    render: whether `render` will be called.
    restarts: limit and count of restarts after failures of the user's
      environments; None for no restarts. Other environments never restart.

  Raises:
    types.ConfigError: `spec` would raise one, or a number is out of range.
  """
  kind, _ = _kind(config)
  if env_config.is_own(config):
    kind = functools.partial(kind, restarts=restarts)
  return kind(
    config,
    num_envs,
    batch_size=batch_size,
    seed=seed,
    num_threads=num_threads,
    render=render,
  )


def spec(config: env_config.Config) -> types.EnvironmentSpec:
  """Returns the spec of observations and actions of one environment.

  The first call for an environment of the user's makes one, in a separate
  process. Observations of 64 bits are narrowed to 32. Floats have no bounds,
  since an environment's bounds are often placeholders.

  Raises:
    types.ConfigError: the environment, an option, an info key, an entry of
      `log_info` (if it is known before an episode ends), the action mask or the
      transform is unknown or cannot be used, a system library is
      missing, or the actions are not supported.
  """
  _, make_spec = _kind(config)
  return make_spec(config)


_Spec = Callable[[env_config.Config], types.EnvironmentSpec]


def _kind(
  config: env_config.Config,
) -> tuple[Callable[..., Environment], _Spec]:
  """Imports the adapter of the environment's kind; returns class and `spec`."""
  if env_config.is_own(config):
    from seedx.envs import process_adapter

    return process_adapter.ProcessEnvironment, process_adapter.spec
  if not env_config.is_functional(config):
    from seedx.envs import envpool_adapter, envpool_spec

    return envpool_adapter.EnvPoolEnvironment, envpool_spec.spec
  try:
    from seedx.envs import functional_adapter
  except ImportError as error:
    raise types.ConfigError(
      "expected JAX, for an environment of JAX functions, found none"
      f" ({env_config.in_one_line(error)}); install jax on this machine"
    ) from error
  return functional_adapter.FunctionalEnvironment, functional_adapter.spec
