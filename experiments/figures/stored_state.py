"""Draws the effect of stored LSTM states and of burn-in on R2D2.

  python -m experiments.figures.stored_state

The program trains R2D2 on CartPole with hidden velocities, in one process.
Sequences begin with the stored state of the LSTM or with zeros, with and
without burn-in. Runs that already exist are not trained again.

The picture shows returns and a Q-value discrepancy:

    |q(replayed) - q(true)|_2 / max |q(replayed)|

where q(true) is computed from the start of the episode, and the maximum is over
the actions and steps of the sequence. Kapturowski et al. 2019, section 3,
https://openreview.net/forum?id=r1lyTjAqYX, compare with the stored states
instead, which older parameters made. They find that the stored state helps more
than burn-in; with the measure here, burn-in helps more.

The measurement uses the final parameters of a run and all sequences in its
replay, each up to the end of the episode in which it began. Older parameters of
different ages computed the stored states.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import figure

from seedx import app, checkpoint, envs, metrics, replay, types
from seedx.acting import local_actor, unroll_store
from seedx.agents import base, r2d2
from seedx.app import plot
from seedx.app.cli import command_line
from seedx.app.runs import checkpointer
from seedx.learning import learner
from seedx.pipelines import sync

# Kinds of runs: whether sequences begin with the stored state, and the length
# of the burn-in.
_ARMS = {
  "stored state, burn-in 20": (True, 20),
  "stored state": (True, 0),
  "zero state, burn-in 20": (False, 20),
  "zero state": (False, 0),
}
_NUM_ENVS = 8
_PERIOD = 20
_REPLAY = replay.PrioritizedConfig(
  replay_batch_size=32, priority_exponent=0.9, importance_exponent=0.6
)
_COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#E69F00")


@dataclasses.dataclass(frozen=True)
class Options:
  """The command line.

  Attributes:
    run_dir: directory of the runs, and of `stored_state.png`.
    total_steps: number of env steps in each run.
    seeds: number of runs of each kind, with seeds 0, 1, 2 and so on.
  """

  run_dir: str = "runs/stored_state"
  total_steps: int = types.setting(300_000, low=2_000)
  seeds: int = types.setting(3, low=1, high=2**20)

  def __post_init__(self) -> None:
    """Raises types.ConfigError for an option out of its range."""
    types.check_settings(self)


class Result(NamedTuple):
  """The measurements of a run.

  Attributes:
    curve: `[points, 2]`, env steps and returns.
    discrepancy: `[T + 1]`, mean discrepancy of each step after the burn-in.
  """

  curve: np.ndarray
  discrepancy: np.ndarray


def main(argv: Sequence[str] | None = None) -> int:
  """Trains and draws; returns the exit status."""
  return command_line.run(_draw_all, Options(), "stored_state", __doc__, argv)


def result(
  run_dir: pathlib.Path,
  *,
  total_steps: int,
  seed: int,
  stored_state: bool,
  burn_in: int,
) -> Result:
  """Measures a run, which is trained first if it does not exist."""
  agent = r2d2.Config(stored_state=stored_state, burn_in=burn_in)
  config = sync.Config(
    env=envs.Config(
      observation_transform="seedx.envs.transforms:hide_velocities"
    ),
    agent=agent,
    num_envs=_NUM_ENVS,
    learner=learner.Config(unroll_length=_PERIOD),
    replay=_REPLAY,
    total_steps=total_steps,
    seed=seed,
  )
  if not run_dir.exists():
    app.train(config, run_dir=str(run_dir))
  policy = app.load(run_dir, config=config)
  values = discrepancy(
    policy.agent,
    policy.acting,
    _replayed(policy),
    num_envs=_NUM_ENVS,
    period=_PERIOD,
    stored_state=stored_state,
  )
  lines = metrics.read_lines(run_dir / "metrics.jsonl")
  return Result(plot.curve(lines, "env_steps"), values[burn_in:])


def discrepancy(
  agent: base.Agent,
  acting: types.Tree,
  unrolls: types.Unroll,
  *,
  num_envs: int,
  period: int,
  stored_state: bool,
) -> np.ndarray:
  """Returns the mean Q-value discrepancy of each step of a sequence, `[L]`.

  `unrolls` has K unrolls of each environment, `[L, num_envs * K, ...]`, oldest
  first, with `period` steps from start to start. Each unroll begins with its
  own core state if `stored_state`, else with zeros. `extras.outputs` are
  Q-values.
  """
  greedy = agent.greedy
  assert greedy is not None

  @jax.jit
  def q_values(inputs: types.Inputs, core_state: types.Tree) -> jax.Array:
    def step(
      core_state: types.Tree, inputs: types.Inputs
    ) -> tuple[types.Tree, jax.Array]:
      key = jax.random.key(0)
      output, core_state = greedy(acting, key, inputs, core_state)
      return core_state, output.extras.outputs

    return jax.lax.scan(step, core_state, inputs)[1]

  length, size = unrolls.version.shape
  zeros = agent.initial_core_state(size)
  start = unrolls.core_state if stored_state else zeros
  replayed = q_values(unrolls.inputs, start)  # [L, num_envs * K, A]

  def in_order(x: jax.Array) -> jax.Array:
    """Returns all steps in order, each once: `[K * period, num_envs, ...]`."""
    steps = x[:period].reshape(period, -1, num_envs, *x.shape[2:])
    return jnp.swapaxes(steps, 0, 1).reshape(-1, num_envs, *x.shape[2:])

  whole = jax.tree.map(in_order, unrolls.inputs)
  true = q_values(whole, agent.initial_core_state(num_envs))
  first = whole.timestep.step_type == int(dm_env.StepType.FIRST)
  has_true_state = jnp.cumsum(first, axis=0) > 0

  def of_sequences(x: jax.Array) -> jax.Array:
    """Returns `[L, num_envs * K', ...]` for K' complete sequences."""
    starts = jnp.arange(0, len(x) - length + 1, period)
    time = jnp.arange(length)[:, None] + starts
    return x[time].reshape(length, -1, *x.shape[2:])

  true, has_true_state, first = (
    of_sequences(x) for x in (true, has_true_state, first)
  )
  replayed = replayed[:, : true.shape[1]]
  same_episode = jnp.cumsum(first[1:], axis=0) == 0
  same_episode = jnp.concatenate([jnp.ones_like(first[:1]), same_episode])
  weight = has_true_state & same_episode
  scale = jnp.max(jnp.abs(replayed), axis=(0, 2))
  distance = jnp.linalg.norm(replayed - true, axis=-1) / scale
  return np.asarray(
    jnp.sum(distance * weight, axis=1) / jnp.sum(weight, axis=1)
  )


def _replayed(policy: app.Policy) -> types.Unroll:
  """Returns all unrolls `[L, B, ...]` of the run's replay, oldest first."""
  layout = unroll_store.Layout.of(policy.agent, _PERIOD, _NUM_ENVS)
  share = local_actor.Programs(policy.agent, policy.spec, layout).share()
  capacity = _REPLAY.replay_capacity // _PERIOD
  prioritized = replay.Prioritized(capacity, layout.length)
  uniform = replay.Uniform(capacity, layout.length)
  arrays = checkpoint.Checkpoints(policy.directory).restore(
    policy.env_steps, checkpointer.REPLAY
  )
  prefix = "states/0/"
  replay_arrays = {
    name.removeprefix(prefix): array
    for name, array in arrays.items()
    if name.startswith(prefix)
  }
  shapes = jax.eval_shape(prioritized.init, share)
  state = jax.tree.map(
    jnp.asarray, checkpoint.like(replay_arrays, shapes, "the checkpoint").ring
  )
  inserted = int(state.inserted)
  order = jnp.arange(max(0, inserted - capacity), inserted) % capacity
  return uniform.windows(state, order, jnp.zeros_like(order))


def _draw_all(options: Options) -> int:
  run_dir = pathlib.Path(options.run_dir).expanduser()
  results: dict[str, list[Result]] = {name: [] for name in _ARMS}
  for seed in range(options.seeds):
    for name, (stored_state, burn_in) in _ARMS.items():
      measured = result(
        run_dir / f"{name} {seed}".replace(",", "").replace(" ", "_"),
        total_steps=options.total_steps,
        seed=seed,
        stored_state=stored_state,
        burn_in=burn_in,
      )
      results[name].append(measured)
  _draw(results, run_dir / "stored_state.png")
  for name, runs in results.items():
    returns = [f"{run.curve[-1, 1]:.1f}" for run in runs]
    first, last = (
      np.mean([run.discrepancy[i] for run in runs]) for i in (0, -1)
    )
    print(
      f"{name}: returns {', '.join(returns)}, discrepancy {first:.3g} at the"
      f" first and {last:.3g} at the last step"
    )
  return 0


def _draw(results: Mapping[str, Sequence[Result]], path: pathlib.Path) -> None:
  picture = figure.Figure(figsize=(12, 5), dpi=100, layout="constrained")
  left, right = picture.subplots(1, 2)
  for colour, (name, runs) in zip(_COLOURS, results.items(), strict=True):
    env_steps = np.linspace(0, min(run.curve[-1, 0] for run in runs), 100)
    returns = [np.interp(env_steps, *run.curve.T) for run in runs]
    discrepancies = [run.discrepancy for run in runs]
    steps = np.arange(len(discrepancies[0]))
    plots = (left, env_steps, returns), (right, steps, discrepancies)
    for axes, x, ys in plots:
      axes.plot(x, np.mean(ys, axis=0), color=colour, label=name, linewidth=2.5)
      axes.plot(x, np.transpose(ys), color=colour, linewidth=0.7, alpha=0.5)
  left.set(xlabel="env steps", ylabel="return")
  right.set(xlabel="steps after the burn-in", ylabel="Q-value discrepancy")
  right.set_yscale("log")
  left.legend()
  picture.savefig(path)


if __name__ == "__main__":
  sys.exit(main())
