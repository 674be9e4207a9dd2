"""The rules of games with boards in NumPy, apart from those of seedx.

A position is `[2, H, W]`: stones of the player to move, and of the other.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from seedx import envs
from seedx.envs import functional


@dataclasses.dataclass(frozen=True)
class Rules:
  """A game in which some stones in a row win.

  Attributes:
    game: the game of seedx.
    shape: rows and columns.
    length: number of stones in a row that win.
    falls: whether stones fall, so that a move is a column.
  """

  game: functional.Game
  shape: tuple[int, int]
  length: int
  falls: bool

  @functools.cached_property
  def lines(self):
    """All lines of cells, `[L, length]`."""
    rows, columns = self.shape
    lines = []
    for row in range(rows):
      for column in range(columns):
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
          cells = [
            (row + k * down, column + k * right) for k in range(self.length)
          ]
          if all(0 <= r < rows and 0 <= c < columns for r, c in cells):
            lines.append([r * columns + c for r, c in cells])
    return np.array(lines)

  def won(self, stones):
    """Returns whether stones `[..., H, W]` have a line, `[...]`."""
    cells = np.reshape(stones, (*stones.shape[:-2], -1)) > 0
    return cells[..., self.lines].all(-1).any(-1)

  def cell(self, position, action):
    """Returns the cell `(row, column)` that a move fills."""
    if not self.falls:
      return divmod(int(action), self.shape[1])
    taken = position.any(0)[:, action]
    return max(np.flatnonzero(~taken)), int(action)

  def legal(self, position):
    """Returns the legal moves, `[A]`, in a game that is not over."""
    taken = position.any(0)
    return ~(taken[0] if self.falls else taken.reshape(-1))

  def play(self, position, action):
    """Returns the next position, the mover's reward, and whether it ends."""
    own, other = position.copy()
    own[self.cell(position, action)] = 1
    won = bool(self.won(own))
    return np.stack([other, own]), float(won), won or bool((own + other).all())

  def start(self):
    return np.zeros((2, *self.shape), np.int8)

  def random_game(self, rng):
    """Yields `(position, action, next position, reward, over)` of a game."""
    position, over = self.start(), False
    while not over:
      action = rng.choice(np.flatnonzero(self.legal(position)))
      after, reward, over = self.play(position, action)
      yield position, action, after, reward, over
      position = after


TIC_TAC_TOE = Rules(functional.TicTacToe(), (3, 3), 3, False)
CONNECT_FOUR = Rules(functional.ConnectFour(), (6, 7), 4, True)


@functools.cache
def solved():
  """Returns `{code: (position, values)}` of tic-tac-toe's unfinished positions.

  Values `[9]` are those of the moves for the player to move; NaN for illegal
  moves. The value of a position is the largest of them.
  """
  rules, table = TIC_TAC_TOE, {}

  def value(position):
    if code(position) not in table:
      values = np.full(9, np.nan)
      for action in np.flatnonzero(rules.legal(position)):
        after, reward, over = rules.play(position, action)
        values[action] = reward if over else -value(after)
      table[code(position)] = position, values
    return np.nanmax(table[code(position)][1])

  value(rules.start())
  return table


def code(position):
  """Returns a number that only one position has; position is `[..., 2, 3, 3]`.

  The function also takes JAX's arrays.
  """
  digits = position[..., 0, :, :] + 2 * position[..., 1, :, :]
  digits = digits.reshape(*digits.shape[:-2], 9).astype(np.int32)
  return (digits * 3 ** np.arange(9)).sum(-1).astype(np.int32)


# Random games

STEPS, SIZE = 60, 64


@functools.cache
def program(env, **options):
  """Returns a function of a seed: 60 steps of 64 games of random moves."""
  match = functional.make(envs.Config(env, options))

  @jax.jit
  def run(seed):
    keys = functional.keys(seed, SIZE)

    def step(carry, time):
      state, mask = carry
      logits = jnp.where(mask, 0.0, -jnp.inf)
      key = jax.random.fold_in(jax.random.key(seed), time)
      action = jax.random.categorical(key, logits).astype(jnp.int32)
      times = jnp.full(SIZE, time)
      state, timestep = functional.step(match, state, action, keys, times)
      info = jax.vmap(match.info)(state)
      carry = state, timestep.observation["action_mask"]
      return carry, (timestep, action, info)

    mask = jnp.ones((SIZE, match.action.num_values), bool)
    start = functional.init(match, keys), mask
    return jax.lax.scan(step, start, jnp.arange(STEPS))[1]

  return run


@functools.cache
def played(env="seedx:TicTacToe", seed=0, **options):
  """Returns time steps, actions and infos, `[60, 64, ...]`."""
  return jax.device_get(program(env, **options)(seed))
