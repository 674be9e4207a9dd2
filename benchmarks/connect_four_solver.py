"""An exact solver of connect four, for positions with few empty cells.

A position is two integers of 49 bits: the stones of the player to move, and
all stones. Bit 7 * column + height is a cell; height 0 is the lowest row, and
height 6, above the board, is always empty, so that no line crosses it.
"""

import functools

import numpy as np

_ROWS, _COLUMNS, _STRIDE = 6, 7, 7
_COLUMN = (1 << _ROWS) - 1
_LOWEST = sum(1 << _STRIDE * column for column in range(_COLUMNS))
_BOARD = _LOWEST * _COLUMN
_CELLS = tuple(_COLUMN << _STRIDE * column for column in range(_COLUMNS))
# Columns from the middle to the sides: most lines cross the middle.
_ORDER = tuple(_CELLS[column] for column in (3, 2, 4, 1, 5, 0, 6))


def bits(board: np.ndarray) -> tuple[int, int]:
  """Returns the position of a board of `games.ConnectFour`, `[2, 6, 7]`."""
  own, other = (
    sum(
      1 << _STRIDE * int(column) + _ROWS - 1 - int(row)
      for row, column in np.argwhere(stones)
    )
    for stones in board
  )
  return own, own | other


def values(own: int, stones: int) -> dict[int, int]:
  """Returns the value of each legal move: 1 won, 0 drawn, -1 lost.

  The game must not be over. A position with 12 empty cells takes about a
  millisecond, and one with 24 some seconds.
  """
  legal = (stones + _LOWEST) & _BOARD
  wins = _completing(own, stones)
  return {
    column: 1 if cell & wins else -_value(stones ^ own, stones | cell)
    for column, cells in enumerate(_CELLS)
    if (cell := cells & legal)
  }


def _value(own: int, stones: int) -> int:
  """Returns the value of a position without four in a row."""
  if _is_at_least(own, stones, 1):
    return 1
  return 0 if _is_at_least(own, stones, 0) else -1


@functools.lru_cache(maxsize=2**20)
def _is_at_least(own: int, stones: int, bound: int) -> bool:
  """Returns whether a position is worth `bound`, 0 or 1, to the next player.

  This is negamax with alpha-beta pruning, in which the window contains only one
  bound; the cache is the transposition table. No four stones are in a row.
  """
  legal = (stones + _LOWEST) & _BOARD
  if not legal:
    return bound <= 0  # The board is full: a draw.
  if _completing(own, stones) & legal:
    return True
  other = stones ^ own
  threats = _completing(other, stones)
  if urgent := threats & legal:
    if urgent & (urgent - 1):
      return False  # The other player can win in two cells.
    legal = urgent
  legal &= ~(threats >> 1)  # The other player would win in the cell above.
  return any(
    not _is_at_least(other, stones | cell, 1 - bound)
    for cells in _ORDER
    if (cell := cells & legal)
  )


def _completing(own: int, stones: int) -> int:
  """Returns the empty cells in which one more stone makes four in a row."""
  cells = own << 1 & own << 2 & own << 3
  for step in (_STRIDE - 1, _STRIDE, _STRIDE + 1):
    pair = own << step & own << 2 * step
    cells |= pair & own << 3 * step | pair & own >> step
    pair = own >> step & own >> 2 * step
    cells |= pair & own << step | pair & own >> 3 * step
  return cells & (_BOARD ^ stones)
