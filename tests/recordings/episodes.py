"""Recordings of numbered time steps."""

import numpy as np

from seedx import envs, recordings

CARTPOLE = envs.spec(envs.Config("CartPole-v1"))
STEPS = (4, 3, 40)


def write(path, spec=CARTPOLE, lengths=STEPS, first=0):
  """Writes episodes whose time steps are numbered."""
  description = recordings.Description({"env": "CartPole-v1"}, spec, "ours")
  with recordings.Writer(str(path), description) as writer:
    for length in lengths:
      number = first + np.arange(length)
      first += length
      zeros = np.zeros((length, *spec.action.shape), spec.action.dtype)
      taken = np.arange(length).reshape(-1, *[1] * (zeros.ndim - 1)) % 2
      writer.add(
        recordings.Episode(
          observation=np.stack([number] * 4, 1).astype(np.float32) / 100,
          action=(zeros + taken).astype(zeros.dtype),
          reward=np.minimum(np.arange(length), 1).astype(np.float32),
          discount=(np.arange(length) < length - 1).astype(np.float32),
          seed=0,
          episode_return=length - 1.0,
        )
      )
  return str(path)
