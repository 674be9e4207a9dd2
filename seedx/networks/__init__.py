"""Flax modules over time-major streams of `types.Inputs`."""

from seedx.networks.convolutions import Conv
from seedx.networks.frame_stack import FrameStack
from seedx.networks.heads import PolicyValue, PolicyValueHead, QHead
from seedx.networks.lstm import LSTM
from seedx.networks.network import CoreState, Network
from seedx.networks.torsos import (
  IMAGE_TORSOS,
  MLP,
  ImpalaResNet,
  NatureCNN,
  SmallCNN,
  Torso,
  is_image,
)

__all__ = [
  "IMAGE_TORSOS",
  "LSTM",
  "MLP",
  "Conv",
  "CoreState",
  "FrameStack",
  "ImpalaResNet",
  "NatureCNN",
  "Network",
  "PolicyValue",
  "PolicyValueHead",
  "QHead",
  "SmallCNN",
  "Torso",
  "is_image",
]
