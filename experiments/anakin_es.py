"""Trains an evolution strategy whose population plays on the devices.

python -m experiments.anakin_es --env seedx:CartPole-v1
python -m experiments.anakin_es --agent ars --pairs 16
"""

import sys

from seedx import app
from seedx.agents import evolution
from seedx.pipelines.evolution import on_device

EXPERIMENT = app.Experiment(
  on_device.Config(total_steps=5_000_000, agent=evolution.Config()),
  agents={"es": evolution.Config(), "ars": evolution.ARSConfig()},
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
