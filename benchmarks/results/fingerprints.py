"""Fingerprints: digests that change when the training of a row changes.

A fingerprint is a digest of the acting parameters after 20 updates with the
row's agent, environment and settings, also its total number of env steps, which
schedules depend on. Starts are shortened: a replay is filled for 512 env steps,
and target networks and epsilon have short periods. Parameters count by their
values alone, so that new names change nothing. `sync`, `anakin` and `evolution`
train as they are, the last one in one process with short episodes. For other
pipelines the agent trains in `sync` with the same batch: their fingerprints are
of the agent, and not of the pipeline.

Equal programs have equal fingerprints on the same kind of CPU with the same
versions of JAX.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.results import data
from seedx.app.studies import trials
from seedx.learning import learner
from seedx.pipelines import anakin, evolution, sync
from seedx.runtime import process

_UPDATES = 20
_REPLAY_STEPS = 512
_EPISODE_STEPS = 50
_PERIODS = {"target_period": 5, "epsilon_steps": 1_000}


def of_rows(
  names: Sequence[str], root: pathlib.Path = data.ROOT
) -> dict[str, str]:
  """Computes the fingerprints of rows, as of the checkout at `root`.

  A child process with one XLA thread computes them. A row that the checkout
  lacks, or cannot train, has no entry in the result.
  """
  environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
  environment |= {"PJRT_NPROC": "1", "JAX_PLATFORMS": "cpu"}
  environment |= {"PYTHONPATH": str(root)}
  child = subprocess.run(
    [sys.executable, "-m", __name__, *names],
    cwd=root,
    env=environment,
    stdout=subprocess.PIPE,
    text=True,
  )
  digests: dict[str, str] = {}
  for line in child.stdout.splitlines():
    digests |= json.loads(line)
  return digests


def of_words(words: Sequence[str]) -> str:
  """Trains with the words after `seedx train`; returns the digest."""
  return of_config(trials.read(words).run)


def of_config(config: Any) -> str:
  """Trains with a pipeline's config for some updates; returns the digest."""
  trainer = shortened(config).learn(process.Context())
  assert trainer.steps is not None
  with contextlib.closing(trainer.steps()) as steps:
    for _ in steps:
      updates = trainer.measure()["learner_steps"]
      if updates is not None and updates >= _UPDATES:
        break
  digest = of_values(trainer.policy(trainer.saved()))
  trainer.close()
  return digest


def shortened(config: Any) -> Any:
  """Returns the config of a pipeline without other processes; learns soon."""
  config = _in_lock_step(config)
  if isinstance(config, evolution.Config):
    return config
  periods = {
    name: min(getattr(config.agent, name), period)
    for name, period in _PERIODS.items()
    if hasattr(config.agent, name)
  }
  agent = dataclasses.replace(config.agent, **periods)
  replay = config.replay
  if replay is not None:
    min_steps = min(replay.replay_min_steps, _REPLAY_STEPS)
    replay = dataclasses.replace(replay, replay_min_steps=min_steps)
  return dataclasses.replace(config, agent=agent, replay=replay)


def of_values(tree: Any) -> str:
  """Returns a digest of all arrays of a nest, whatever their names."""
  arrays = [np.ascontiguousarray(x) for x in jax.tree.leaves(tree)]
  digests = sorted(
    hashlib.sha256(f"{x.shape}{x.dtype}".encode() + x.tobytes()).hexdigest()
    for x in arrays
  )
  return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def is_of_agent(words: Sequence[str]) -> bool:
  """Returns whether a fingerprint is of the agent, and not of the pipeline."""
  run = trials.read(words).run
  return type(_in_lock_step(run)) is not type(run)


def _in_lock_step(config: Any) -> Any:
  """Returns the config itself, or that of `sync` with the same agent."""
  if isinstance(config, anakin.Config | sync.Config):
    return config
  if isinstance(config, evolution.Config):
    population = dataclasses.replace(
      config.population, num_workers=0, max_episode_steps=_EPISODE_STEPS
    )
    return dataclasses.replace(config, population=population)
  if hasattr(config, "workers"):
    num_envs = config.workers.envs_per_worker
    unroll_length = config.workers.unroll_length
  else:
    num_envs = config.learner.batch_size
    unroll_length = config.learner.unroll_length
  return sync.Config(
    env=config.env,
    agent=config.agent,
    seed=config.seed,
    total_steps=config.total_steps,
    num_envs=num_envs,
    learner=learner.Config(unroll_length=unroll_length),
    replay=getattr(config, "replay", None),
  )


def _main(names: Sequence[str]) -> int:
  """Prints a line of JSON for each row that the checkout can train."""
  commands = {
    name: data.rows()[name].words for name in names if name in data.rows()
  }
  # Rows whose commands are equal are trained once.
  by_command = sorted(commands, key=lambda name: commands[name])
  for words, group in itertools.groupby(
    by_command, key=lambda name: commands[name]
  ):
    try:
      digest = of_words(words)
    except (Exception, SystemExit) as error:
      print(f"{' '.join(words)}: {error}", file=sys.stderr)
      continue
    print(json.dumps(dict.fromkeys(group, digest)), flush=True)
  return 0


if __name__ == "__main__":
  sys.exit(_main(sys.argv[1:]))
