"""Warm starts: runs that begin with the parameters of another run.

A run takes the parameters and the statistics of observations. Everything else
is fresh: optimizer, counters, replay, schedules, and target networks, which are
equal to the parameters. The statistics of `--normalize-rewards` are fresh, too:
rewards may have another unit now, and values are in units of their deviation.
"""

import dataclasses
import math
import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from seedx import checkpoint, envs, trees, types
from seedx.agents import base, rewards
from seedx.app.runs import checkpointer, records, saved_agents
from seedx.app.settings import configs, wording
from seedx.runtime import process

_PARAMS, _STATISTICS = "params", "statistics"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """The origin of a run's first parameters.

  Attributes:
    init_from: directory of a run with whose parameters this run begins, or a
      checkpoint in it, DIR/checkpoints/STEPS; optimizer and counters are fresh.
    init_checkpoint: checkpoint of `init_from` to take, latest, best, or its env
      steps.
  """

  init_from: str = types.setting("", changes="start")
  init_checkpoint: str = types.setting("latest", changes="start")


@dataclasses.dataclass(frozen=True)
class Origin:
  """The arrays that a run takes from another run.

  Attributes:
    params: parameters of the network.
    statistics: see `base.AgentState`.
    origin: the run and its checkpoint, for `config.json`.
    words: description of the arrays in one line.
  """

  params: types.Tree
  statistics: types.Tree
  origin: Mapping[str, Any]
  words: str


def check(options: Config) -> None:
  """Raises types.ConfigError if `init_checkpoint` would have no effect."""
  if options.init_checkpoint == Config.init_checkpoint:
    return
  if not options.init_from:
    raise types.ConfigError(
      "expected --init-checkpoint with --init-from, whose checkpoint it names,"
      " found it alone; add --init-from DIR"
    )
  _, which = _split(options)
  if which != options.init_checkpoint:
    raise types.ConfigError(
      f"expected one checkpoint, found --init-checkpoint"
      f" {options.init_checkpoint} with --init-from {options.init_from}; leave"
      " out --init-checkpoint"
    )


def check_resumed(saved: records.Record, options: Config) -> None:
  """Checks that a run to resume began as the options demand.

  A resumed run takes no parameters again.

  Raises:
    types.ConfigError: `init_from` is another run than at the start.
  """
  if not options.init_from:
    return
  path, _ = _split(options)
  if saved.init_from is None or saved.init_from.get("run") != path:
    raise types.ConfigError(
      "expected --resume without --init-from, since a resumed run continues"
      f" with its own parameters; found --init-from {options.init_from}"
    )


def take(config: process.Config, options: Config) -> Origin | None:
  """Reads the arrays that a run begins with; None without `init_from`.

  No code that the other run names is executed.

  Raises:
    types.ConfigError: there is no such run or checkpoint, or the arrays have
      other names or shapes than those of the config's agent.
  """
  if not options.init_from:
    return None
  path, which = _split(options)
  saved = records.read(path)
  checkpoints = checkpoint.Checkpoints(checkpointer.directory(path))
  env_steps, arrays = checkpointer.first_whole(
    checkpoints,
    lambda: checkpointer.chosen(checkpoints, which, "--init-checkpoint"),
    lambda step: _read(checkpoints, step, saved),
  )
  expected = _expected(config)
  _check(arrays, expected, config, saved, options.init_from)
  taken = checkpoint.like(arrays, expected, options.init_from)
  if wrong := trees.non_finite(taken):
    raise types.ConfigError(
      f"expected finite parameters, found a NaN or an infinity in {wrong} of"
      f" {options.init_from}; choose another --init-checkpoint"
    )
  params, statistics = taken[_PARAMS], taken[_STATISTICS]
  if getattr(config.agent, "normalize_rewards", False):
    statistics = rewards.init(statistics)
  score = checkpoints.score(env_steps)
  mean = score if math.isfinite(score) else None
  origin = {"run": path, "env_steps": env_steps, "score": mean}
  sizes = [x.size for x in jax.tree.leaves(params)]
  name, env = saved.name, saved.options.get("env")
  words = [
    f"begins with the parameters of {name} on {env}",
    f"{options.init_from}, checkpoint {env_steps}"
    f" (mean return {'unknown' if mean is None else f'{mean:.1f}'})",
    f"{len(sizes)} arrays with {sum(sizes):,} parameters",
  ]
  if count := len(jax.tree.leaves(taken[_STATISTICS])):
    words.append(f"statistics of observations in {count} arrays")
  return Origin(params, statistics, origin, types.printable(" | ".join(words)))


def _split(options: Config) -> tuple[str, str]:
  """Returns the absolute directory of the run, and which checkpoint."""
  path = os.path.abspath(os.path.expanduser(options.init_from))
  directory = re.escape(checkpointer.DIRECTORY)
  if match := re.fullmatch(rf"(.+)/{directory}/(\d+)", path):
    return match[1], match[2]
  return path, options.init_checkpoint


def _read(
  checkpoints: checkpoint.Checkpoints, env_steps: int, saved: records.Record
) -> Mapping[str, Any]:
  """Returns parameters and statistics of observations, of the first seed."""
  options = saved.options
  num_seeds = max(options.get("num_seeds", 1), options.get("members", 1))
  arrays = saved_agents.arrays(checkpoints, env_steps, num_seeds)
  taken = [x for x in arrays if x.partition("/")[0] in (_PARAMS, _STATISTICS)]
  if saved.options.get("normalize_rewards"):
    # The statistics of rewards come last.
    form = rf"{_STATISTICS}/\w+/(\d+)"
    numbers = [int(x[1]) for name in taken if (x := re.fullmatch(form, name))]
    last = rf"{_STATISTICS}/\w+/{max(numbers, default=0)}"
    taken = [x for x in taken if not re.fullmatch(last, x)]
  return {name: arrays[name] for name in taken}


def _expected(config: process.Config) -> types.Tree:
  agent = config.agent.make(envs.spec(config.env))
  # A new lambda, since JAX does not trace the same function again.
  state: base.AgentState = jax.eval_shape(
    lambda key: agent.init(key), jax.random.key(0)
  )
  if not isinstance(state, base.AgentState):
    raise types.ConfigError(
      "expected an agent with a seedx.agents.base.AgentState, since --init-from"
      f" replaces its parameters, found {type(state).__name__}"
    )
  statistics = state.statistics
  if getattr(config.agent, "normalize_rewards", False):
    statistics = rewards.observed(statistics)
  return {_PARAMS: state.params, _STATISTICS: statistics}


def _check(
  arrays: Mapping[str, Any],
  expected: types.Tree,
  config: process.Config,
  saved: records.Record,
  source: str,
) -> None:
  """Raises types.ConfigError for the first array that differs by name."""
  wanted = _forms(checkpoint.named(expected))
  actual = _forms(arrays.items())
  wrong = [k for k in {**wanted, **actual} if wanted.get(k) != actual.get(k)]
  if not wrong:
    return
  name = wrong[0]
  count = f" ({len(wrong)} arrays differ)" if len(wrong) > 1 else ""
  raise types.ConfigError(
    f"{name}: expected {wanted.get(name, 'no such array')}, found"
    f" {actual.get(name, 'none')} in {source}{count};"
    f" {_remedy(config, saved, wanted)}"
  )


def _forms(arrays: Any) -> dict[str, str]:
  """Returns shapes, with dtypes other than float32, by name."""
  return {
    name: f"{[*x.shape]}" + (f" {x.dtype}" if x.dtype != np.float32 else "")
    for name, x in arrays
  }


def _remedy(
  config: process.Config, saved: records.Record, wanted: Mapping[str, str]
) -> str:
  """Returns the end of an error: the options that change the arrays."""
  settings = configs.settings(config.agent)
  values = configs.in_json(config.agent)
  words = []
  for name, value in saved.options.items():
    if name not in settings or value == values[name]:
      continue
    if not configs.fits(settings[name].kind, value):
      continue
    try:
      agent: Any = configs.replaced(config.agent, {name: value})
      other = _expected(dataclasses.replace(config, agent=agent))
    except types.ConfigError:  # It also needs another option.
      other = {}
    if _forms(checkpoint.named(other)) != wanted:
      words.append(shlex.join(wording.option(name, value)))
  remedy = f"add {' '.join(words)}, as in that run" if words else ""
  env = saved.options.get("env")
  if words and env == config.env.env:
    return remedy
  origin = (
    f"that run is one of {saved.name} on {env}, and this environment is"
    f" {config.env.env}: choose a run of the same network, with an environment"
    " of the same observations and actions"
  )
  return "; ".join(filter(None, [remedy, origin]))
