"""Trains PureJaxRL's PPO on CartPole, again and again; prints its progress.

  python purejaxrl_ppo.py CHECKOUT_OF_PUREJAXRL

Each training is one call of a compiled program, so it prints one line.
"""

import itertools
import sys
import types

import jax

_ENVS, _UNROLL_LENGTH, _UPDATES = 512, 32, 64
_STEPS = _ENVS * _UNROLL_LENGTH * _UPDATES
_CONFIG = {
  "LR": 2.5e-3,
  "NUM_ENVS": _ENVS,
  "NUM_STEPS": _UNROLL_LENGTH,
  "TOTAL_TIMESTEPS": _STEPS,
  "UPDATE_EPOCHS": 4,
  "NUM_MINIBATCHES": 4,
  "GAMMA": 0.99,
  "GAE_LAMBDA": 0.95,
  "CLIP_EPS": 0.2,
  "ENT_COEF": 0.01,
  "VF_COEF": 0.5,
  "MAX_GRAD_NORM": 0.5,
  "ACTIVATION": "tanh",
  "ENV_NAME": "CartPole-v1",
  "ANNEAL_LR": True,
}
# Modules of other environments that PureJaxRL's wrappers import.
_UNUSED = {
  "brax": ["envs"],
  "brax.envs": [],
  "brax.envs.wrappers": [],
  "brax.envs.wrappers.training": ["EpisodeWrapper", "AutoResetWrapper"],
  "navix": [],
}


def main() -> None:
  """Trains until the process is killed."""
  for name, attributes in _UNUSED.items():
    sys.modules[name] = module = types.ModuleType(name)
    for attribute in attributes:
      setattr(module, attribute, None)
  sys.path.insert(0, f"{sys.argv[1]}/purejaxrl")
  import ppo  # type: ignore[import-not-found]

  train = jax.jit(ppo.make_train(dict(_CONFIG)))
  for number in itertools.count(1):
    metrics = jax.block_until_ready(train(jax.random.key(number)))["metrics"]
    episode_return = metrics["returned_episode_returns"][-1].mean()
    print(
      f"env_steps={number * _STEPS} episode_return={episode_return}", flush=True
    )


if __name__ == "__main__":
  main()
