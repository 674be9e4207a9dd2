"""Larger games, whose rules are those of the library pgx (extra `games`)."""

import dataclasses
import functools
import importlib
import math
from typing import Any, NamedTuple

import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types
from seedx.envs.functional import games

STATE = "state"

# Leaves of pgx's state that no move depends on.
_DROPPED = (
  "observation",
  "rewards",
  "terminated",
  "truncated",
  "_step_count",
  "_x.legal_action_mask",  # A copy of `legal_action_mask`.
)
# Leaves of numbers from -127 to 127, which pgx keeps in 32 bits.
_SMALL = ("_x.board", "_x.board_history")


class _Leaf(NamedTuple):
  """A leaf of pgx's state, and how its bytes are stored.

  Attributes:
    shape: its shape.
    dtype: its type.
    rows: number of rows that are stored; 0 for none of the leaf.
    stored: type in which they are stored; bool for single bits.
  """

  shape: tuple[int, ...]
  dtype: np.dtype
  rows: int
  stored: np.dtype

  @property
  def stored_shape(self) -> tuple[int, ...]:
    return (self.rows, *self.shape[1:]) if self.shape else ()

  @property
  def is_bits(self) -> bool:
    return self.stored.kind == "b"

  @property
  def num_bytes(self) -> int:
    if not self.rows:
      return 0
    size = math.prod(self.stored_shape)
    return -(-size // 8) if self.is_bits else size * self.stored.itemsize


class Rules(NamedTuple):
  """A game of pgx, and the form of its states.

  Attributes:
    game: pgx's game.
    form: tree structure of pgx's state.
    leaves: its leaves.
    planes: shape of the board, `[C, H, W]`.
  """

  game: Any
  form: Any
  leaves: list[_Leaf]
  planes: tuple[int, int, int]

  def packed(self, state: Any) -> jax.Array:
    """Returns the bytes of pgx's state, `[n]` uint8."""
    parts = []
    for leaf, value in zip(self.leaves, jax.tree.leaves(state), strict=True):
      if not leaf.rows:
        continue
      value = jnp.asarray(value, leaf.dtype)
      if leaf.shape:
        value = value[: leaf.rows]
      value = value.astype(leaf.stored).reshape(-1)
      parts.append(
        jnp.packbits(value) if leaf.is_bits else value.view(jnp.uint8)
      )
    return jnp.concatenate(parts)

  def unpacked(self, state: jax.Array) -> Any:
    """Returns pgx's state; what is not stored is 0."""
    values, start = [], 0
    for leaf in self.leaves:
      stop = start + leaf.num_bytes
      value = jnp.zeros(leaf.shape, leaf.dtype)
      if leaf.rows:
        part, size = state[start:stop], math.prod(leaf.stored_shape)
        if leaf.is_bits:
          part = jnp.unpackbits(part, count=size)
        else:
          part = part.view(leaf.stored)
        part = part.reshape(leaf.stored_shape).astype(leaf.dtype)
        value = value.at[: leaf.rows].set(part) if leaf.shape else part
      values.append(value)
      start = stop
    return jax.tree.unflatten(self.form, values)


@dataclasses.dataclass(frozen=True)
class PgxGame:
  """A game of pgx for two players, without chance.

  A state is an array of bytes, the leaves of pgx's state without what can be
  computed again. An observation has them as its entry `state`.

  A board's planes are those of pgx. A plane of one number from 0 to 1, such as
  the number of moves of a game of chess, becomes one in which this share of the
  cells is 1.

  pgx ends a game after its largest number of moves: Go by its score, chess by a
  draw.

  Attributes:
    name: pgx's name of the game, a key of `LONGEST`.
  """

  name: str
  hidden = (STATE,)

  @property
  def observation(self) -> dict[str, dm_env.specs.Array]:
    """See `games.Game`."""
    rules = rules_of(self.name)
    size = sum(leaf.num_bytes for leaf in rules.leaves)
    return {
      games.BOARD: dm_env.specs.Array(rules.planes, np.int8, games.BOARD),
      games.MASK: dm_env.specs.Array((self.num_actions,), bool, games.MASK),
      STATE: dm_env.specs.Array((size,), np.uint8, STATE),
    }

  @property
  def num_actions(self) -> int:
    """See `games.Game`."""
    rules = rules_of(self.name)
    shapes = jax.tree.unflatten(rules.form, rules.leaves)
    return int(shapes.legal_action_mask.shape[0])

  @property
  def max_moves(self) -> int:
    """See `games.Game`."""
    return LONGEST[self.name]

  @property
  def symmetries(self) -> games.Symmetries:
    """See `games.Game`; chess has none but the first."""
    _, height, width = rules_of(self.name).planes
    cells = np.arange(height * width)
    if self.name == "chess":
      return games.Symmetries(cells[None], np.arange(self.num_actions)[None])
    if self.name == "hex":  # Each player keeps the two sides to connect.
      cells = np.stack([cells, cells[::-1]])
    else:
      cells = games.square_symmetries(height)
    # The last action is to pass, or to take over the first stone.
    last = np.full((len(cells), 1), height * width)
    return games.Symmetries(cells, np.concatenate([cells, last], axis=1))

  def start(self) -> jax.Array:
    """See `games.Game`."""
    return jnp.asarray(_start(self.name))

  def play(self, state: jax.Array, action: jax.Array) -> games.Move:
    """See `games.Game`."""
    rules = rules_of(self.name)
    before = rules.unpacked(state)
    # Without the checks of `step`, since all moves are legal.
    after = rules.game._step(before, action, None)
    legal = after.legal_action_mask | after.terminated
    return games.Move(
      rules.packed(after.replace(legal_action_mask=legal)),
      after.rewards[before.current_player],
      after.terminated,
    )

  def legal(self, state: jax.Array) -> jax.Array:
    """See `games.Game`."""
    legal: jax.Array = rules_of(self.name).unpacked(state).legal_action_mask
    return legal

  def observe(self, state: jax.Array) -> dict[str, jax.Array]:
    """See `games.Game`."""
    rules = rules_of(self.name)
    full = rules.unpacked(state)
    planes = jnp.moveaxis(rules.game.observe(full), -1, 0)
    _, height, width = rules.planes
    cells = np.arange(height * width, dtype=np.float32).reshape(height, width)
    return {
      games.BOARD: (planes > (cells + 0.5) / cells.size).astype(jnp.int8),
      games.MASK: full.legal_action_mask,
      STATE: state,
    }

  def state(self, observation: dict[str, jax.Array]) -> jax.Array:
    """See `games.Game`."""
    return observation[STATE]


# The largest number of moves, of both players, in each game. In Othello, a pass
# follows at most every stone but the last; Hex has one move without a stone.
LONGEST = {"othello": 119, "hex": 122, "go_9x9": 162, "chess": 512}

# Chess compares a position with those since the last capture or move of a pawn,
# 100 at most, in each of the 8 positions of an observation.
_HASHES = {"chess": 108}


@functools.cache
def rules_of(name: str) -> Rules:
  """Loads a game of pgx, once.

  Raises:
    types.ConfigError: pgx is not installed.
  """
  try:
    # An import must not be traced: pgx makes arrays. Those of chess are random
    # numbers, of which pgx has a sum as a constant, of JAX's former generator.
    # Else the first position would not count as repeated when it comes back.
    with jax.ensure_compile_time_eval(), jax.threefry_partitionable(False):
      pgx = importlib.import_module("pgx")
      game = pgx.make(name)
  except ImportError as error:
    raise types.ConfigError(
      f"expected the package pgx for the game {name}, found none; install it"
      " with pip install 'seedx[games]'"
    ) from error
  state = jax.eval_shape(game.init, jax.random.key(0))
  paths, form = jax.tree_util.tree_flatten_with_path(state)
  height, width, channels = state.observation.shape
  return Rules(
    game,
    form,
    [_leaf(name, path, value) for path, value in paths],
    (channels, height, width),
  )


def _leaf(name: str, path: Any, value: jax.ShapeDtypeStruct) -> _Leaf:
  key = jax.tree_util.keystr(path).removeprefix(".")
  dtype = np.dtype(value.dtype)
  stored = np.dtype(np.int8) if key in _SMALL else dtype
  rows = value.shape[0] if value.shape else 1
  if key == "_x.hash_history":
    rows = _HASHES.get(name, rows)
  return _Leaf(value.shape, dtype, 0 if key in _DROPPED else rows, stored)


@functools.cache
def _start(name: str) -> np.ndarray:
  rules = rules_of(name)
  with jax.ensure_compile_time_eval():
    # pgx draws which player begins, which changes nothing.
    start = jax.jit(lambda: rules.packed(rules.game._init(jax.random.key(0))))()
    return np.asarray(start)
