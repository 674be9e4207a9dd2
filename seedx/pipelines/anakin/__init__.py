"""Anakin: environments, acting and learning as one program on the devices.

    on each core:  environments -- timestep --> act -- action --> environments
                                     '--- unroll ---> (replay) --> update

The environments are JAX functions, see `envs.functional`. A rollout is a scan
over the acting step that all pipelines share, and the update is the agent's
own. So `sync` on one device computes the same numbers from the same seed,
except with a prioritized replay, which `sync` samples one batch ahead. Many
seeds train in parallel, as one vmapped program.

Hessel et al. 2021, "Podracer architectures for scalable Reinforcement
Learning", https://arxiv.org/abs/2104.06272; Lu et al. 2022,
https://arxiv.org/abs/2210.05639, for the seeds.
"""

from seedx.pipelines.anakin.training import Config

__all__ = ["Config"]
