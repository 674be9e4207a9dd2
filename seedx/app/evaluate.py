"""Evaluates the policy of a run, which may still be training.

  seedx evaluate runs/ppo/20260131-120000 --video play.gif

Plays whole episodes that the run was not trained on, prints statistics of their
returns, and writes every return to a JSON file beside the checkpoint.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from seedx import envs, files, types
from seedx.acting import playing
from seedx.app.cli import command_line
from seedx.app.runs import foreign_code, statistics
from seedx.app.settings import opponents, wording
from seedx.runtime import seeding


@dataclasses.dataclass(frozen=True)
class Options(playing.Config):
  """Options of the command line.

  Attributes:
    run_dir: directory of the run.
    checkpoint: latest, best, or the env steps of a checkpoint.
    seed_index: training to evaluate in a run with num_seeds, 0 for the first.
    trust: whether to run the code that the directory names, such as an
      environment, or that of an opponent.
    env: another environment with the same observations and actions; that of
      the run if empty.
    env_options: other options of the environment, such as opponent=perfect; the
      run's other options stay, unless `env` is given.
    episodes: number of whole episodes to play.
    seed: seed of the episodes.
    video: file (.gif or .mp4) for a video of one episode; no video if empty.
    log_info: numbers in the last `info` of each episode, whose means are
      printed; those of the run if empty.
  """

  run_dir: str = ""
  checkpoint: str = "latest"
  seed_index: int = types.setting(0, low=0)
  trust: bool = False
  env: str = ""
  env_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  episodes: int = types.setting(100, low=1, high=2**20)
  seed: int = types.setting(0, low=0)
  video: str = ""
  log_info: tuple[str, ...] = ()


def main(argv: Sequence[str] | None = None) -> int:
  """Evaluates a run; returns the exit status."""
  return command_line.run(
    _evaluate,
    Options(),
    "seedx evaluate",
    __doc__,
    argv,
    positional=("run_dir",),
  )


def _evaluate(options: Options) -> int:
  # An opponent of the command line's takes the place of the run's.
  opponent = str(options.env_options.get(opponents.OPTION, ""))
  foreign_code.trusted(options.run_dir, options.trust, opponent)
  # These modules import JAX, so the check comes first.
  from seedx.acting import evaluator
  from seedx.app import compiled, policies, videos
  from seedx.app.runs import evaluations

  compiled.keep()
  policy = policies.load(
    options.run_dir,
    options.checkpoint,
    trust=options.trust,
    opponent=opponent,
    seed_index=options.seed_index,
  )
  is_other = bool(options.env or options.env_options)
  if is_other or options.log_info:
    env = opponents.resolved(_other(policy.env, options), options.trust)
    policy = policy.on(env)  # Refuses unknown entries.
  evaluations.check_has_opponent(
    policy.spec, "--env-options opponent=random, or use seedx arena"
  )
  world = _in_words(policy.env) if is_other else policy.env.env
  if options.video:
    videos.check(options.video, policy.env)
  config = evaluator.Config(policy.env, options.episodes, **_playing(options))
  seed = _seed(policy.seed, options)
  player = evaluator.Evaluator(policy.agent, config)
  if options.video:
    frames = videos.record(
      policy.env, policy.acting, player, seed, options.video
    )
    print(f"{frames} frames of an episode are in {options.video}", flush=True)
  played = player.play(policy.acting, seed)
  summary = statistics.summary(played.returns)
  info = statistics.info_means(policy.env.log_info, played.info)
  result = {
    "env": policy.env.env,
    "env_options": opponents.in_words(policy.env.env_options),
    "env_steps": policy.env_steps,
    "greedy": options.greedy,
    "seed": options.seed,
    "seed_index": options.seed_index,
    **summary,
    "cut": played.cut,
    **info,
    "returns": played.returns.tolist(),
  }
  print(
    f"{world} after {policy.env_steps:,} env steps:"
    f" {statistics.in_words(summary)}{statistics.info_in_words(info)}"
  )
  if played.cut:
    print(f"{played.cut} episodes were cut at --max-episode-steps", flush=True)
  name = _file_name(
    policy.env_steps, options.seed_index, world if is_other else ""
  )
  _write(policy.directory, name, result)
  return 0


def _playing(options: Options) -> dict[str, Any]:
  fields = dataclasses.fields(playing.Config)
  return {x.name: getattr(options, x.name) for x in fields}


def _write(
  directory: files.Folder, name: str, result: Mapping[str, Any]
) -> None:
  path = directory / name
  try:
    directory.write(name, json.dumps(result, indent=2) + "\n")
  except OSError as error:  # Another user's directory, or a full disk.
    raise types.ConfigError(
      f"these statistics could not be written to {str(path)!r}"
      f" ({error.strerror})"
    ) from error
  print(f"these statistics and every return are in {path}", flush=True)


def _seed(of_run: int, options: Options) -> int:
  # Training rarely evaluates 2^18 episodes, so it has not used these seeds.
  number = 2**18 + options.seed * options.episodes
  return seeding.evaluation_seed(of_run, number)


def _file_name(env_steps: int, seed_index: int, world: str) -> str:
  words = re.sub(r"[^\w.=,+-]+", "_", world, flags=re.ASCII)[:100]
  training = f"seed_index={seed_index}" if seed_index else ""
  parts = "evaluation", str(env_steps), training, words
  return "-".join(filter(None, parts)) + ".json"


def _other(env: envs.Config, options: Options) -> envs.Config:
  kept = {} if options.env and options.env != env.env else env.env_options
  return dataclasses.replace(
    env,
    env=options.env or env.env,
    env_options={**kept, **options.env_options},
    log_info=options.log_info or env.log_info,
  )


def _in_words(env: envs.Config) -> str:
  words = wording.shown(opponents.in_words(env.env_options))
  return f"{env.env} with {words}" if words else env.env
