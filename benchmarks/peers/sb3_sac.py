"""Trains Stable-Baselines3's SAC on Pendulum; prints its progress.

Each env step is followed by one update of batch 256, as is its default.
"""

import sys

import torch
from stable_baselines3 import sac
from stable_baselines3.common import callbacks

_PERIOD = 100


class _Printer(callbacks.BaseCallback):
  """Prints the progress every `_PERIOD` env steps, once there are updates."""

  def _on_step(self) -> bool:
    returns = [x["r"] for x in self.model.ep_info_buffer]
    steps = self.num_timesteps
    is_learning = steps > self.model.learning_starts
    if is_learning and returns and steps % _PERIOD == 0:
      episode_return = sum(returns) / len(returns)
      print(f"env_steps={steps} episode_return={episode_return}")
    return True


def main() -> int:
  """Trains until the process is killed."""
  torch.set_num_threads(1)
  agent = sac.SAC("MlpPolicy", "Pendulum-v1", device="cpu")
  agent.learn(10**10, callback=_Printer())
  return 0


if __name__ == "__main__":
  sys.exit(main())
