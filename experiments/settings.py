"""The options that experiments share, so that each has one name everywhere.

An experiment's options are a dataclass that inherits the groups it needs. Its
presets, a dict by kind of environment, replace their defaults; see `preset`.
Importing this imports no JAX, so that an actor can block it before it does.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tree

from experiments import options
from seedx import types

if TYPE_CHECKING:
  from seedx import envs
  from seedx.runtime import feeds

option = options.option

AGENTS = ("a2c", "vtrace", "ppo", "dqn")

# What may be another when a run is resumed: what its state does not depend on.
RESUMED = (
  *("resume", "total_steps", "checkpoint_every_seconds"),
  *("evaluate_every_steps", "evaluate_episodes", "learner_devices"),
  *("inference_devices", "env_threads", "num_actors", "num_workers"),
  *("role", "address", "server", "server_addresses"),
)

# Options by their names; see `preset` for the keys.
Presets = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Common:
  """What every experiment can be told."""

  env: str = option(
    "CartPole-v1",
    "EnvPool's name of the environment, or MODULE:FACTORY for one of yours",
  )
  total_steps: int = option(2_000_000, "env steps to learn for", least=1)
  seed: int = option(0, "fixes environments, initial parameters and sampling")
  run_dir: str = option(
    "", "where results go; runs/<experiment>/<time> if empty"
  )
  resume: str = option("", "the directory of a run to go on with")
  checkpoint_every_seconds: float = option(
    60.0, "seconds between two checkpoints; 0 for one at the end only", least=0
  )
  evaluate_every_steps: int = option(
    0, "env steps between two evaluations; 0 for none", least=0
  )
  evaluate_episodes: int = option(
    10, "greedy episodes of each of them", least=1, most=2**16
  )
  learning_rate: float = option(2e-3, "falling to 0 over the run")
  discount: float = option(0.99, "per env step")
  reward_scale: float = option(0.1, "rewards are multiplied by it in the loss")
  reward_clip: float = option(0.0, "then clipped to +- this; 0 for never")
  max_gradient_norm: float = option(0.5, "gradients are scaled down to it")
  normalize_observations: bool = option(
    False, "bring vectors of floats to mean 0 and variance 1"
  )
  hidden_sizes: tuple[int, ...] = option(
    (64, 64), "units of the MLP's layers", parse=options.integers
  )
  image_torso: str = option(
    "nature", "the network for images", choices=("nature", "impala")
  )
  stack_frames: int = option(
    1, "frames that the network sees of images", least=1
  )
  compute_dtype: str = option(
    "float32", "of the network", choices=("float32", "bfloat16")
  )
  env_options: dict[str, Any] = option(
    {},
    "of EnvPool or your factory, KEY=VALUE,KEY=VALUE",
    parse=options.keywords,
  )
  info_keys: tuple[str, ...] = option(
    (), "info entries that join the observation", parse=options.names
  )
  action_mask: str = option(
    "action_mask", "observation or info entry of the legal actions"
  )
  observation_transform: str = option(
    "", "MODULE:FUNCTION, from observations [B, ...] to what the agent sees"
  )


@dataclasses.dataclass(frozen=True)
class Learner:
  """Of pipelines with one learner."""

  learner_devices: tuple[int, ...] = option(
    (0,), "indices of the devices that learn", parse=options.integers
  )


@dataclasses.dataclass(frozen=True)
class MicroBatches:
  """Of learners whose update can be computed in parts."""

  micro_batches: int = option(1, "parts that an update is computed in", least=1)


@dataclasses.dataclass(frozen=True)
class ActorCritic:
  """Of agents with a policy and a value."""

  entropy_cost: float = option(0.01, "weight of the entropy bonus")
  value_cost: float = option(0.5, "weight of the value loss")
  td_lambda: float = option(1.0, "mixes in shorter returns; 1 for the longest")
  recurrent: bool = option(False, "give the network a memory, an LSTM")
  lstm_size: int = option(128, "units of the LSTM of --recurrent", least=1)


@dataclasses.dataclass(frozen=True)
class PPO:
  """Of PPO."""

  epochs: int = option(4, "how often an update goes through its batch", least=1)
  minibatches: int = option(
    4, "parts of an epoch, each of which takes a step", least=1
  )
  clip_epsilon: float = option(0.2, "how far from 1 the ratio pays")
  clip_values: bool = option(False, "clip the value loss as well")


@dataclasses.dataclass(frozen=True)
class DQN:
  """Of DQN."""

  n_step: int = option(3, "steps before bootstrapping", least=1)
  double: bool = option(True, "double Q-learning")
  dueling: bool = option(False, "give values and advantages their own heads")
  huber_delta: float = option(0.0, "errors beyond it count linearly; 0: never")
  rescale: bool = option(False, "value function rescaling, for large returns")
  target_period: int = option(
    100, "updates between copies to the target", least=1
  )
  epsilon_end: float = option(0.01, "share of random actions in the end")
  epsilon_steps: int = option(
    50_000, "env steps of learning over which that falls from 1", least=0
  )
  epsilon_ladder: bool = option(
    False, "give each environment a share of its own instead"
  )


@dataclasses.dataclass(frozen=True)
class Replay:
  """Of pipelines with a replay."""

  replay_capacity: int = option(200_000, "env steps that are kept", least=1)
  replay_min_steps: int = option(
    2_000, "env steps before learning begins", least=1
  )
  replay_ratio: float = option(4.0, "how often each env step is learned from")
  replay_batch_size: int = option(128, "transitions in an update", least=1)


@dataclasses.dataclass(frozen=True)
class Sync(MicroBatches, Learner):
  """Of the pipeline `sync`."""

  num_envs: int = option(16, "environments", least=1)
  unroll_length: int = option(
    16, "env steps of each environment in an unroll", least=1
  )
  env_threads: int = option(
    1, "threads that step the environments; processes, for yours", least=1
  )


@dataclasses.dataclass(frozen=True)
class Actors(Learner):
  """Of pipelines with actors that send what they see to a learner."""

  num_actors: int = option(2, "actor processes", least=1)
  envs_per_actor: int = option(128, "environments of each actor", least=1)
  unroll_length: int = option(
    20, "env steps of each environment in an unroll", least=1
  )
  batch_size: int = option(64, "unrolls in an update", least=1)
  role: str = option(
    "all",
    "what this process does; 'all' starts its own actors",
    choices=("all", "learner", "actor"),
  )
  address: str = option(
    "", "where the learner listens, HOST:PORT or unix:PATH; with --role"
  )


@dataclasses.dataclass(frozen=True)
class Seed(MicroBatches, Actors):
  """Of the pipeline `seed`."""

  actor_batch_size: int = option(
    0,
    "environments in a message; 0 steps all of an actor's in lock step",
    least=0,
  )
  inference_devices: tuple[int, ...] = option(
    (0,), "indices of the devices that act", parse=options.integers
  )


@dataclasses.dataclass(frozen=True)
class Workers:
  """Of pipelines whose workers act and learn."""

  num_workers: int = option(4, "workers that act and learn", least=1)
  envs_per_worker: int = option(16, "environments of each worker", least=1)
  unroll_length: int = option(
    16, "env steps of each environment in an unroll", least=1
  )
  optimizer: str = option(
    "rmsprop", "of the shared parameters", choices=("adam", "rmsprop")
  )


def environment(given: Any) -> "envs.Config":
  """The environment that `Common` options ask for."""
  from seedx import envs  # EnvPool imports JAX, if it is not blocked by now.

  return envs.Config(
    env_id=given.env,
    options=given.env_options,
    info_keys=given.info_keys,
    action_mask=given.action_mask,
    transform=given.observation_transform,
  )


def agent(given: Any, updates: float) -> dict[str, Any]:
  """The fields of every agent's config that `Common` options decide.

  Args:
    given: the options.
    updates: that the whole run will make, if no step is a reset. Resets take
      some of an unroll's steps, so the rate is 0 for the same share of a run.
  """
  names = (
    "learning_rate discount reward_scale reward_clip max_gradient_norm"
    " normalize_observations hidden_sizes image_torso stack_frames"
    " compute_dtype"
  )
  return {name: getattr(given, name) for name in names.split()} | {
    "optimizer": getattr(given, "optimizer", "adam"),
    "learning_rate_end": 0.0,
    "decay_updates": max(1, round(updates)),
  }


def actor_critic(given: Any, updates: float) -> dict[str, Any]:
  """Those of an actor-critic's config; see `agent`."""
  return agent(given, updates) | {
    "entropy_cost": given.entropy_cost,
    "value_cost": given.value_cost,
    "lambda_": given.td_lambda,
    "lstm_size": given.lstm_size if given.recurrent else 0,
  }


def ppo(given: Any, updates: float) -> dict[str, Any]:
  """Those of PPO's config; see `agent`."""
  names = ("epochs", "minibatches", "clip_epsilon", "clip_values")
  return actor_critic(given, updates) | _present(given, names)


def dqn(given: Any, updates: float) -> dict[str, Any]:
  """Those of DQN's config; see `agent`.

  Epsilon falls by updates, as many as `epsilon_steps` make.
  """
  names = (
    *("n_step", "double", "dueling", "huber_delta", "rescale"),
    *("target_period", "epsilon_end", "epsilon_ladder"),
  )
  fields = agent(given, updates) | _present(given, names)
  epsilon_steps = getattr(given, "epsilon_steps", 0)
  falls = round(epsilon_steps * updates / given.total_steps)
  return fields | {"epsilon_decay_updates": falls}


def _present(given: Any, names: Sequence[str]) -> dict[str, Any]:
  """The options that there are; an agent may be chosen that takes others."""
  return {name: getattr(given, name) for name in names if hasattr(given, name)}


def replay(given: Any) -> "feeds.ReplayConfig":
  """The replay that `Replay` options ask for."""
  from seedx.runtime import feeds

  return feeds.ReplayConfig(
    capacity=given.replay_capacity,
    min_steps=given.replay_min_steps,
    batch_size=given.replay_batch_size,
    ratio=given.replay_ratio,
  )


def preset(
  presets: Presets, given: Any, spec: types.EnvironmentSpec
) -> dict[str, Any]:
  """The presets that apply, of several the last.

  Args:
    presets: options by "default"; by "images" or "continuous", for such
      observations or actions; by "recurrent", for an agent with a memory; by
      what `--agent` names.
    given: the options.
    spec: of the environment.
  """
  images = any(
    leaf.dtype == np.uint8 and len(leaf.shape) == 3
    for leaf in tree.flatten(spec.observation)
  )
  continuous = np.issubdtype(spec.action.dtype, np.floating)
  applies = {
    "default": True,
    "images": images,
    "continuous": continuous and not images,
    "recurrent": getattr(given, "recurrent", False),
    getattr(given, "agent", ""): True,
  }
  chosen: dict[str, Any] = {}
  for key, values in presets.items():
    if applies.get(key, False):
      chosen |= values
  return chosen
