"""Records episodes of an environment, for agents that learn from them later.

  seedx record runs/sac/20260131-120000 --episodes 100 --output data
  seedx record --env CartPole-v1 --policy random --episodes 100 --output data

The policy is that of a run, random, or a function of yours. If the directory
has a recording of the same environment and policy, missing episodes are added.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dm_env
import numpy as np

from seedx import envs, types
from seedx.acting import playing
from seedx.app.cli import command_line
from seedx.app.runs import foreign_code, statistics
from seedx.app.settings import opponents

if TYPE_CHECKING:
  from seedx import recordings

# Maps time steps and a state, None at first, to actions and a new state.
Policy = Callable[[dm_env.TimeStep, Any], tuple[np.ndarray, Any]]
_RANDOM = "random"


@dataclasses.dataclass(frozen=True)
class Options(playing.Config):
  """Options of the command line.

  Attributes:
    run_dir: directory of the run whose policy acts; left out with --env.
    checkpoint: latest, best, or the env steps of a checkpoint.
    seed_index: training of a run with num_seeds, 0 for the first.
    trust: whether to run the code that the directory names, such as an
      environment.
    env: environment to record, without a run.
    env_options: options of this environment.
    policy: policy without a run, which is random (uniform over all legal
      actions) or MODULE:FUNCTION of yours, which maps (timestep, state) to
      (action, state); the arrays are [B, ...], and the first state is None.
    episodes: number of whole episodes in the recording.
    output: directory of the recording.
    minari: name of a new Minari data set, which receives the whole recording.
    seed: seed of the first environment.
    max_episode_steps: number of env steps after which an episode is truncated
      in the recording.
  """

  run_dir: str = ""
  checkpoint: str = "latest"
  seed_index: int = types.setting(0, low=0)
  trust: bool = False
  env: str = ""
  env_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  policy: str = _RANDOM
  episodes: int = types.setting(100, low=1, high=2**30)
  output: str = "data"
  minari: str = ""
  seed: int = types.setting(0, low=0, high=2**30)


def main(argv: Sequence[str] | None = None) -> int:
  """Records; returns the exit status."""
  argv = sys.argv[1:] if argv is None else argv
  has_env = "env" in command_line.given(Options(), argv)
  return command_line.run(
    _record,
    Options(),
    "seedx record",
    __doc__,
    argv,
    positional=() if has_env else ("run_dir",),
  )


def _record(options: Options) -> int:
  if options.env and options.run_dir:
    raise types.ConfigError(
      "expected --env or the directory of a run, found both"
    )
  if options.run_dir:
    foreign_code.trusted(options.run_dir, options.trust)
  # These modules import JAX, so the check comes first.
  from seedx import recordings
  from seedx.app import compiled

  compiled.keep()
  acting = _of_run(options) if options.run_dir else _of_function(options)
  env, spec = acting.env, acting.spec
  if spec.players > 1:
    raise types.ConfigError(
      "expected an environment of one player, found self-play: choose an"
      " opponent with --env-options opponent=random"
    )
  settings = dataclasses.asdict(env)
  settings["env_options"] = opponents.in_words(env.env_options)
  description = recordings.Description(settings, spec, acting.policy)
  with recordings.Writer(options.output, description) as writer:
    _play(acting, writer, options)
    returns = np.array(writer.returns)
    returns = returns[~np.isnan(returns)]
    summary = statistics.summary(returns) if len(returns) else None
    words = statistics.in_words(summary) if summary else "no game ended"
    print(
      f"{writer.num_episodes:,} episodes of {env.env} ({writer.env_steps:,} env"
      f" steps) are in {options.output}: {words}",
      flush=True,
    )
  if options.minari:
    from seedx.recordings import minari_files

    recording = recordings.Recording(options.output)
    minari_files.write(recording, options.minari)
  return 0


@dataclasses.dataclass(frozen=True)
class _Acting:
  """A policy in its environment.

  Attributes:
    env: the environment.
    spec: its spec.
    policy: the policy in words.
    steps: resets environments and plays without an end, from a seed for the
      policy; yields rows.
  """

  env: envs.Config
  spec: types.EnvironmentSpec
  policy: str
  steps: Callable[[envs.Environment, int], Iterator[types.Rows]]


def _of_run(options: Options) -> _Acting:
  from seedx.acting import evaluator
  from seedx.app import policies

  policy = policies.load(
    options.run_dir,
    options.checkpoint,
    trust=options.trust,
    seed_index=options.seed_index,
  )
  config = evaluator.Config(policy.env, 1, greedy=options.greedy)
  player = evaluator.Evaluator(policy.agent, config)
  kind = "greedy" if options.greedy else "sampled"
  return _Acting(
    policy.env,
    policy.spec,
    f"{policy.name} after {policy.env_steps} env steps, {kind}",
    lambda environment, seed: player.steps(policy.acting, seed, environment),
  )


def _of_function(options: Options) -> _Acting:
  env = opponents.resolved(
    envs.Config(options.env, options.env_options), options.trust
  )
  spec = envs.spec(env)
  given, limits = None, (spec.action.minimum, spec.action.maximum)
  if options.policy != _RANDOM:
    given = envs.load_function(options.policy, "a policy")
  elif not all(np.isfinite(x).all() for x in limits):
    raise types.ConfigError(
      "expected actions with bounds for --policy random, found none; give your"
      " own MODULE:FUNCTION"
    )

  def steps(environment: envs.Environment, seed: int) -> Iterator[types.Rows]:
    policy = given or _uniform(spec, np.random.default_rng(seed))
    state = None
    environment.reset()
    while True:
      rows = environment.recv()
      yield rows
      action, state = policy(rows.timestep, state)
      environment.send(rows.index, np.asarray(action))

  return _Acting(env, spec, options.policy, steps)


def _uniform(spec: types.EnvironmentSpec, rng: np.random.Generator) -> Policy:
  """Returns the policy that takes each legal action equally often."""
  action = spec.action
  whole = np.full(action.shape, np.issubdtype(action.dtype, np.integer))
  if isinstance(action, types.HybridArray):
    whole[: action.num_choices] = True

  range_ = action.maximum.astype(np.float64) - action.minimum + whole

  def act(timestep: dm_env.TimeStep, state: Any) -> tuple[np.ndarray, Any]:
    size = (len(timestep.reward), *action.shape)
    value = action.minimum + range_ * rng.random(size)
    value = np.minimum(np.where(whole, np.floor(value), value), action.maximum)
    if spec.action_mask is not None:
      legal = timestep.observation[spec.action_mask] != 0
      chosen = np.where(legal, rng.random(legal.shape), -1.0).argmax(axis=-1)
      if isinstance(action, types.HybridArray):
        value[:, : action.num_choices] = chosen.reshape(len(value), -1)
      else:
        value = chosen
    return value.astype(action.dtype), state

  return act


def _play(
  acting: _Acting, writer: "recordings.Writer", options: Options
) -> None:
  """Records until there are as many episodes as asked for."""
  from seedx import recordings

  while writer.num_episodes < options.episodes:
    missing = options.episodes - writer.num_episodes
    left = playing.divided(missing, options.num_envs)
    seed = max(options.seed, writer.next_seed)
    environment = recordings.Recorder(
      envs.make(acting.env, len(left), seed=seed),
      writer.add,
      seed,
      left,
      options.max_episode_steps,
    )
    with contextlib.closing(environment):
      for _ in acting.steps(environment, seed):
        if not environment.left.any():
          break
