"""Trains a V-trace agent through the SEED loop.

  python -m experiments.seed_vtrace --env CartPole-v1

starts its own actors. On several machines:

  python -m experiments.seed_vtrace --role learner --address 0.0.0.0:8470
  python -m experiments.seed_vtrace --role actor --address learner-host:8470

with the same environment options on both sides. Defaults depend on the kind of
environment: `--env Pong-v5 --help` shows those of Atari.
"""

import dataclasses
import sys
import tempfile
import threading
from typing import Any

from experiments import allocator, options
from seedx import types

option = options.option


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line; presets of the environment's kind change defaults."""

  env: str = option("CartPole-v1", "EnvPool's name of the environment")
  total_steps: int = option(2_000_000, "env steps to learn for")
  seed: int = option(0, "fixes environments, initial parameters and sampling")
  run_dir: str = option(
    "", "where results go; runs/seed_vtrace/<time> if empty"
  )
  num_actors: int = option(2, "actor processes")
  envs_per_actor: int = option(128, "environments of each actor")
  actor_batch_size: int = option(
    0, "environments in a message; 0 steps all of an actor's in lock step"
  )
  unroll_length: int = option(20, "transitions in an unroll")
  batch_size: int = option(64, "unrolls in an update")
  micro_batches: int = option(1, "parts that an update is computed in")
  learning_rate: float = option(2e-3, "of Adam, falling to 0 over the run")
  discount: float = option(0.99, "per env step")
  td_lambda: float = option(1.0, "mixes in shorter returns; 1 for the longest")
  entropy_cost: float = option(0.01, "weight of the entropy bonus")
  reward_scale: float = option(0.1, "rewards are multiplied by it in the loss")
  reward_clip: float = option(0.0, "then clipped to +- this; 0 for never")
  stack_frames: int = option(1, "frames that the network sees of images")
  compute_dtype: str = option(
    "float32", "of the network", choices=("float32", "bfloat16")
  )
  role: str = option(
    "all",
    "what this process does; 'all' starts its own actors",
    choices=("all", "learner", "actor"),
  )
  address: str = option(
    "", "where the learner listens, HOST:PORT or unix:PATH; with --role"
  )
  inference_devices: tuple[int, ...] = option(
    (0,), "indices of the devices that act", parse=options.integers
  )
  learner_devices: tuple[int, ...] = option(
    (0,), "indices of the devices that learn", parse=options.integers
  )
  env_options: dict[str, Any] = option(
    {}, "EnvPool's options, KEY=VALUE,KEY=VALUE", parse=options.keywords
  )
  info_keys: tuple[str, ...] = option(
    (), "info entries that join the observation", parse=options.names
  )


def main(argv: list[str] | None = None) -> int:
  """Runs the experiment; returns its exit status."""
  argv = sys.argv[1:] if argv is None else argv
  try:
    return _run(argv)
  except types.ConfigError as error:
    options.fail(error)


def _run(argv: list[str]) -> int:
  # Which presets apply depends on the environment, and so does the help.
  first = [word for word in argv if word not in ("-h", "--help")]
  given = options.parse(Options, first, __doc__)
  if given.role == "actor":
    sys.modules["jax"] = None  # type: ignore[assignment]
  if given.role != "all" and not given.address:
    raise types.ConfigError(
      f"expected --address with --role {given.role}, found none"
    )
  from experiments import presets
  from seedx import envs

  spec = envs.spec(given.env, given.env_options, given.info_keys)
  given = options.parse(Options, argv, __doc__, presets.for_spec(spec))
  if given.role == "actor":
    return _act(given)
  return _learn(given)


def _act(given: Options) -> int:
  from experiments import training
  from seedx import wire
  from seedx.runtime import actor

  config = actor.Config(
    address=given.address,
    env_id=given.env,
    num_envs=given.envs_per_actor,
    batch_size=given.actor_batch_size or given.envs_per_actor,
    env_options=given.env_options,
    info_keys=given.info_keys,
  )
  stop = threading.Event()
  interrupted = training.stop_on_signals(stop)
  try:
    actor.run(config, stop)
  except wire.WireError as error:
    raise types.ConfigError(
      f"the learner at {given.address} refuses this actor: {error}"
    ) from error
  return training.INTERRUPTED_STATUS if interrupted.is_set() else 0


def _learn(given: Options) -> int:
  from experiments import training
  from seedx.agents import vtrace
  from seedx.pipelines import seed

  steps_per_update = given.batch_size * given.unroll_length
  agent = vtrace.Config(
    discount=given.discount,
    learning_rate=given.learning_rate,
    learning_rate_end=0.0,
    decay_updates=-(-given.total_steps // steps_per_update),
    lambda_=given.td_lambda,
    entropy_cost=given.entropy_cost,
    reward_scale=given.reward_scale,
    reward_clip=given.reward_clip,
    stack_frames=given.stack_frames,
    compute_dtype=given.compute_dtype,
  )
  with tempfile.TemporaryDirectory() as sockets:
    config = seed.Config(
      env_id=given.env,
      make_agent=lambda spec, axis: vtrace.make(spec, agent, axis),
      address=given.address or f"unix:{sockets}/learner",
      total_steps=given.total_steps,
      seed=given.seed,
      num_actors=given.num_actors,
      envs_per_actor=given.envs_per_actor,
      actor_batch_size=given.actor_batch_size or given.envs_per_actor,
      unroll_length=given.unroll_length,
      batch_size=given.batch_size,
      micro_batches=given.micro_batches,
      inference_devices=given.inference_devices,
      learner_devices=given.learner_devices,
      env_options=given.env_options,
      info_keys=given.info_keys,
    )
    return training.run(
      given,
      lambda sinks, stop: seed.Learner(config, sinks, stop),
      [seed.actors(config)] if given.role == "all" else [],
    )


if __name__ == "__main__":
  allocator.keep_freed_memory()
  sys.exit(main())
