"""EnvPool environments as batched `dm_env` time steps.

The environments run in EnvPool's `gymnasium` mode, since its `dm` mode reports
a discount of 0 at a time limit.
"""

import dm_env
import numpy as np
import tree

from seedx import types
from seedx.envs import config as env_config
from seedx.envs import env_specs, envpool_spec, finishing

_FIRST = np.uint8(dm_env.StepType.FIRST)
_MID = np.uint8(dm_env.StepType.MID)


class EnvPoolEnvironment:
  """EnvPool environments; see `envs.Environment` and `envs.make`.

  `recv` releases the interpreter's lock while it waits. If an episode
  terminates and reaches its time limit in the same step, EnvPool reports a
  truncation, with discount 1.
  """

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
    self.num_envs = num_envs
    self.batch_size = finishing.check_numbers(
      num_envs, batch_size, num_threads, seed
    )
    pool_spec, options = envpool_spec.pool_spec_and_options(config)
    if render:
      options |= {"render_mode": "rgb_array"}
    self.spec, self._info_keys = envpool_spec.environment_spec(
      config, pool_spec
    )
    self._name = config.env
    self._is_atari = envpool_spec.is_atari(pool_spec)
    self._finish = finishing.Finisher(
      config, seed, self.spec, env_config.load_transform(config)
    )
    dtypes = [
      np.dtype(array_spec.dtype)
      for array_spec in envpool_spec.observation_array_specs(pool_spec).values()
    ]
    self._must_narrow = bool(self._info_keys) or dtypes != [
      env_specs.narrowed(dtype) for dtype in dtypes
    ]
    self._separate, self._native = envpool_spec.action_specs(
      config.env, pool_spec
    )
    action_spec = envpool_spec.action_array_spec(pool_spec)
    self._action_dtype = np.dtype(action_spec.dtype)
    self._episode_ended = np.ones(num_envs, np.bool_)
    self._game_return = np.zeros(num_envs, np.float64)
    self._pool = envpool_spec.make_pool(
      config.env,
      num_envs=num_envs,
      batch_size=self.batch_size,
      num_threads=num_threads,
      seed=seed,
      **options,
    )

  def reset(self) -> None:
    """See `envs.Environment`."""
    self._episode_ended[:] = True
    self._game_return[:] = 0
    self._pool.async_reset()

  def recv(self) -> types.Rows:
    """See `envs.Environment`.

    `episode_return` is the raw return of a whole game, even if Atari's
    `episodic_life` ends episodes earlier or `reward_clip` clips rewards. The
    emulator's rewards during a reset do not count.
    """
    observation, reward, terminated, truncated, info = self._pool.recv()
    index = info["env_id"]
    last = terminated | truncated
    # Not from `elapsed_step`, which Atari does not reset after a life loss.
    first = self._episode_ended[index]
    self._episode_ended[index] = last

    step_type = last.view(np.uint8) + _MID
    step_type[first] = _FIRST
    discount = (~terminated).astype(np.float32)
    # Some environments of the control suite return a reward for a reset.
    reward[first] = 0

    game_ended, raw_reward = last, reward
    if self._is_atari:
      game_ended = last & (truncated | (info["terminated"] != 0))
      raw_reward = info["reward"]
    game_return = self._game_return[index] + raw_reward
    self._game_return[index] = np.where(game_ended, 0, game_return)
    game_return[~game_ended] = np.nan
    last_info: types.Tree = ()
    if self.spec.log_info:
      numbers = [info[key].reshape(len(index)) for key in self.spec.log_info]
      last_info = np.stack(numbers, axis=1).astype(np.float32)
      last_info[~game_ended] = np.nan

    observation = env_specs.joined(observation, info, self._info_keys)
    if self._must_narrow:
      observation = tree.map_structure(_narrow, observation)
    timestep = dm_env.TimeStep(step_type, reward, discount, observation)
    return types.Rows(
      index=index,
      timestep=self._finish(index, last, timestep),
      episode_return=game_return.astype(np.float32),
      info=last_info,
    )

  def send(self, index: np.ndarray, action: np.ndarray) -> None:
    """See `envs.Environment`."""
    # Else EnvPool would read beyond the end of an array that is too small.
    action = finishing.checked_action(
      self.spec.action, self._separate, index, action
    )
    native = self._native
    action = action.reshape(-1, *native.shape)
    action = action.astype(self._action_dtype, copy=False)
    if native.dtype.kind == "f":
      action = np.clip(action, native.minimum, native.maximum)
    self._pool.send(action, index)

  def render(self) -> np.ndarray:
    """See `envs.Environment`.

    Some environments end their process if they cannot be rendered, so
    `rendering.check_render` first renders in another process.
    """
    try:
      frames = self._pool.render(env_ids=0)
    except Exception as error:
      raise types.ConfigError(
        f"{self._name} cannot be rendered: {error}"
      ) from error
    return finishing.checked_frame(frames[0], self._name)

  def close(self) -> None:
    """See `envs.Environment`."""
    if self._pool is not None:
      self._pool.close()
      self._pool = None  # The pool joins its threads when it is destroyed.


def _narrow(array: np.ndarray) -> np.ndarray:
  dtype = env_specs.narrowed(array.dtype)
  env_specs.check_fits("the observation", array, dtype)
  return array.astype(dtype, copy=False)
