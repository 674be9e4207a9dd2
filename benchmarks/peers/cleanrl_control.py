"""Runs a program of CleanRL unchanged on EnvPool, and evaluates its actor.

  python cleanrl_control.py SETTINGS CHECKOUT/cleanrl/PROGRAM.py --env-id ...

SETTINGS is a JSON object with the fields of `Settings`; CleanRL's own options
follow its program. `gymnasium.make(env)` returns EnvPool's environment, with
its physics and its time limit. After each `every` env steps, before the next
one, the actor plays whole episodes without noise in other environments, which
takes nothing from the random numbers of the training. Each evaluation is a line
of JSON in `output`.
"""

import json
import pathlib
import runpy
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import envpool
import gymnasium
import numpy as np
import torch


class Settings(NamedTuple):
  """The first argument.

  Attributes:
    env: name of the EnvPool environment.
    seed: seed of the evaluations' environments, which differ between seeds.
    every: number of env steps between two evaluations.
    episodes: number of episodes of an evaluation.
    output: file to which evaluations are appended.
  """

  env: str
  seed: int
  every: int
  episodes: int
  output: str


class Evaluations:
  """Evaluations of the actor in the globals of the running program."""

  def __init__(self, settings: Settings) -> None:
    self._settings = settings
    self._env_steps = self._last_steps = 0

  def begin_step(self) -> None:
    """Evaluates if it is due, and counts the env step that follows."""
    self.evaluate_if_due()
    self._env_steps += 1

  def evaluate_if_due(self) -> None:
    """Evaluates once after each `every` env steps."""
    steps, settings = self._env_steps, self._settings
    if steps == self._last_steps or steps % settings.every:
      return
    self._last_steps = steps
    # Training's seeds are small, so no environment has the seed of another.
    seed = 10**7 * (settings.seed + 1) + steps
    returns = _play(settings.env, seed, settings.episodes, _actor())
    line = {
      "env_steps": steps,
      "mean": float(np.mean(returns)),
      "returns": returns.tolist(),
    }
    with open(settings.output, "a", encoding="utf-8") as file:
      file.write(json.dumps(line) + "\n")


class PoolEnv(gymnasium.Env[np.ndarray, np.ndarray]):
  """One environment of EnvPool with Gymnasium's methods.

  EnvPool's step after an episode's last one resets and ignores its action.
  Gymnasium's vector environment calls `reset` instead, before any such step.
  """

  def __init__(self, env: str, evaluations: Evaluations) -> None:
    self._name, self._evaluations = env, evaluations
    self._pool = _pool(env, num_envs=1, seed=0)
    self.observation_space = self._pool.observation_space
    space = self._pool.action_space
    # Gymnasium's MuJoCo has float32, too.
    self.action_space = gymnasium.spaces.Box(
      space.low.astype(np.float32), space.high.astype(np.float32)
    )

  def reset(
    self, *, seed: int | None = None, options: dict[str, Any] | None = None
  ) -> tuple[np.ndarray, dict[str, Any]]:
    """Begins an episode, the first one of new environments with a seed."""
    super().reset(seed=seed, options=options)
    if seed is not None:
      self._pool = _pool(self._name, num_envs=1, seed=seed)
    observation, _ = self._pool.reset()
    return observation[0], {}

  def step(
    self, action: np.ndarray
  ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
    """Steps; a time limit truncates the episode and does not terminate it."""
    self._evaluations.begin_step()
    observation, reward, terminated, truncated, _ = self._pool.step(
      action.astype(np.float64)[None]
    )
    return (
      observation[0],
      float(reward[0]),
      bool(terminated[0]),
      bool(truncated[0]),
      {},
    )

  def close(self) -> None:
    """Evaluates the parameters at the end of the run, if it is due."""
    self._evaluations.evaluate_if_due()


def main() -> int:
  """Runs the program with its options."""
  settings = Settings(**json.loads(sys.argv[1]))
  program = pathlib.Path(sys.argv[2]).resolve()
  torch.set_num_threads(1)
  evaluations = Evaluations(settings)

  def make(**options: Any) -> PoolEnv:
    return PoolEnv(settings.env, evaluations, **options)

  gymnasium.register(settings.env, entry_point=make, disable_env_checker=True)
  sys.path.insert(0, str(program.parents[1]))  # It imports `cleanrl_utils`.
  sys.argv = sys.argv[2:]
  runpy.run_path(str(program), run_name="__main__")
  return 0


def _pool(env: str, *, num_envs: int, seed: int) -> Any:
  return envpool.make(
    env, env_type="gymnasium", num_envs=num_envs, num_threads=1, seed=seed
  )


def _actor() -> Callable[[np.ndarray], np.ndarray]:
  """Returns the actor's mean action, with the parameters of this moment."""
  # `runpy` makes the program's globals those of the module `__main__`.
  names = vars(sys.modules["__main__"])
  actor = names["actor"]
  if "actor_state" in names:
    params = names["actor_state"].params
    return lambda observation: np.asarray(actor.apply(params, observation))

  def act(observation: np.ndarray) -> np.ndarray:
    # `get_action` would take from the training's random numbers.
    with torch.no_grad():
      mean, _ = actor(torch.Tensor(observation))
      action = torch.tanh(mean) * actor.action_scale + actor.action_bias
    return action.numpy()

  return act


def _play(
  env: str, seed: int, episodes: int, act: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
  """Returns the returns of the first episode of each environment."""
  pool = _pool(env, num_envs=episodes, seed=seed)
  observation, _ = pool.reset()
  returns = np.zeros(episodes, np.float64)
  playing = np.ones(episodes, np.bool_)
  while playing.any():
    observation, reward, terminated, truncated, info = pool.step(
      act(observation).astype(np.float64)
    )
    assert np.array_equal(info["env_id"], np.arange(episodes))
    returns += np.where(playing, reward, 0.0)
    playing &= ~(terminated | truncated)
  return returns


if __name__ == "__main__":
  sys.exit(main())
