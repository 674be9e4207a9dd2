"""The interface of all environments, and how they are made."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from seedx import types
from seedx.envs import config as env_config

if TYPE_CHECKING:
  from seedx.envs.processes import restarts as restarts_lib


class Environment(Protocol):
  """Environments of one kind, of which `recv` returns those that are ready.

  One thread may call `recv` while another calls `send`. After an episode has
  ended, the environment's next action is ignored and its next row is the FIRST
  of a new episode, with reward 0 and discount 1. The discount is 0 where an
  episode terminates, but not where a time limit truncates it.

  Attributes:
    spec: observations and actions of one environment.
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
    """Waits for `batch_size` environments and returns their rows.

    The caller owns the arrays. Call it only while at least `batch_size`
    environments have been reset, or have been sent an action. On a LAST step,
    whose action is ignored, an action mask without a legal action becomes one
    where all are legal.

    Raises:
      RuntimeError: an environment has failed.
      ValueError: no action is legal, and yet the episode goes on.
    """
    ...

  def send(self, index: np.ndarray, action: np.ndarray) -> None:
    """Gives environments their actions.

    Args:
      index: `[B]` int32, environments that `recv` has returned and that have
        had no action since. B may differ from `batch_size`.
      action: `[B, *action_shape]`; floats are clipped to the bounds of
        `spec.action`.

    Raises:
      ValueError: the shape is wrong, or a discrete action is out of range.
    """
    ...

  def render(self) -> np.ndarray:
    """Renders environment 0 as a frame `[H, W, 3]` of uint8.

    No other thread may call `recv` meanwhile.

    Raises:
      types.ConfigError: it cannot be rendered, or `make` was not called with
        `render=True`.
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
  restarts: "restarts_lib.Restarts | None" = None,
) -> Environment:
  """Makes environments; `reset` starts them.

  Args:
    config: which environment: one of EnvPool's, of seedx's, or the user's own.
    num_envs: at least 1.
    batch_size: rows of a `recv`, from 1 to `num_envs`. If smaller than
      `num_envs`, `recv` returns the first that are ready while the others still
      step. None means `num_envs`: every `recv` returns all of them, in order.
    seed: environment k is seeded with `seed + k`.
    num_threads: at least 1; threads that step EnvPool's environments, or
      processes that step the user's own.
    render: whether `render` will be called.
    restarts: how the user's own are made again where one fails; None for not
      at all. Others cannot fail.

  Raises:
    types.ConfigError: as `spec` does, or where a number is out of range.
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
  """The observations and actions of one environment.

  Args:
    config: which environment. One of EnvPool's is not made for this; one of the
      user's own is made once, in a separate process.

  Returns:
    The spec. Observations of 64 bits are narrowed to 32. Floating point
    observations have no bounds, since those given are often placeholders.

  Raises:
    types.ConfigError: the environment, an option, an info key, the action mask
      or the transform is unknown or cannot be used, a system library is
      missing, or the actions are not supported.
  """
  _, described = _kind(config)
  return described(config)


_Spec = Callable[[env_config.Config], types.EnvironmentSpec]


def _kind(
  config: env_config.Config,
) -> tuple[Callable[..., Environment], _Spec]:
  """Imports what makes and describes environments of a kind.

  A process needs one of the three.

  Raises:
    types.ConfigError: it needs JAX, and there is none.
  """
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
      "expected JAX, for an environment of JAX functions, found none:"
      f" {env_config.in_one_line(error)}"
    ) from error
  return functional_adapter.FunctionalEnvironment, functional_adapter.spec
