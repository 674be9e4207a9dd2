"""The command line of `seedx chaos`."""

import dataclasses
from collections.abc import Mapping, Sequence

from seedx import types

# Each pipeline's experiment, and options that suit a small machine.
_SMALL_REPLAY = ("--replay-capacity", "20000", "--replay-ratio", "1")
_ACTORS = ("--envs-per-actor", "16")
PIPELINES: Mapping[str, tuple[str, Sequence[str]]] = {
  "seed": ("seed_vtrace", _ACTORS),
  "impala": ("impala", _ACTORS),
  "apex": ("apex_dqn", _SMALL_REPLAY),
  # Its workers' replays are no part of a checkpoint: they fill up again.
  "gorila": ("gorila_dqn", _SMALL_REPLAY),
  # What an environment does ends them at once, so that more is resumed.
  "a3c": ("a3c", ("--env-restarts", "0")),
  "sync": ("ppo", ("--env-restarts", "0")),
}


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line.

  Attributes:
    pipelines: what to run, one after the other, A,B.
    minutes: of each.
    seed: of what is done to them.
    output: JSON file of what was found; none if empty.
  """

  pipelines: tuple[str, ...] = tuple(PIPELINES)
  minutes: float = types.setting(10.0, low=0.1)
  seed: int = types.setting(0, low=0, high=2**31)
  output: str = ""

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be run."""
    types.check_settings(self)
    for name in self.pipelines:
      if name not in PIPELINES:
        raise types.ConfigError(
          f"expected pipelines of {', '.join(PIPELINES)}, found {name!r}"
        )
