"""Trains Stable-Baselines3's PPO on CartPole; prints its progress."""

import sys

from stable_baselines3 import ppo
from stable_baselines3.common import callbacks, env_util

_ENVS, _UNROLL_LENGTH = 512, 32


class _Printer(callbacks.BaseCallback):
  """Prints the progress before each rollout except the first."""

  def _on_rollout_start(self) -> None:
    returns = [x["r"] for x in self.model.ep_info_buffer]
    if returns:
      episode_return = sum(returns) / len(returns)
      print(f"env_steps={self.num_timesteps} episode_return={episode_return}")

  def _on_step(self) -> bool:
    return True


def main() -> int:
  """Trains until the process is killed."""
  agent = ppo.PPO(
    "MlpPolicy",
    env_util.make_vec_env("CartPole-v1", n_envs=_ENVS),
    n_steps=_UNROLL_LENGTH,
    batch_size=_ENVS * _UNROLL_LENGTH // 4,
    n_epochs=4,
    learning_rate=2.5e-3,
    ent_coef=0.01,
    device="cpu",
  )
  agent.learn(10**10, callback=_Printer())
  return 0


if __name__ == "__main__":
  sys.exit(main())
