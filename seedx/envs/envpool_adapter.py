"""Many EnvPool environments as batched `dm_env` time steps.

EnvPool's `dm` mode reports discount 0 on a time limit, so this is built on its
`gymnasium` mode.
"""

import warnings
from typing import Any

import dm_env
import envpool
import numpy as np
import tree

from seedx import types
from seedx.envs import config as env_config
from seedx.envs import envpool_spec, observations

_FIRST = np.uint8(dm_env.StepType.FIRST)
_MID = np.uint8(dm_env.StepType.MID)


class EnvPoolEnvironment:
  """Environments of one kind, of which `recv` returns those that are ready.

  One thread may call `recv` while another calls `send`; `recv` releases the
  interpreter while it waits. When an episode has ended, the next action of that
  environment is ignored and its next row is the FIRST of a new episode, with
  reward 0 and discount 1.

  The discount is 0 where an episode terminates and 1 elsewhere, at a time limit
  too. EnvPool says truncated where both happen in one step.

  Attributes:
    spec: what one environment takes and gives.
    num_envs: how many environments there are.
    batch_size: how many rows `recv` returns.
  """

  spec: types.EnvironmentSpec
  num_envs: int
  batch_size: int

  def __init__(
    self,
    config: env_config.Config,
    num_envs: int,
    *,
    batch_size: int | None = None,
    seed: int = 0,
    num_threads: int = 1,
    render: bool = False,
  ) -> None:
    """Makes the environments, as `envs.make` is told to; `reset` starts them.

    Raises:
      types.ConfigError: as `spec` does, or where a number is out of range.
    """
    batch_size = observations.check_numbers(
      num_envs, batch_size, num_threads, seed
    )
    pool_spec, options = envpool_spec.pool_spec_and_options(config)
    if render:
      options |= {"render_mode": "rgb_array"}
    self.spec = envpool_spec.environment_spec(config, pool_spec)
    self._name = config.env
    self.num_envs = num_envs
    self.batch_size = batch_size
    self._info_keys = envpool_spec.joined_info_keys(config, pool_spec)
    self._transform = (
      env_config.load_transform(config.observation_transform)
      if config.observation_transform
      else None
    )
    self._read_pool_spec(pool_spec)
    self._episode_ended = np.ones(num_envs, np.bool_)
    self._game_return = np.zeros(num_envs, np.float64)
    self._pool = envpool_spec.call(
      config.env,
      envpool.make,
      config.env,
      env_type="gymnasium",
      num_envs=num_envs,
      batch_size=batch_size,
      num_threads=num_threads,
      seed=seed,
      **options,
    )
    with warnings.catch_warnings():
      # Made on first use, when Gymnasium warns of EnvPool's float64 bounds.
      warnings.filterwarnings("ignore", message=".*precision lowered.*")
      _ = self._pool.observation_space

  def reset(self) -> None:
    """Starts every environment; call it once, before the first `recv`."""
    self._episode_ended[:] = True
    self._game_return[:] = 0
    self._pool.async_reset()

  def recv(self) -> types.Rows:
    """Waits for `batch_size` environments.

    Returns:
      Their rows. The arrays are the caller's own: EnvPool makes new ones every
      time. `episode_return` is the raw return of a whole game also where
      Atari's `episodic_life` ends episodes earlier or `reward_clip` clips; an
      emulator's rewards during the reset of an episode are never seen. Where
      an episode has ended, so that its next action is ignored, an action mask
      of no legal action becomes one of all.

    Raises:
      ValueError: an environment goes on, and yet no action is legal in it.
    """
    observation, reward, terminated, truncated, info = self._pool.recv()
    index = info["env_id"]
    last = terminated | truncated
    # Not `elapsed_step == 0`: after a life loss Atari's goes on counting.
    first = self._episode_ended[index]
    self._episode_ended[index] = last

    step_type = last.view(np.uint8) + _MID
    step_type[first] = _FIRST
    discount = (~terminated).astype(np.float32)
    reward[first] = 0  # Some of the control suite reward the reset.

    game_ended, raw_reward = last, reward
    if self._is_atari:
      game_ended = last & (truncated | (info["terminated"] != 0))
      raw_reward = info["reward"]
    game_return = self._game_return[index] + raw_reward
    self._game_return[index] = np.where(game_ended, 0, game_return)
    game_return[~game_ended] = np.nan
    observation = self._observation(observation, info)
    observation = observations.with_legal_actions(
      self.spec, observation, index, last
    )
    return types.Rows(
      index=index,
      timestep=dm_env.TimeStep(step_type, reward, discount, observation),
      episode_return=game_return.astype(np.float32),
    )

  def send(self, index: np.ndarray, action: np.ndarray) -> None:
    """Gives environments their actions.

    Args:
      index: `[B]` int32, environments that `recv` returned and that have had no
        action since. B is `batch_size` or any other number.
      action: `[B]` or `[B, A]` integers, or `[B, A]` floats, which are clipped
        to the bounds of `spec.action`.

    Raises:
      ValueError: the shape is another, or a discrete action is out of range;
        EnvPool would read memory that is not its own.
    """
    action = observations.checked_action(
      self.spec.action, index, action, self._action_dtype, self._high
    )
    if np.issubdtype(self.spec.action.dtype, np.floating):
      action = np.clip(action, self._low, self._high)
    self._pool.send(action, index)

  def render(self) -> np.ndarray:
    """A frame of environment 0, which was made with `render`.

    Returns:
      `[H, W, 3]` uint8.

    Raises:
      types.ConfigError: the environment has no frames. `check_render` finds
        out in a process of its own: some environments end theirs instead.
    """
    try:
      frames = self._pool.render(env_ids=0)
    except Exception as error:
      raise types.ConfigError(
        f"{self._name} cannot be rendered: {error}"
      ) from error
    return observations.checked_frame(frames[0], self._name)

  def close(self) -> None:
    """Ends the environments and their threads; `recv` must not be waiting."""
    if self._pool is not None:
      self._pool.close()
      self._pool = None  # EnvPool joins its threads when it is destroyed.

  def _read_pool_spec(self, pool_spec: Any) -> None:
    self._is_atari = envpool_spec.is_atari(pool_spec)
    untouched = not self._info_keys and self._transform is None
    self._pass_observation_on = untouched and all(
      array_spec.dtype == env_config.narrowed(np.dtype(array_spec.dtype))
      for key, array_spec in pool_spec.state_array_spec.items()
      if key.split(":")[0] == "obs"
    )
    action_spec = envpool_spec.action_array_spec(pool_spec)
    self._action_dtype = np.dtype(action_spec.dtype)
    self._low = np.asarray(action_spec.minimum, self._action_dtype)
    self._high = np.asarray(action_spec.maximum, self._action_dtype)

  def _observation(
    self, observation: types.Tree, info: dict[str, Any]
  ) -> types.Tree:
    if self._pass_observation_on:
      return observation
    observation = observations.joined(observation, info, self._info_keys)
    observation = tree.map_structure(_narrow, observation)
    return observations.seen(self.spec, self._transform, observation)


def _narrow(array: np.ndarray) -> np.ndarray:
  return array.astype(env_config.narrowed(array.dtype), copy=False)
