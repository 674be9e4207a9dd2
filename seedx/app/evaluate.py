"""Evaluates the policy of a run, which may still be going on.

  seedx evaluate runs/ppo/20260131-120000 --video play.gif

plays whole episodes that it was not trained in, says what it reached, and
leaves that as JSON beside the checkpoint.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence

from seedx import types
from seedx.acting import evaluator, sessions
from seedx.app import command_line, policies, statistics, videos


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line.

  Attributes:
    run_dir: the directory of the run.
    checkpoint: latest, best, or its number of env steps.
    episodes: whole episodes that are played.
    greedy: take the best action; else draw as in training.
    seed: another one plays other episodes.
    num_envs: environments that are played at a time.
    max_episode_steps: env steps after which an episode counts as it stands.
    video: a file for one episode, .gif or .mp4; none if empty.
  """

  run_dir: str = ""
  checkpoint: str = "latest"
  episodes: int = 100
  greedy: bool = True
  seed: int = 0
  num_envs: int = 16
  max_episode_steps: int = 100_000
  video: str = ""

  def __post_init__(self) -> None:
    """Raises types.ConfigError for what cannot be played."""
    types.check_ranges(
      self,
      episodes=(1, 2**20),
      seed=(0, types.MOST),
      num_envs=(1, 2**16),
      max_episode_steps=(1, types.MOST),
    )


def main(argv: Sequence[str] | None = None) -> int:
  """Evaluates a run; returns the exit status."""
  argv = sys.argv[1:] if argv is None else argv
  try:
    return _evaluate(
      command_line.parse(
        Options(), argv, "seedx evaluate", __doc__, positional=("run_dir",)
      )
    )
  except types.ConfigError as error:
    command_line.fail(error)


def _evaluate(given: Options) -> int:
  policy = policies.load(given.run_dir, given.checkpoint)
  if given.video:
    videos.check(given.video, policy.env)
  config = evaluator.Config(
    env=policy.env,
    num_episodes=given.episodes,
    greedy=given.greedy,
    num_envs=given.num_envs,
    max_episode_steps=given.max_episode_steps,
  )
  # Behind those of the evaluations in training, however many these were.
  number = 2**18 + given.seed * given.episodes
  seed = sessions.evaluation_seed(policy.seed, number)
  player = evaluator.Evaluator(policy.agent, config)
  if given.video:
    frames = videos.record(policy, player, seed, given.video)
    print(f"{frames} frames of an episode are in {given.video}", flush=True)
  played = player.play(policy.acting, seed)
  found = statistics.summary(played.returns)
  path = _write(policy, given, found, played)
  print(
    f"{policy.env.env} after {policy.env_steps:,} env steps:"
    f" {statistics.in_words(found)}"
  )
  if played.cut:
    print(f"{played.cut} of them were cut at --max-episode-steps")
  print(f"this and every return are in {path}", flush=True)
  return 0


def _write(
  policy: policies.Policy,
  given: Options,
  found: dict[str, float | int],
  played: evaluator.Played,
) -> pathlib.Path:
  """Leaves what was found beside the checkpoint."""
  path = policy.directory / f"evaluation-{policy.env_steps}.json"
  content = {
    "env_steps": policy.env_steps,
    "greedy": given.greedy,
    "seed": given.seed,
    **found,
    "cut": played.cut,
    "returns": played.returns.tolist(),
  }
  try:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
  except OSError as error:
    raise types.ConfigError(f"cannot write {str(path)!r} ({error})") from error
  return path
