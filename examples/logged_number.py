"""Logs numbers of a loss: PPO's mean advantage where the ratio is clipped.

  seedx train examples/logged_number.py --run-dir runs/logged

Each entry of a loss's `diagnostics`, `[T, B]`, becomes a metric of this name:
its mean over the steps of an update, in `metrics.jsonl`, TensorBoard and your
own sinks.
"""

import dataclasses
import functools

import jax.numpy as jnp

from seedx import app
from seedx.agents import ppo
from seedx.pipelines import sync


def loss(evaluated, minibatch, hyperparameters, **options):
  steps = ppo.loss(evaluated, minibatch, hyperparameters, **options)
  clipped = steps.diagnostics["clip_fraction"]
  number = jnp.abs(minibatch.advantage) * clipped
  return steps._replace(
    diagnostics=steps.diagnostics | {"clipped_advantage": number}
  )


@dataclasses.dataclass(frozen=True)
class Config(ppo.Config):
  def make(self, spec, axis_name=None, horizon=None):
    own = functools.partial(loss, clip_values=self.clip_values)
    return ppo.make(spec, self, own, axis_name, horizon)


EXPERIMENT = app.Experiment(sync.Config(agent=Config(), total_steps=100_000))
