"""The command line of `seedx benchmark`."""

import dataclasses

from seedx import types


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line.

  Attributes:
    experiments: what to measure, A,B; each may have its own options.
    env: name of the environment, for experiments without --env of their own.
    seconds: of each run, from the first update on; each part alone is measured
      for a quarter of it.
    repetitions: how often all is measured, in turn.
    output: file with one JSON line per figure; the first describes the machine.
    quick: measure once, for 8 seconds at most, and only the experiments.
    streams: numbers of clients that wait for replies at the same time, to
      measure what a server carries, such as 1,16,256.
  """

  experiments: tuple[str, ...] = (
    "seed_vtrace --num-actors 2 --envs-per-actor 1024 --batch-size 1024",
  )
  env: str = "CartPole-v1"
  seconds: float = types.setting(20.0, low=1.0, high=types.MOST_SECONDS)
  repetitions: int = types.setting(3, low=1, high=2**20)
  output: str = "benchmark.jsonl"
  quick: bool = False
  streams: tuple[int, ...] = types.setting((), low=1, high=2**16)

  def __post_init__(self) -> None:
    """Raises types.ConfigError for an option that is out of range."""
    types.check_settings(self)
