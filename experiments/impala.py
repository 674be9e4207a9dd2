"""Trains an agent in the pipeline IMPALA: actors with a copy of the parameters.

  python -m experiments.impala --env CartPole-v1

It starts its own actors. On several machines, with the options for TLS and a
token that `experiments.certificates --help` shows:

  python -m experiments.impala --role learner --address 0.0.0.0:8470
  python -m seedx.join learner-host:8470

Some defaults depend on the environment: `--env Pong-v5 --help` shows them.
"""

import sys

from seedx import app
from seedx.acting import slots
from seedx.agents import a2c, dqn, ppo, vtrace
from seedx.learning import learner
from seedx.pipelines import impala


def _policy(config: impala.Config, **values: float) -> impala.Config:
  """Changes what only agents with a policy have."""
  has_policy = not isinstance(config.agent, dqn.Config)
  return app.change(**values)(config) if has_policy else config


def _continuous(config: impala.Config) -> impala.Config:
  config = _policy(config, entropy_cost=0.0)
  return app.change(learning_rate=1e-3, discount=0.95)(config)


def _images(config: impala.Config) -> impala.Config:
  return app.change(
    total_steps=10_000_000,
    envs_per_actor=8,
    unroll_length=64,
    batch_size=4,
    micro_batches=4,
    learning_rate=5e-4,
    reward_scale=1.0,
    reward_clip=1.0,
    stack_frames=4,
  )(_policy(config, td_lambda=0.95, entropy_cost=0.003))


EXPERIMENT = app.Experiment(
  impala.Config(
    agent=vtrace.Config(),
    actors=slots.Config(envs_per_actor=32),
    learner=learner.InboxConfig(batch_size=32),
  ),
  agents={
    "vtrace": vtrace.Config(),
    "a2c": a2c.Config(),
    "ppo": ppo.Config(),
    "dqn": dqn.Config(),
  },
  # It has minibatches of its own.
  by_agent={"ppo": app.change(micro_batches=1)},
  continuous=_continuous,  # Pendulum-v1, 2M, seed 0: -237.
  images=_images,  # Those of `seed_vtrace`; not measured here.
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
