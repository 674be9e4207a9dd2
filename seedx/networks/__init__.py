"""Neural networks: Flax modules over time-major streams of `types.Inputs`.

Modules compute in their `dtype`; parameters and the LSTM's states are float32.
"""

from seedx.networks.convolutions import Conv
from seedx.networks.critic import ActorHead, Critic
from seedx.networks.frame_stack import FrameStack
from seedx.networks.heads import (
  CategoricalQ,
  CategoricalQHead,
  PolicyValue,
  PolicyValueHead,
  QHead,
  linear,
)
from seedx.networks.lstm import LSTM
from seedx.networks.network import Core, CoreState, Network, Tower, steps_at
from seedx.networks.noisy import NOISE, NoisyDense
from seedx.networks.torsos import (
  ACTIVATIONS,
  IMAGE_TORSOS,
  MLP,
  BoardNetwork,
  ImpalaResNet,
  NatureCNN,
  SmallCNN,
  Torso,
)

__all__ = [
  "ACTIVATIONS",
  "IMAGE_TORSOS",
  "LSTM",
  "MLP",
  "NOISE",
  "ActorHead",
  "BoardNetwork",
  "CategoricalQ",
  "CategoricalQHead",
  "Conv",
  "Core",
  "CoreState",
  "Critic",
  "FrameStack",
  "ImpalaResNet",
  "NatureCNN",
  "Network",
  "NoisyDense",
  "PolicyValue",
  "PolicyValueHead",
  "QHead",
  "SmallCNN",
  "Torso",
  "Tower",
  "linear",
  "steps_at",
]
