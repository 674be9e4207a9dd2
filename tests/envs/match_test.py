"""Games as environments: self-play, and play against opponents."""

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedx import envs, types
from seedx.envs import functional
from seedx.envs.functional import opponents
from tests.envs import boards

FIRST, MID, LAST = (int(step_type) for step_type in dm_env.StepType)
GAMES = {
  "seedx:TicTacToe": boards.TIC_TAC_TOE,
  "seedx:ConnectFour": boards.CONNECT_FOUR,
}


def steps_of(env="seedx:TicTacToe", **options):
  """Yields `(before, action, timestep, info)` of each step of each game.

  `before` is the board before the step; None before a FIRST.
  """
  timestep, action, info = boards.played(env, **options)
  for row in range(boards.SIZE):
    board = None
    for time in range(boards.STEPS):
      now, at = jax.tree.map(lambda x, at=(time, row): x[at], (timestep, info))
      yield board, action[time, row], now, at
      board = None if now.step_type == LAST else now.observation["board"]


def counted(steps):
  """Returns the numbers of won, drawn and lost games."""
  info = [at for _, _, now, at in steps if now.step_type == LAST]
  return [sum(x[name] for x in info) for name in ("won", "drawn", "lost")]


# Self-play


@pytest.mark.parametrize("env", GAMES)
def test_self_play_follows_the_rules_for_both_players(env):
  rules, moves, games = GAMES[env], 0, 0
  for before, action, now, info in steps_of(env):
    board, mask = now.observation["board"], now.observation["action_mask"]
    if before is None:
      moves, expected = 0, (rules.start(), 0, False)
      assert now.step_type == FIRST
    else:
      moves, expected = moves + 1, rules.play(before, action)
      assert now.step_type == (LAST if expected[2] else MID)
    after, reward, over = expected
    np.testing.assert_array_equal(board, after)
    assert (now.reward, now.discount) == (reward, not over)
    assert info["moves"] == moves
    if over:
      games += 1
      assert (info["won"], info["drawn"], info["lost"]) == (
        reward,
        1 - reward,
        0,
      )
    else:
      np.testing.assert_array_equal(mask, rules.legal(board))
  assert games > boards.SIZE


def test_the_spec_has_the_game_and_its_players():
  for env, rules in GAMES.items():
    for options, players in (({}, 2), ({"opponent": "random"}, 1)):
      spec = envs.spec(envs.Config(env, options))
      assert (spec.game, spec.players) == (rules.game, players)
      assert (spec.action_mask, spec.hidden) == ("action_mask", ())
  spec = envs.spec(envs.Config("seedx:Catch"))
  assert (spec.game, spec.players) == (None, 1)


# Opponents


def reply_of(rules, before, action, now):
  """Returns the opponent's move; None if it has none.

  Asserts that the step has the reward and the end of both moves.
  """
  board = now.observation["board"]
  expected, reward, over = before, 0.0, False
  if action is not None:
    expected, reward, over = rules.play(before, action)
  reply = None
  if not over and (board != expected).any():
    # The opponent was to move, so it has the first of the two boards.
    (cell,) = np.flatnonzero((board[1] != expected[0]).reshape(-1))
    reply = cell % rules.shape[1] if rules.falls else cell
    assert rules.legal(expected)[reply]
    expected, lost, over = rules.play(expected, reply)
    reward -= lost
  np.testing.assert_array_equal(board, expected)
  assert (now.reward, now.discount) == (reward, not over)
  return reply


@pytest.mark.parametrize(
  ("env", "seat"),
  [
    ("seedx:TicTacToe", "first"),
    ("seedx:TicTacToe", "second"),
    ("seedx:ConnectFour", "both"),
  ],
)
def test_rewards_against_an_opponent_are_the_agents(env, seat):
  rules, begun, moves = GAMES[env], [], 0
  steps = list(steps_of(env, opponent="random", seat=seat))
  for before, action, now, info in steps:
    first = before is None
    before, action = (rules.start(), None) if first else (before, action)
    reply = reply_of(rules, before, action, now)
    moves = (0 if first else moves + 1) + (reply is not None)
    assert info["moves"] == moves
    if first:
      assert (now.step_type, now.reward, now.discount) == (FIRST, 0, 1)
      begun.append(reply is not None)
    else:
      assert now.step_type == (MID if now.discount else LAST)
      assert (reply is not None) or now.step_type == LAST
    if now.step_type == LAST:
      one_hot = [float(x == now.reward) for x in (1, 0, -1)]
      assert [info[name] for name in ("won", "drawn", "lost")] == one_hot
  share = {"first": 0.0, "second": 1.0, "both": 0.5}[seat]
  assert abs(np.mean(begun) - share) <= 0.15 * (seat == "both")
  won, _, lost = counted(steps)
  assert won > 0 and lost > 0


def test_a_random_opponent_plays_every_legal_move_equally_often():
  counts = np.zeros((9, 9))
  for before, action, now, _ in steps_of(opponent="random", seat="second"):
    if before is None:
      continue
    reply = reply_of(boards.TIC_TAC_TOE, before, action, now)
    if reply is not None:
      after, *_ = boards.TIC_TAC_TOE.play(before, action)
      # By its rank among the legal moves, and their number.
      legal = np.flatnonzero(boards.TIC_TAC_TOE.legal(after))
      counts[len(legal) - 1, list(legal).index(reply)] += 1
  for number in (7, 5):
    drawn = counts[number - 1, :number]
    expected = drawn.sum() / number
    assert expected > 50 and not counts[number - 1, number:].any()
    assert (np.abs(drawn - expected) < 4 * np.sqrt(expected)).all()


@pytest.mark.parametrize("seat", ["first", "second"])
def test_a_perfect_opponent_plays_only_the_solvers_moves_and_never_loses(seat):
  options = {"opponent": "perfect", "seat": seat}
  won, drawn, lost = counted(steps_of(**options))
  assert won == 0 and drawn > 10 and lost > 200
  rules, seen = boards.TIC_TAC_TOE, set()
  for before, action, now, _ in steps_of(**options):
    start = rules.start() if before is None else before
    reply = reply_of(rules, start, None if before is None else action, now)
    if reply is not None:
      after = start if before is None else rules.play(start, action)[0]
      _, values = boards.solved()[int(boards.code(after))]
      assert values[reply] == np.nanmax(values)
      seen.add((int(boards.code(after)), int(reply)))
  if seat == "second":
    # All nine first moves are best, and each is chosen.
    assert {reply for start, reply in seen if start == 0} == set(range(9))


def own_opponent(game, text="0"):
  """Returns an opponent that plays a legal move by its number from the end."""

  def opponent(rng_key, game_seed, state):
    del rng_key, game_seed
    legal = game.legal(state)
    last = game.num_actions - 1 - jnp.argmax(legal[::-1])
    return jnp.where(text == "last", last, jnp.argmax(legal)).astype(jnp.int32)

  return opponent


@pytest.mark.parametrize(("text", "cell"), [("", 0), (":last", 8)])
def test_your_own_opponent_is_a_function_of_the_game_and_perhaps_a_text(
  text, cell
):
  name = f"{__name__}:own_opponent{text}"
  match = functional.make(
    envs.Config("seedx:TicTacToe", {"opponent": name, "seat": "second"})
  )
  key = jax.random.key(0)
  step = jax.jit(lambda: match.step(match.init(key), jnp.int32(4), key)[1])
  board = step().observation["board"]
  assert np.argwhere(board[1].reshape(-1)).tolist() == [[cell]]
  assert not board[0].any()


def fixed_move(game, text):
  """Returns an opponent that always plays one move."""
  return lambda rng_key, game_seed, state: jnp.int32(int(text))


def one_of_two(game, text):
  name = "+".join(f"{__name__}:fixed_move:{digit}" for digit in text)
  return opponents.make(game, name)


def test_choices_between_opponents_that_choose_are_independent():
  name = f"{__name__}:one_of_two:01+{__name__}:one_of_two:23"
  game = boards.TIC_TAC_TOE.game
  opponent, key = opponents.make(game, name), jax.random.key(0)
  moves = jax.vmap(lambda seed: opponent(key, seed, game.start()))
  assert sorted(moves(jnp.arange(4, dtype=jnp.uint32)).tolist()) == [0, 1, 2, 3]


def test_the_seed_of_a_game_is_drawn_once_for_each_game():
  """An opponent of several policies chooses one by it."""
  match = functional.make(
    envs.Config("seedx:TicTacToe", {"opponent": "random", "seat": "first"})
  )

  @jax.jit
  def run():
    def step(state, key):
      action = jnp.argmax(match.game.legal(state.position)).astype(jnp.int32)
      state, timestep = match.step(state, action, key)
      return state, (timestep.step_type, state.chosen)

    keys = jax.random.split(jax.random.key(0), 100)
    return jax.lax.scan(step, match.init(keys[0]), keys)[1]

  step_type, chosen = map(np.asarray, run())
  games = np.cumsum(step_type == FIRST)
  by_game = [set(chosen[games == k].tolist()) for k in range(1, games[-1] + 1)]
  assert len(by_game) > 10 and all(len(x) == 1 for x in by_game)
  assert len(set.union(*by_game)) == len(by_game)


# Refused options


@pytest.mark.parametrize(
  ("env", "options", "message"),
  [
    (
      "TicTacToe",
      {"seat": "third"},
      "expected seat both, first, second, found",
    ),
    ("TicTacToe", {"opponent": "perfct"}, "'perfct'. Did you mean perfect"),
    ("TicTacToe", {"opponent": "no.module:f"}, "no.module"),
    (
      "TicTacToe",
      {"opponent": "search", "opponent_simulations": 0},
      "expected opponent_simulations from 1",
    ),
    ("ConnectFour", {"opponent": "perfect"}, "other than perfect"),
  ],
)
def test_wrong_options_are_refused_in_one_line(env, options, message):
  with pytest.raises(types.ConfigError, match=message) as refused:
    functional.make(envs.Config(f"seedx:{env}", options))
  assert "\n" not in str(refused.value)


def test_games_begin_with_random_moves():
  """Every number from 0 is as frequent, and the number of a side is right."""
  timestep, _, info = boards.played(seed=3, opening_moves=3)
  first = timestep.step_type == FIRST
  stones = timestep.observation["board"].sum(axis=(-1, -2))
  own, other = stones[..., 0][first], stones[..., 1][first]
  # The player to move has as many stones as the other, or one less.
  np.testing.assert_array_equal(info["moves"][first], own + other)
  assert set((other - own).tolist()) == {0, 1}
  counts = np.bincount(own + other, minlength=4) / len(own)
  assert len(own) > 300 and len(counts) == 4
  np.testing.assert_allclose(counts, 0.25, atol=0.08)
  boards_ = timestep.observation["board"][first]
  assert len(np.unique(boards_, axis=0)) > 50


@pytest.mark.parametrize("seat", ["first", "second"])
def test_the_seat_is_the_agents_also_after_random_moves(seat):
  # Also where the first reply to these moves would end the game.
  stones = begun_after_random_moves(seat).sum(axis=(-1, -2))
  behind = stones[:, 1] - stones[:, 0]
  assert (behind == (seat == "second")).all()


def begun_after_random_moves(seat):
  """Returns the first boards of games that begin with up to 5 moves."""
  timestep, *_ = boards.played(
    seed=4, opening_moves=5, opponent="perfect", seat=seat
  )
  return timestep.observation["board"][timestep.step_type == FIRST]


def test_a_game_may_begin_where_the_agents_next_move_wins():
  """Only games that the opponent's reply would end begin in another way."""
  rules, wins = boards.TIC_TAC_TOE, []
  for board in begun_after_random_moves("second"):
    _, values = boards.solved()[int(boards.code(board))]
    best = np.flatnonzero(values == np.nanmax(values))
    wins.append(all(rules.play(board, move)[2] for move in best))
  assert sum(wins) > 20


class OneMove(functional.TicTacToe):
  """A game that the first move wins."""

  def play(self, state, action):
    move = super().play(state, action)
    return move._replace(reward=jnp.float32(1), over=jnp.bool_(True))


def test_the_agent_moves_first_where_the_opponents_first_move_ends_any_game():
  match = functional.Match(OneMove(), "random", seat="second")
  key = jax.random.key(0)
  step = jax.jit(lambda: match.step(match.init(key), jnp.int32(0), key))
  state, timestep = step()
  assert (timestep.step_type, timestep.reward, state.moves) == (FIRST, 0, 0)
  assert not timestep.observation["board"].any()


def test_random_moves_do_not_end_a_game():
  timestep, _, info = boards.played(seed=5, opening_moves=9)
  first = timestep.step_type == FIRST
  assert not (timestep.step_type[:-1][first[1:]] == FIRST).any()
  assert (info["moves"][first] < 9).all() and info["moves"][first].max() > 5
