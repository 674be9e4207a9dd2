"""Trains QT-Opt: labellers store targets, from which the learner learns.

  python -m experiments.qt_opt --env Pendulum-v1
  python -m experiments.qt_opt --dataset data --total-steps 10000

The program starts its own actors and labellers; for several machines, see
`impala`. With `--dataset`, there are no actors, and the number of steps is that
of updates. Set `--value-min` and `--value-max` to the bounds of the discounted
return.
"""

import sys

from seedx import app, envs
from seedx.acting import protocol
from seedx.agents import qt_opt as agent
from seedx.learning import learner
from seedx.pipelines import qt_opt

EXPERIMENT = app.Experiment(
  qt_opt.Config(
    env=envs.Config("Pendulum-v1"),
    total_steps=30_000,
    # The worst reward of Pendulum, for ever, is -16.2736 / (1 - 0.99).
    agent=agent.Config(value_min=-1_627.36, value_max=0.0),
    actors=protocol.Actors(num_actors=1, envs_per_actor=1),
    learner=learner.InboxConfig(unroll_length=4, batch_size=1),
    replay=agent.REPLAY,
  ),
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
