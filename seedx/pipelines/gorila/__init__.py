"""Gorila: workers that each have a replay, and sharded parameter servers.

    worker: EnvPool <-> act -> replay -> gradients --.   .-> server: shard 0
    worker: EnvPool <-> act -> replay -> gradients ----X---> server: shard 1
    worker: EnvPool <-> act -> replay -> gradients --'   '-> server: shard 2
               ^                                                  |
               '----------- the newest parameters <---------------'

Every worker acts, stores experience and computes gradients: a bundle of actor,
replay and learner, as in section 4.1 of the paper. The worker splits each
gradient over the parameter servers. Each server applies its part with its own
optimizer, and replies with its newest parameters; no worker waits for another.
Servers drop gradients that are too stale, and workers drop those whose loss is
an outlier. The run continues when a worker dies. A restarted server gets its
parameters back from the workers. A coordinator counts env steps, and ends the
run.

Nair et al. 2015, "Massively Parallel Methods for Deep Reinforcement Learning",
https://arxiv.org/abs/1507.04296, figures 2 and 3; algorithm 1 with DQN. Such
asynchronous gradients to sharded parameter servers are Downpour SGD: Dean et
al. 2012, "Large Scale Distributed Deep Networks", section 4.1.
"""

from seedx.pipelines.gorila.coordinator import Config

__all__ = ["Config"]
