"""Evaluates the policy of a run, which may still be going on.

  python -m experiments.evaluate runs/ppo/20260131-120000 --video play.gif

plays whole episodes that it was not trained in, says what it reached, and
leaves that as JSON beside the checkpoint.
"""

import dataclasses
import json
import pathlib
import sys

from experiments import evaluations, options, policies, videos
from seedx import types
from seedx.runtime import evaluator, leases

option = options.option


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line."""

  run_dir: str = option("", "the directory of the run", positional=True)
  checkpoint: str = option("latest", "latest, best, or its number of env steps")
  episodes: int = option(100, "whole episodes that are played", least=1)
  greedy: bool = option(True, "take the best action; else draw as in training")
  seed: int = option(0, "another one plays other episodes", least=0)
  num_envs: int = option(16, "environments that are played at a time", least=1)
  max_episode_steps: int = option(
    100_000, "env steps after which an episode counts as it stands", least=1
  )
  video: str = option("", "a file for one episode, .gif or .mp4; none if empty")


def main(argv: list[str] | None = None) -> int:
  """Evaluates a run; returns the exit status."""
  argv = sys.argv[1:] if argv is None else argv
  try:
    return _evaluate(options.parse(Options, argv, __doc__))
  except types.ConfigError as error:
    options.fail(error)


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
  place = 2**18 + given.seed * given.episodes
  seed = leases.evaluation_seed(policy.given.seed, place)
  player = evaluator.Evaluator(policy.agent, config)
  if given.video:
    frames = videos.record(policy, player, seed, given.video)
    print(f"{frames} frames of an episode are in {given.video}", flush=True)
  played = player.play(policy.acting, seed)
  found = evaluations.summary(played.returns)
  path = _write(policy, given, found, played)
  print(
    f"{policy.given.env} after {policy.env_steps:,} env steps:"
    f" {evaluations.in_words(found)}"
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


if __name__ == "__main__":
  sys.exit(main())
