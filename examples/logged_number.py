"""Logs numbers of a loss: PPO's mean advantage where the ratio is clipped.

  python examples/logged_number.py --run-dir runs/logged

Each entry of a loss's `diagnostics`, `[T, B]`, becomes a metric of this name:
its mean over the steps of an update, in `metrics.jsonl`, TensorBoard and your
own sinks.
"""

import dataclasses
import functools
import sys
from typing import Any

import jax.numpy as jnp

from seedx import app, losses
from seedx.agents import ppo
from seedx.pipelines import sync


def loss(
  evaluated: Any, minibatch: Any, hyperparameters: Any, **options: Any
) -> losses.ActorCriticLoss:
  """PPO's loss with one more diagnostic."""
  steps = ppo.loss(evaluated, minibatch, hyperparameters, **options)
  clipped = steps.diagnostics["clip_fraction"]
  number = jnp.abs(minibatch.advantage) * clipped
  return steps._replace(
    diagnostics=steps.diagnostics | {"clipped_advantage": number}
  )


@dataclasses.dataclass(frozen=True)
class Config(ppo.Config):
  """PPO with that loss."""

  def make(self, spec: Any, axis_name: Any = None, horizon: Any = None) -> Any:
    """See `base.Config.make`."""
    own = functools.partial(loss, clip_values=self.clip_values)
    return ppo.make(spec, self, own, axis_name, horizon)


EXPERIMENT = app.Experiment(sync.Config(agent=Config(), total_steps=100_000))

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))
