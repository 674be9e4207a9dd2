"""Trains Sample Factory's APPO on EnvPool's CartPole; its log has the progress.

  python sample_factory_appo.py EPOCHS TRAIN_DIRECTORY

The settings are those of Sample Factory's EnvPool examples, as far as they
apply to small vectors. Two workers sample while the learner learns.
"""

import sys
from typing import Any

import envpool
from sample_factory import train
from sample_factory.cfg import arguments
from sample_factory.envs import env_utils
from sf_examples.envpool import envpool_wrappers

_WORKERS, _ENVS, _UNROLL_LENGTH = 2, 1024, 20
_OPTIONS = [
  "--env=CartPole-v1",
  "--experiment=cartpole",
  "--device=cpu",
  "--batched_sampling=True",
  "--async_rl=True",
  "--num_policies=1",
  f"--num_workers={_WORKERS}",
  "--num_envs_per_worker=1",
  "--worker_num_splits=1",
  "--use_rnn=False",
  "--nonlinearity=tanh",
  "--normalize_input=False",
  f"--rollout={_UNROLL_LENGTH}",
  "--recurrence=1",
  f"--batch_size={_ENVS * _UNROLL_LENGTH}",
  "--num_batches_per_epoch=1",
  "--reward_scale=0.1",
  "--learning_rate=0.002",
  "--train_for_env_steps=10000000000",
]


def main() -> int:
  """Trains until the process is killed."""
  epochs, directory = sys.argv[1:]
  env_utils.register_env("CartPole-v1", _make)
  words = [*_OPTIONS, f"--num_epochs={epochs}", f"--train_dir={directory}"]
  # The units of both layers are separate words.
  words += ["--encoder_mlp_layers", "64", "64"]
  parser, _ = arguments.parse_sf_args(argv=words)
  return train.run_rl(arguments.parse_full_cfg(parser, words))


def _make(name: str, config: Any, env_config: Any, *_: Any) -> Any:
  seed = env_config.env_id if env_config else 0
  environments: Any = envpool.make(
    name, env_type="gym", num_envs=_ENVS, num_threads=1, seed=seed
  )
  # Gymnasium's `close` reads this attribute, which EnvPool lacks.
  environments.closed = True
  environments = envpool_wrappers.EnvPoolResetFixWrapper(environments)
  environments.num_agents = _ENVS
  return environments


if __name__ == "__main__":
  sys.exit(main())
