"""A learner host that a test starts: makes some updates, and saves the results.

`python -m tests.host_updates INDEX COORDINATOR FOLDER`.
"""

import dataclasses
import functools
import pathlib
import sys
import threading

import jax
import numpy as np

from seedx import sharding, signals, types
from seedx.agents import ppo
from seedx.learning import experience, learner, multihost
from seedx.runtime import host_links, hosts

HOSTS, CORES = 2, 2


@functools.cache
def shared():
  """Imports `cases`, which computes; the hosts must have joined."""
  from tests.learning import cases

  return cases


def normalizing_agent():
  return shared().agent_of()


def ppo_agent():
  config = ppo.Config(hidden_sizes=(16,), epochs=2, minibatches=5)
  return config.make(shared().SPEC, sharding.CORES)


# Each case: agent, micro-batches, seeds of batches, hosts that have a batch.
CASES = {
  "normalized": (normalizing_agent, 1, range(3), {0, 1}),
  "starved, micro-batches": (normalizing_agent, 2, [0, 1], {1}),
  "ppo": (ppo_agent, 1, [0, 1], {0, 1}),
  "idle": (ppo_agent, 1, [0], set()),
}


def part(seed, index, parts=HOSTS):
  """Returns a host's part of a batch."""
  unroll = types.Share(shared().unroll_of(seed), ())
  return sharding.shard(unroll, sharding.SHARE, index, parts).data


def leaves(learning):
  """Returns the state as NumPy arrays, without the count of resets.

  A host without a batch counts all its steps as resets.
  """
  state = dataclasses.replace(learning.state, resets=())
  return [np.asarray(x) for x in jax.tree.leaves(state)]


def updated(name, index):
  """Returns a host's state after and before the updates, and its metrics."""
  make, micro_batches, seeds, have = CASES[name]
  among = hosts.Hosts(index, HOSTS)
  among.acted(1, 10**9)
  config = learner.InboxConfig(
    hosts=HOSTS,
    host_index=index,
    coordinator="127.0.0.1:1",
    unroll_length=shared().LENGTH - 1,
    learner_devices=tuple(range(CORES)),
    micro_batches=micro_batches,
    batch_size=shared().BATCH,
  )
  source = experience.Once()
  learning = multihost.MultihostLearner(
    make(), config, source, shared().KEY, hosts=among
  )
  before = leaves(learning)
  learning.warm_up(learning.shares(part(0, index)))
  for seed in seeds:
    shares = learning.shares(part(seed, index))
    (batch,) = source(shares)
    learning.learn(batch if index in have else None)
  learning.finish()
  return leaves(learning), before, learning.measure()


def main(index, coordinator, folder):
  """Makes the updates of all cases, and saves their results."""
  config = hosts.Config(HOSTS, int(index), coordinator)
  with host_links.joined(config, threading.Event(), signals.Ending()) as all_:
    for name in CASES:
      after, before, line = updated(name, all_.index)
      path = pathlib.Path(folder) / f"{name}-{all_.index}.npz"
      arrays = {f"after-{i}": x for i, x in enumerate(after)}
      arrays |= {f"before-{i}": x for i, x in enumerate(before)}
      steps = {x: line[x] for x in ("learned_steps", "learner_steps")}
      np.savez(path, **arrays, **steps)


if __name__ == "__main__":
  main(*sys.argv[1:])
