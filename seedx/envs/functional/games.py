"""Games in which two players take turns, as pure functions for a search.

A state is seen by the player to move, so one network plays both sides.
`match.Match` makes an environment of a game, and `search.search` looks ahead in
it. There is no chance, and nothing is hidden from a player.
"""

import dataclasses
import functools
from typing import Any, NamedTuple, Protocol

import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types

BOARD, MASK = "board", "action_mask"


class Move(NamedTuple):
  """The result of a move.

  Attributes:
    state: the next state, seen by the other player.
    reward: `[]` float32, reward of the player that moved: 1 for a won game, -1
      for a lost one, 0 for a draw or an unfinished game.
    over: `[]` bool, whether the game is over.
  """

  state: Any
  reward: jax.Array
  over: jax.Array


class Symmetries(NamedTuple):
  """The K symmetries of a game, the first of which changes nothing.

  Attributes:
    cells: `[K, H * W]`, the cell that each cell of a board takes over.
    actions: `[K, A]`, the action whose probability each action takes over.
  """

  cells: np.ndarray
  actions: np.ndarray


class Game(Protocol):
  """The rules of a game; states have no batch axis.

  A game is a frozen dataclass that can be pickled and compared. A game may also
  have `optimal(state)`, `[A]` bool, the moves of perfect play.
  """

  @property
  def observation(self) -> dict[str, dm_env.specs.Array]:
    """Specs of an observation: `board` `[C, H, W]` and `action_mask` `[A]`."""

  @property
  def num_actions(self) -> int:
    """Number of actions, A."""

  @property
  def max_moves(self) -> int:
    """Largest number of moves of both players in a game."""

  @property
  def symmetries(self) -> Symmetries | None:
    """Symmetries of the rules; None for none."""

  @property
  def hidden(self) -> tuple[str, ...]:
    """Entries of an observation that networks do not see."""

  def start(self) -> types.Tree:
    """Returns the state before the first move."""

  def play(self, state: Any, action: jax.Array) -> Move:
    """Plays a legal move, `[]`, in a game that is not over."""

  def legal(self, state: Any) -> jax.Array:
    """Returns the legal moves, `[A]` bool; one or more, also after the end."""

  def observe(self, state: Any) -> dict[str, jax.Array]:
    """Returns the observation of a state, from which `state` recovers it."""

  def state(self, observation: dict[str, jax.Array]) -> types.Tree:
    """Returns the state of an observation."""


class _Board:
  """A game whose state is its board.

  A state is `[2, H, W]` int8, 1 where the player to move has a stone, and 1
  where the other player has one.
  """

  rows: int
  columns: int
  num_actions: int
  hidden: tuple[str, ...] = ()

  @property
  def max_moves(self) -> int:
    return self.rows * self.columns

  @property
  def observation(self) -> dict[str, dm_env.specs.Array]:
    shape = 2, self.rows, self.columns
    return {
      BOARD: dm_env.specs.Array(shape, np.int8, BOARD),
      MASK: dm_env.specs.Array((self.num_actions,), bool, MASK),
    }

  def start(self) -> jax.Array:
    return jnp.zeros((2, self.rows, self.columns), jnp.int8)

  def observe(self, state: jax.Array) -> dict[str, jax.Array]:
    return {BOARD: state, MASK: self.legal(state)}

  def state(self, observation: dict[str, jax.Array]) -> jax.Array:
    return observation[BOARD]

  def legal(self, state: jax.Array) -> jax.Array:
    raise NotImplementedError

  def _place(self, state: jax.Array, cell: jax.Array, length: int) -> Move:
    """Places a stone; `length` of the player's stones in a row win."""
    cells = jnp.arange(self.rows * self.columns).reshape(self.rows, -1)
    own = state[0] | (cells == cell).astype(jnp.int8)
    won = _in_a_row(own, length)
    after = jnp.stack([state[1], own])
    over = won | jnp.all(jnp.sum(after, axis=0) > 0)
    return Move(after, won.astype(jnp.float32), over)


@dataclasses.dataclass(frozen=True)
class TicTacToe(_Board):
  """Three stones in a row win, on a board of 3 by 3 cells.

  Action 3 * row + column places a stone.
  """

  rows = columns = 3
  num_actions = 9

  @property
  def symmetries(self) -> Symmetries:
    """The 8 rotations and reflections of a square."""
    cells = square_symmetries(3)
    return Symmetries(cells, cells)

  def play(self, state: jax.Array, action: jax.Array) -> Move:
    """See `Game`."""
    return self._place(state, action, 3)

  def legal(self, state: jax.Array) -> jax.Array:
    """See `Game`."""
    empty = jnp.sum(state, axis=0).reshape(-1) == 0
    return empty | ~jnp.any(empty)

  def optimal(self, state: jax.Array) -> jax.Array:
    """Returns the moves that lose no value, `[A]` bool."""
    powers = jnp.asarray(3 ** np.arange(9).reshape(3, 3))
    code = jnp.sum((state[0] + 2 * state[1]).astype(jnp.int32) * powers)
    return jnp.asarray(_optimal())[code]


@dataclasses.dataclass(frozen=True)
class ConnectFour(_Board):
  """Four stones in a row win, on an upright board of 6 by 7 cells.

  A stone falls to the lowest empty cell of the column that the action chooses;
  row 0 is the highest.
  """

  rows = 6
  columns = 7
  num_actions = 7

  @property
  def symmetries(self) -> Symmetries:
    """The identity, and the reflection of left and right."""
    cells = np.arange(42).reshape(6, 7)
    columns = np.arange(7)
    return Symmetries(
      np.stack([cells.reshape(-1), cells[:, ::-1].reshape(-1)]),
      np.stack([columns, columns[::-1]]),
    )

  def play(self, state: jax.Array, action: jax.Array) -> Move:
    """See `Game`."""
    stones = jnp.sum(state, axis=(0, 1), dtype=jnp.int32)[action]
    return self._place(state, (5 - stones) * 7 + action, 4)

  def legal(self, state: jax.Array) -> jax.Array:
    """See `Game`."""
    free = jnp.sum(state, axis=0)[0] == 0
    return free | ~jnp.any(free)


def check(game: Game) -> None:
  """Checks the parts of a game that do not depend on a position.

  Raises:
    types.ConfigError: a part has another form than in `Game`.
  """
  name, specs = type(game).__name__, game.observation
  board, mask = (getattr(specs.get(x), "shape", None) for x in (BOARD, MASK))
  if board is None or len(board) != 3 or mask != (game.num_actions,):
    raise types.ConfigError(
      f"expected the observation of {name} to have {BOARD!r} [planes, rows,"
      f" columns] and {MASK!r} [{game.num_actions}], found {BOARD!r} {board}"
      f" and {MASK!r} {mask}"
    )
  symmetries = game.symmetries
  if symmetries is not None:
    columns = board[1] * board[2], game.num_actions
    shapes = [np.shape(x)[1:] for x in symmetries]
    if not isinstance(symmetries, Symmetries) or shapes != [
      (size,) for size in columns
    ]:
      raise types.ConfigError(
        f"expected the symmetries of {name} as games.Symmetries(cells, actions)"
        f" with {columns[0]} and {columns[1]} columns, or None, found"
        f" {type(symmetries).__name__}"
      )
  start = jax.eval_shape(game.start)
  action = jax.ShapeDtypeStruct((), np.int32)
  for role, *both in (
    ("play", jax.eval_shape(game.play, start, action).state, start),
    ("observe", jax.eval_shape(game.observe, start), specs),
  ):
    actual, expected = map(_in_words, both)
    if actual != expected:
      raise types.ConfigError(
        f"expected {role} of {name} to return arrays of {expected}, found"
        f" {actual}"
      )


def _in_words(nest: types.Tree) -> str:
  leaves = jax.tree.leaves(nest)
  return ", ".join(f"{np.dtype(x.dtype)} {[*x.shape]}" for x in leaves)


def square_symmetries(size: int) -> np.ndarray:
  """Returns the 8 symmetries of a square, `[8, size * size]`.

  They are the cells of `Symmetries`, and the actions, too, if each cell is one.
  """
  cells = np.arange(size * size).reshape(size, size)
  turned = [np.rot90(cells, k) for k in range(4)]
  return np.stack([x.reshape(-1) for y in turned for x in (y, y.T)])


def augmented(
  game: Game, rng_key: jax.Array, board: jax.Array, actions: types.Tree
) -> tuple[jax.Array, types.Tree]:
  """Applies a random symmetry, if there are any, to each position.

  Args:
    game: the game.
    rng_key: random key.
    board: `[..., C, H, W]`.
    actions: nest of `[..., A]`, numbers of each action, such as a policy.

  Returns:
    The board and the nest with the shapes of the arguments.
  """
  symmetries = game.symmetries
  if symmetries is None:
    return board, actions
  rows, shape = board.shape[:-3], board.shape[-3:]
  which = jax.random.randint(rng_key, rows, 0, len(symmetries.cells))
  cells = jnp.asarray(symmetries.cells)[which][..., None, :]
  flat = board.reshape(*rows, shape[0], -1)
  board = jnp.take_along_axis(flat, cells, axis=-1).reshape(*rows, *shape)
  order = jnp.asarray(symmetries.actions)[which]
  return board, jax.tree.map(
    lambda x: jnp.take_along_axis(x, order, axis=-1), actions
  )


def _in_a_row(stones: jax.Array, length: int) -> jax.Array:
  """Returns whether a row, column or diagonal of stones is long enough."""
  stones = stones > 0
  rows, columns = stones.shape

  def line(down: int, right: int) -> jax.Array:
    height = rows - (length - 1) * down
    width = columns - (length - 1) * abs(right)
    first = (length - 1) * max(-right, 0)
    parts = [
      jax.lax.slice(
        stones,
        (k * down, first + k * right),
        (k * down + height, first + k * right + width),
      )
      for k in range(length)
    ]
    return jnp.any(functools.reduce(jnp.logical_and, parts))

  return line(0, 1) | line(1, 0) | line(1, 1) | line(1, -1)


@functools.cache
def _optimal() -> np.ndarray:
  """Returns the best moves of tic-tac-toe, `[3 ** 9, 9]` bool by position.

  A position is a number with a digit to base 3 for each cell: 0 empty, 1 a
  stone of the player to move, 2 one of the other player. All moves of a
  position that no game reaches are True.
  """
  cells = np.arange(9).reshape(3, 3)
  lines = [*cells, *cells.T, cells.diagonal(), cells[::-1].diagonal()]
  masks = [sum(1 << int(x) for x in line) for line in lines]
  table = np.ones((3**9, 9), bool)

  @functools.cache
  def value(own: int, other: int) -> int:
    """Returns the value for the player to move: 1, 0 or -1."""
    if any(other & mask == mask for mask in masks):
      return -1
    empty = [k for k in range(9) if not (own | other) >> k & 1]
    if not empty:
      return 0
    values = {k: -value(other, own | 1 << k) for k in empty}
    best = max(values.values())
    code = sum(3**k * ((own >> k & 1) + 2 * (other >> k & 1)) for k in range(9))
    table[code] = [values.get(k) == best for k in range(9)]
    return best

  value(0, 0)
  return table
