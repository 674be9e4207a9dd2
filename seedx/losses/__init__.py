"""Pure losses over one stream of experience; `jax.vmap` them over a batch."""

from seedx.losses.reductions import mean_share, sum_over_cores
from seedx.losses.streams import Transitions, transitions
from seedx.losses.vtrace import VTraceLoss, vtrace

__all__ = [
  "Transitions",
  "VTraceLoss",
  "mean_share",
  "sum_over_cores",
  "transitions",
  "vtrace",
]
