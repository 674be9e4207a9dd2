"""Measures how well a run plays connect four, against an exact solver.

  python -m benchmarks.connect_four RUN --positions 500

The positions are from games that the run plays against itself, with noise as in
training: the first of each game with at most 12 empty cells (`--empty`) and
legal moves that differ in value; in many late positions all moves are equal.
The agreement is the share of positions in which a player's move has the best
value: won, drawn or lost. A search with random playouts, for comparison, has as
many simulations as the run.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import connect_four_solver
from seedx import app, envs, types
from seedx.acting import evaluator
from seedx.agents import acting_step
from seedx.app.runs import records
from seedx.envs.functional import games, match, opponents

_GAMES = 256  # Games that are played at the same time.
_MAX_GAMES = 2**16


class Positions(NamedTuple):
  """Distinct positions of self-play, whose legal moves differ in value.

  Attributes:
    boards: `[N, 2, 6, 7]` int8, see `games.ConnectFour`.
    best: `[N, 7]` bool, the legal moves with the best value.
    legal: `[N, 7]` bool.
    games: number of games that were played to find them.
  """

  boards: np.ndarray
  best: np.ndarray
  legal: np.ndarray
  games: int


def main(argv: Sequence[str] | None = None) -> int:
  """Prints a table of the players' agreement, and the score against random."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("run_dir", metavar="RUN")
  parser.add_argument("--checkpoint", default="latest")
  parser.add_argument("--positions", type=int, default=500)
  parser.add_argument(
    "--empty", type=int, default=12, help="at most about 20: the solver is slow"
  )
  parser.add_argument(
    "--games", type=int, default=400, help="against random, half in each seat"
  )
  parser.add_argument("--seed", type=int, default=0)
  options = parser.parse_args(argv)
  policy = app.load(options.run_dir, options.checkpoint)
  if policy.spec.game != games.ConnectFour():
    raise types.ConfigError(
      f"expected a run of seedx:ConnectFour, found one of {policy.env.env}"
    )
  simulations = records.read(options.run_dir).options["num_simulations"]
  start = time.monotonic()
  chosen = positions(policy, options.positions, options.empty, options.seed)
  print(
    f"{options.run_dir} after {policy.env_steps:,} moves: {len(chosen.boards)}"
    f" positions of {chosen.games} games, {time.monotonic() - start:.0f} s\n"
  )
  print("| player | best moves | 95% interval |\n|---|---|---|")
  right = {}
  for name, choose in players(policy, simulations, options.seed).items():
    moves = np.asarray(choose(chosen.boards))
    right[name] = chosen.best[np.arange(len(moves)), moves]
    _print(name, right[name])
  _print("random moves", chosen.best.sum(axis=1) / chosen.legal.sum(axis=1))
  run, _, playouts = right.values()
  print("\nthe run more than playouts: " + difference(run, playouts))
  print("\n| against random | score | 95% interval |\n|---|---|---|")
  results = {
    seat: against_random(policy, seat, options.games // 2, options.seed)
    for seat in ("first", "second")
  }
  for seat, result in results.items():
    _print(f"as {seat}", result)
  _print("both", np.concatenate([*results.values()]))
  return 0


def positions(
  policy: app.Policy, number: int, empty: int, seed: int
) -> Positions:
  """Lets a policy play against itself until there are enough positions.

  Positions that are reflections of each other count as one.
  """
  play = _self_play(policy)
  boards: list[np.ndarray] = []
  labels: list[dict[int, int]] = []
  seen: set[bytes] = set()
  played = 0
  while len(boards) < number and played < _MAX_GAMES:
    key = jax.random.fold_in(jax.random.key(seed), played)
    played += _GAMES
    games = zip(*map(np.asarray, play(policy.acting, key)), strict=True)
    for of_game, step_type in games:
      for board in late(of_game, step_type, empty):
        name = min(board.tobytes(), board[..., ::-1].tobytes())
        if name in seen:
          continue
        seen.add(name)
        values = connect_four_solver.values(*connect_four_solver.bits(board))
        if len({*values.values()}) > 1:
          boards.append(board)
          labels.append(values)
          break
  if not boards:
    raise types.ConfigError(
      f"expected games that last until {empty} cells are empty, found none in"
      f" {played:,}; train longer, or choose a larger --empty"
    )
  boards, labels = boards[:number], labels[:number]
  best = [[x.get(k) == max(x.values()) for k in range(7)] for x in labels]
  legal = [[k in x for k in range(7)] for x in labels]
  return Positions(
    np.array(boards), np.array(best), np.array(legal), games=played
  )


def late(boards: np.ndarray, step_type: np.ndarray, empty: int) -> np.ndarray:
  """Returns the positions of a game, `[T, ...]`, with few empty cells.

  Positions at and after the end are left out.
  """
  goes_on = np.cumsum(step_type == int(dm_env.StepType.LAST)) == 0
  left = boards[0, 0].size - boards.sum(axis=(1, 2, 3))
  return boards[goes_on & (left <= empty)]


def _self_play(
  policy: app.Policy,
) -> Callable[[types.Tree, jax.Array], tuple[jax.Array, jax.Array]]:
  """Returns a function that plays games with the exploration of training.

  It maps acting parameters and a random key to boards, `[B, T, 2, 6, 7]`, and
  step types, `[B, T]`.
  """
  env = match.Match(policy.spec.game)

  def play(
    acting: types.Tree, rng_key: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    def step(
      carry: types.Tree, key: jax.Array
    ) -> tuple[types.Tree, types.Tree]:
      state, timestep, acting_state = carry
      act_key, env_key = jax.random.split(key)
      taken = acting_step.take(
        policy.agent,
        acting,
        act_key,
        timestep,
        acting_state,
        exploration=jnp.zeros(_GAMES),
      )
      state, timestep = jax.vmap(env.step)(
        state, taken.output.action, jax.random.split(env_key, _GAMES)
      )
      board = timestep.observation[games.BOARD]
      carry = state, timestep, taken.acting_state
      return carry, (board, timestep.step_type)

    state = jax.vmap(env.init)(jax.random.split(rng_key, _GAMES))
    state, timestep = jax.vmap(env.step)(
      state,
      jnp.zeros(_GAMES, jnp.int32),
      jax.random.split(rng_key, _GAMES),
    )
    start = state, timestep, policy.initial_state(_GAMES)
    keys = jax.random.split(rng_key, env.game.max_moves)
    _, steps = jax.lax.scan(step, start, keys)
    boards, step_type = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), steps)
    return boards, step_type

  return jax.jit(play)


def players(
  policy: app.Policy, simulations: int, seed: int
) -> dict[str, Callable[[np.ndarray], jax.Array]]:
  """Returns functions from boards `[N, 2, 6, 7]` to moves `[N]`, by name."""
  game = policy.spec.game
  rollouts = opponents.make(game, "search", simulations)

  def timestep(boards: jax.Array) -> dm_env.TimeStep:
    rows = boards.shape[:1]
    return dm_env.TimeStep(
      step_type=jnp.full(rows, int(dm_env.StepType.MID), jnp.uint8),
      reward=jnp.zeros(rows),
      discount=jnp.ones(rows),
      observation=jax.vmap(game.observe)(boards),
    )

  def agent(boards: jax.Array) -> jax.Array:
    state = policy.initial_state(len(boards))
    return policy.act(timestep(boards), state)[0]

  def network(boards: jax.Array) -> jax.Array:
    assert policy.agent.without_search is not None
    state = policy.initial_state(len(boards))
    inputs = acting_step.zero_inputs(policy.spec, len(boards))
    output, _ = policy.agent.without_search(
      policy.acting,
      jax.random.key(seed),
      inputs._replace(timestep=timestep(boards)),
      state.core_state,
    )
    return output.action

  def search(boards: jax.Array) -> jax.Array:
    keys = jax.random.split(jax.random.key(seed), len(boards))
    seeds = jnp.zeros(len(boards), jnp.uint32)
    return jax.vmap(rollouts)(keys, seeds, boards)

  return {
    f"the run, {simulations} simulations": jax.jit(agent),
    "its network alone": jax.jit(network),
    f"playouts, {simulations} simulations": jax.jit(search),
  }


def against_random(
  policy: app.Policy, seat: str, number: int, seed: int
) -> np.ndarray:
  """Returns the greedy policy's scores: 1 for a won game, 1/2 for a draw."""
  options = {"opponent": "random", "seat": seat}
  config = evaluator.Config(
    envs.Config(policy.env.env, env_options=options), number, num_envs=number
  )
  player = evaluator.Evaluator(policy.agent, config)
  return (1.0 + player.play(policy.acting, seed).returns) / 2.0


def interval(scores: np.ndarray) -> tuple[float, float]:
  """Returns Wilson's 95% interval of the mean of scores from 0 to 1.

  It is exact enough near 0 and 1, and too wide if scores are fractions.
  """
  number, mean, z = len(scores), float(np.mean(scores)), 1.96
  centre = mean + z * z / (2 * number)
  half = z * np.sqrt(mean * (1 - mean) / number + (z / (2 * number)) ** 2)
  scale = 1 + z * z / number
  return float((centre - half) / scale), float((centre + half) / scale)


def difference(first: np.ndarray, second: np.ndarray) -> str:
  """Returns the mean difference in the same positions, with its interval."""
  each = first.astype(float) - second
  half = 1.96 * np.std(each) / np.sqrt(len(each))
  mean = np.mean(each)
  return f"{mean:.1%} ({mean - half:.1%} to {mean + half:.1%})"


def _print(name: str, scores: np.ndarray) -> None:
  low, high = interval(scores)
  print(f"| {name} | {np.mean(scores):.1%} | {low:.1%} to {high:.1%} |")


if __name__ == "__main__":
  sys.exit(main())
