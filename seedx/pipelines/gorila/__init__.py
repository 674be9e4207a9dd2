"""Gorila: workers with a replay of their own, and sharded parameter servers.

    worker: EnvPool <-> act -> replay -> gradients --.   .-> server: shard 0
    worker: EnvPool <-> act -> replay -> gradients ----X---> server: shard 1
    worker: EnvPool <-> act -> replay -> gradients --'   '-> server: shard 2
               ^                                                  |
               '----------- the newest parameters <---------------'

Every worker acts, replays and learns by itself (bundled mode). It sends each
gradient in parts to the parameter servers, each of which applies its part with
an optimizer of its own and answers with its newest parameters; nobody waits for
another worker. A server drops gradients that are too stale, a worker those
whose loss is an outlier. A worker that dies is not missed, and a server that
dies gets its parameters back from the workers. A coordinator counts what is
done, and says when it is enough. Nair et al. 2015, "Massively Parallel Methods
for Deep Reinforcement Learning", https://arxiv.org/abs/1507.04296, figures 2
and 3; with DQN it is their algorithm 1. Workers that send gradients to sharded
parameter servers, each in its own time, are the pattern of DistBelief (Downpour
SGD): Dean et al. 2012, "Large Scale Distributed Deep Networks", section 4.1.
"""

from seedx.pipelines.gorila.coordinator import Config, learn, nodes

__all__ = ["Config", "learn", "nodes"]
