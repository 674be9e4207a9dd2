"""Streams that send the same rows again as soon as they have actions.

`benchmarks.host_path` starts this program. It is an actor without environments
and without checks of the actions, so that a server, not its actors, limits the
number of messages. It does not import JAX.

  python -m benchmarks.canned_actor unix:/tmp/server ROWS STREAMS [--frames]
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import dm_env
import numpy as np

from seedx import types, wire
from seedx.acting import protocol

_FRAME = (1, 84, 84)


def main(argv: Sequence[str] | None = None) -> int:
  """Opens streams and sends rows until the server stops."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("address")
  parser.add_argument("rows", type=int)
  parser.add_argument("streams", type=int)
  parser.add_argument("--frames", action="store_true")
  options = parser.parse_args(argv)
  spec = spec_of(options.frames)
  first, middle = (
    rows_of(spec, options.rows, step_type)
    for step_type in (dm_env.StepType.FIRST, dm_env.StepType.MID)
  )
  layouts = protocol.act_layouts(spec, options.rows)
  hello = {"num_envs": options.rows}
  with contextlib.ExitStack() as opened:
    exchanges = []
    for _ in range(options.streams):
      client = opened.enter_context(wire.Client(options.address))
      exchanges.append(client.exchange(protocol.ACT, *layouts, hello=hello))
      opened.callback(exchanges[-1].close)
    for exchange in exchanges:
      exchange.send(first)
    while True:
      for exchange in exchanges:
        if exchange.receive() is None:
          return 0
        exchange.send(middle)


def spec_of(frames: bool) -> types.EnvironmentSpec:
  """Returns a specification like CartPole's, or one with frames of Atari."""
  observation: dm_env.specs.Array = dm_env.specs.Array((4,), np.float32)
  if frames:
    observation = dm_env.specs.BoundedArray(_FRAME, np.uint8, 0, 255)
  action = dm_env.specs.DiscreteArray(2, np.int32)
  return types.EnvironmentSpec(observation=observation, action=action)


def rows_of(spec: Any, num_rows: int, step_type: dm_env.StepType) -> types.Rows:
  """Returns random rows of environments that are all at one kind of step."""
  random, shape = np.random.default_rng(0), (num_rows, *spec.observation.shape)
  is_first = step_type == dm_env.StepType.FIRST
  timestep = dm_env.TimeStep(
    step_type=np.full(num_rows, step_type, np.uint8),
    reward=np.full(num_rows, 0.0 if is_first else 1.0, np.float32),
    discount=np.ones(num_rows, np.float32),
    observation=random.uniform(0, 255, shape).astype(spec.observation.dtype),
  )
  nan = np.full(num_rows, np.nan, np.float32)
  return types.Rows(np.arange(num_rows, dtype=np.int32), timestep, nan)


if __name__ == "__main__":
  sys.exit(main())
