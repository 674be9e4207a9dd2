"""Neural networks over time-major streams of `types.Inputs`."""

from seedx.networks.actor_critic import ActorCritic
from seedx.networks.convolutions import Conv
from seedx.networks.frame_stack import FrameStack
from seedx.networks.torsos import MLP, NatureCNN, Torso

__all__ = ["MLP", "ActorCritic", "Conv", "FrameStack", "NatureCNN", "Torso"]
