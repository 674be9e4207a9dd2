"""Evolution: workers play perturbed parameters, and send only returns.

    worker: EnvPool <-> members --.  pair numbers,  .-> returns of all pairs
    worker: EnvPool <-> members ---- two returns --<        | update
    worker: EnvPool <-> members --'  <- all returns '--- centre (evaluated)
            '- update -> centre

The noise of a pair of members follows from the pair's number. So workers need
no parameters: they fetch the returns of all pairs, and make the same update as
the learner. The bytes of an episode do not depend on the size of the network.
Without workers, the learner's process plays the members.

Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to
Reinforcement Learning", https://arxiv.org/abs/1703.03864, algorithm 2.
"""

from seedx.pipelines.evolution.training import Config

__all__ = ["Config"]
