"""Gorila: workers with a replay of their own, and sharded parameter servers.

    worker: EnvPool <-> act -> replay -> gradients --.   .-> server: shard 0
    worker: EnvPool <-> act -> replay -> gradients ----X---> server: shard 1
    worker: EnvPool <-> act -> replay -> gradients --'   '-> server: shard 2
               ^                                                  |
               '----------- the newest parameters <---------------'

Every worker acts, replays and learns by itself (bundled mode). It sends each
gradient in parts to the parameter servers. Each server applies its part with
its own optimizer, and replies with its newest parameters; no worker waits for
another. Servers drop gradients that are too stale, workers those whose loss is
an outlier. The run goes on when a worker dies, and a server that is started
again gets its parameters back from the workers. A coordinator counts env steps,
and ends the run. Nair et al. 2015, "Massively Parallel Methods
for Deep Reinforcement Learning", https://arxiv.org/abs/1507.04296, figures 2
and 3; with DQN it is their algorithm 1. Workers that send gradients to sharded
parameter servers, each in its own time, are the pattern of DistBelief (Downpour
SGD): Dean et al. 2012, "Large Scale Distributed Deep Networks", section 4.1.
"""

from seedx.pipelines.gorila.coordinator import Config

__all__ = ["Config"]
