"""Games of the arena, compared with games played one at a time."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import envs, types
from seedx.agents import base
from seedx.app import policies
from seedx.app.arena import matches, players, ratings
from seedx.envs import functional, native_games
from tests import fakes

GAME = functional.TicTacToe()
_CELLS = np.arange(9).reshape(3, 3)
LINES = [*_CELLS, *_CELLS.T, _CELLS.diagonal(), _CELLS[::-1].diagonal()]


def has_won(stones):
  return any(stones.issuperset(line.tolist()) for line in LINES)


def counting_step(traces, acting, rng_key, inputs, core_state):
  """Takes a legal move by the acting parameter and the number of own moves."""
  traces.append(inputs)
  legal = inputs.timestep.observation["action_mask"]
  number = jnp.sum(legal, axis=1)
  chosen = (acting * core_state + inputs.action_tm1) % number
  rank = jnp.cumsum(legal, axis=1) - 1
  action = jnp.argmax(legal & (rank == chosen[:, None]), axis=1)
  return types.AgentOutput(action.astype(jnp.int32), ()), core_state + 1


def counting_policy(parameter, traces=None, game="TicTacToe"):
  """Returns a policy whose moves depend on its memory and last move."""
  env = envs.Config(f"seedx:{game}")
  step = functools.partial(counting_step, [] if traces is None else traces)
  agent = fakes.counting_agent()
  fields = {name: getattr(agent, name) for name in vars(agent)}
  fields["initial_core_state"] = lambda size: jnp.ones(size, jnp.int32)
  return policies.Policy(
    directory=None,
    name="counting",
    seed=0,
    env_steps=7,
    env=env,
    spec=envs.spec(env),
    agent=base.Agent(**fields | {"step": step, "greedy": step}),
    acting=jnp.int32(parameter),
  )


@functools.cache
def counting_player(parameter):
  return players.of_run(f"counting {parameter}", counting_policy(parameter))


@functools.cache
def opponent(name):
  return players.of_opponent(GAME, name, 4)


def moves_by_hand(parameter, number, last, empty):
  return empty[(parameter * number + last) % len(empty)]


def exam_by_hand(parameter, side):
  """Returns the numbers of lost lines and lines, by a recursion over lines."""

  def walk(stones, own, number, last):
    mover = len(stones[0]) + len(stones[1])
    mover %= 2
    empty = [k for k in range(9) if k not in stones[0] | stones[1]]
    if has_won(stones[1 - mover]):
      return int(1 - mover != side), 1
    if not empty:
      return 0, 1
    if mover == side:
      replies = [moves_by_hand(parameter, number, last, empty)]
      last, number = replies[0], number + 1
    else:
      replies = empty
    lost = lines = 0
    for cell in replies:
      after = list(stones)
      after[mover] = stones[mover] | {cell}
      a, b = walk(after, own, number, last)
      lost, lines = lost + a, lines + b
    return lost, lines

  return walk([frozenset(), frozenset()], side, 1, 0)


def test_the_exam_walks_every_line_with_the_players_memory():
  expected = *exam_by_hand(3, 0), *exam_by_hand(3, 1)
  assert expected[0] > 0 and expected[2] > 0
  assert matches.exam(GAME, counting_player(3), 100) == expected
  assert matches.exam(GAME, counting_player(3), 1024) == expected


def test_perfect_play_loses_no_line_and_scores_as_computed_against_random():
  @functools.cache
  def value(own, other, is_perfect):
    """Returns the expected score of the player to move."""
    if has_won(other):
      return 0.0
    empty = [k for k in range(9) if k not in own | other]
    if not empty:
      return 0.5
    values = [1 - value(other, own | {k}, not is_perfect) for k in empty]
    if not is_perfect:
      return sum(values) / len(values)
    code = sum(3**k * ((k in own) + 2 * (k in other)) for k in range(9))
    best = functional.games._optimal()[code]
    return float(
      np.mean([x for k, x in zip(empty, values, strict=True) if best[k]])
    )

  nothing = frozenset()
  exact = value(nothing, nothing, True), 1 - value(nothing, nothing, False)
  assert exact == pytest.approx((0.984, 0.889), abs=0.002)
  board = matches.Board(GAME, 2000)
  names = ("random", "perfect")
  ((pair,)) = matches.tournament(
    board, [opponent(x) for x in names], 0, 0, lambda *_: None
  ).values()
  first, second = pair.second.reversed(), pair.first.reversed()
  assert first.lost == second.lost == 0
  assert ratings.score(first).value == pytest.approx(exact[0], abs=0.02)
  assert ratings.score(second).value == pytest.approx(exact[1], abs=0.02)


def test_each_opening_is_played_from_both_sides():
  board = matches.Board(GAME, 100)
  a, b = counting_player(0), counting_player(3)
  twin = players.of_run("twin", counting_policy(0))
  results = matches.tournament(board, [a, twin, b], 2, 0, lambda *_: None)
  same = results[a.name, "twin"]
  assert same.first == same.second.reversed()
  other = results[a.name, b.name]
  assert min(other.first.won, other.first.lost) > 0  # Games differ.
  assert other != results["twin", b.name]  # Each pair has other openings.
  assert results == matches.tournament(
    board, [a, twin, b], 2, 0, lambda *_: None
  )


def test_the_first_move_of_each_player_follows_an_opening():
  seen = []

  def act(rng_key, state, memory, is_first):
    seen.append(is_first)
    return jnp.argmax(jax.vmap(GAME.legal)(state), axis=1), memory

  board = matches.Board(GAME, 100)
  player = players.Player("own", GAME, False, lambda rows: (), act)
  opening = np.array([[8] * 100, [4] * 100])
  matches.match(board, player, player, opening, jax.random.key(0))
  assert seen[:2] == [True, True] and not any(seen[2:])


def test_an_opponents_seed_is_drawn_at_the_first_move_of_a_game():
  player, state = opponent("random"), matches.Board(GAME, 100).state
  keys = jax.random.split(jax.random.key(0))
  _, drawn = player.act(keys[0], state, player.start(100), True)
  assert len(np.unique(drawn)) > 90
  _, kept = player.act(keys[1], state, drawn, False)
  np.testing.assert_array_equal(kept, drawn)


def game_by_hand(parameters):
  """Returns the score of the first of two counting players."""
  stones, numbers, last = [set(), set()], [1, 1], [0, 0]
  for move in range(9):
    side = move % 2
    empty = [k for k in range(9) if k not in stones[0] | stones[1]]
    cell = moves_by_hand(parameters[side], numbers[side], last[side], empty)
    stones[side].add(cell)
    numbers[side], last[side] = numbers[side] + 1, cell
    if has_won(stones[side]):
      return 1 - side
  return 0.5


def test_without_openings_players_repeat_a_game_each_with_its_memory():
  board = matches.Board(GAME, 50)
  parameters = 0, 1, 2, 3, 5
  everyone = [counting_player(k) for k in parameters]
  results = matches.tournament(board, everyone, 0, 0, lambda *_: None)
  scores = set()
  for (a, b), pair in zip(
    itertools.combinations(parameters, 2), results.values(), strict=True
  ):
    score = ratings.score(pair.first).value, ratings.score(pair.second).value
    assert score == (game_by_hand((a, b)), 1 - game_by_hand((b, a)))
    scores.update(score)
  assert scores >= {0, 1}


def test_openings_do_not_end_games():
  board = matches.Board(GAME, 200)
  moves = matches.openings(board, opponent("random"), 6, jax.random.key(0))
  assert moves.shape == (6, 200)
  board.reset()
  for action in moves:
    board.play(jnp.asarray(action), "random")
  assert not board.over.any()
  with pytest.raises(types.ConfigError, match="fewer --opening-moves"):
    matches.openings(board, opponent("random"), 9, jax.random.key(0))


def test_a_player_is_compiled_once_for_all_its_games():
  traces = []
  a = players.of_run("a", counting_policy(3, traces))
  everyone = [a, counting_player(0), opponent("random"), opponent("perfect")]
  matches.tournament(matches.Board(GAME, 100), everyone, 2, 0, lambda *_: None)
  matches.exam(GAME, a, 100)
  assert len(traces) == 1


def test_games_on_envpool_are_the_same():
  game = functional.ConnectFour()
  a = players.of_run("a", counting_policy(3, game="ConnectFour"))
  random = players.of_opponent(game, "random", 1)
  results = [
    matches.tournament(kind(game, 100), [a, random], 2, 0, lambda *_: None)
    for kind in (matches.Board, matches.NativeBoard)
  ]
  assert results[0] == results[1]


@pytest.mark.parametrize("part", native_games.Step._fields)
def test_a_difference_of_envpools_games_is_reported(monkeypatch, part):
  step = native_games.NativeGames.step

  def other(self, action):
    result = step(self, action)
    value = np.array(getattr(result, part))
    value[3:4] = 1 - value[3:4]
    return result._replace(**{part: value})

  board = matches.NativeBoard(GAME, 100)
  monkeypatch.setattr(native_games.NativeGames, "step", other)
  with pytest.raises(types.ConfigError, match="after 1 moves; leave out --nat"):
    matches.match(
      board,
      opponent("random"),
      opponent("random"),
      np.zeros((0, 100), np.int32),
      jax.random.key(0),
    )


def test_an_illegal_move_names_its_player():
  def first_cell(acting, rng_key, inputs, core_state):
    action = jnp.zeros(len(inputs.timestep.reward), jnp.int32)
    return types.AgentOutput(action, ()), core_state

  policy = counting_policy(0)
  agent = dataclasses.replace(policy.agent, greedy=first_cell)
  bad = players.of_run("stubborn", dataclasses.replace(policy, agent=agent))
  with pytest.raises(types.ConfigError, match="by the player stubborn"):
    matches.exam(GAME, bad, 100)
  board = matches.Board(GAME, 100)
  with pytest.raises(types.ConfigError, match="by the player stubborn"):
    matches.tournament(board, [bad, opponent("random")], 0, 0, lambda *_: None)
