"""A replay of new experience and of demonstrations, as in R2D3.

Paine et al. 2019, "Making Efficient Use of Demonstrations to Solve Hard
Exploration Problems", https://arxiv.org/abs/1909.01387, section 3.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedx import types
from seedx.replay import prioritized, sum_tree, uniform


class State(NamedTuple):
  """The state of a mixed replay.

  Attributes:
    new: state of the replay of new experience.
    fixed: state of the demonstrations' replay; only its priorities change. A
      state that was `kept` has no ring of demonstrations.
  """

  new: Any
  fixed: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Mixed(uniform.Replay):
  """Two replays of one kind: each window is a demonstration with a probability.

  Each replay has priorities and importance weights of its own, so the weights
  do not undo the ratio. The weights of a batch are divided by the largest one.

  Attributes:
    new: replay of new experience.
    ratio: probability that a window is a demonstration.
    ratio_rise: linear change of `ratio` over the run; the sum is cut to [0, 1].
    fixed: replay of the demonstrations, of the same class as `new`.
    stored: state of `fixed`, in NumPy.
  """

  new: Any
  ratio: float
  ratio_rise: float
  fixed: Any
  stored: Any

  @classmethod
  def of(
    cls,
    new: Any,
    demonstrations: types.Share,
    ratio: float,
    ratio_rise: float = 0.0,
  ) -> "Mixed":
    """Makes the replay; `demonstrations` are one unroll of all time steps.

    Raises:
      types.ConfigError: the unroll is shorter than a window.
    """
    fixed = dataclasses.replace(new, capacity=1, period=None, streams=0)
    state = jax.jit(fixed.init)(demonstrations)
    state = jax.jit(fixed.add, donate_argnums=0)(state, demonstrations)
    return cls(new, ratio, ratio_rise, fixed, jax.tree.map(np.array, state))

  def init(self, example: types.Share) -> State:
    """Returns the state without new experience; see `config.Replay`."""
    return State(self.new.init(example), jax.tree.map(jnp.array, self.stored))

  def recorded(self) -> State:
    """Returns a state for `with_kept`."""
    return State((), self.stored)

  def add(self, state: State, share: types.Share) -> State:
    """Adds new experience."""
    return state._replace(new=self.new.add(state.new, share))

  def sample(
    self,
    state: State,
    rng_key: jax.Array,
    size: int,
    done: types.Array = 0.0,
  ) -> tuple[types.Sample, types.Tree]:
    """Samples windows from both replays; see `config.Replay`."""
    choice_key, new_key, fixed_key = jax.random.split(rng_key, 3)
    ratio = jnp.clip(self.ratio + self.ratio_rise * done, 0.0, 1.0)
    is_fixed = jax.random.uniform(choice_key, (size,)) < ratio
    new, new_windows = self.new.sample(state.new, new_key, size, done)
    fixed, fixed_windows = self.fixed.sample(state.fixed, fixed_key, size, done)

    def choose(x: jax.Array, y: jax.Array, axis: int) -> jax.Array:
      shape = [1] * x.ndim
      shape[axis] = size
      return jnp.where(is_fixed.reshape(shape), y, x)

    # Only core states have no axis of time.
    core_state = jax.tree.map(
      lambda x, y: choose(x, y, axis=0),
      new.unroll.core_state,
      fixed.unroll.core_state,
    )
    steps = jax.tree.map(
      lambda x, y: choose(x, y, axis=1),
      new.unroll._replace(core_state=()),
      fixed.unroll._replace(core_state=()),
    )
    weight = choose(new.importance_weight, fixed.importance_weight, axis=0)
    sample = types.Sample(
      steps._replace(core_state=core_state), weight / jnp.max(weight)
    )
    if not new_windows:
      return sample, ()
    nowhere = sum_tree.NOWHERE
    windows = (
      new_windows._replace(leaf=jnp.where(is_fixed, nowhere, new_windows.leaf)),
      fixed_windows._replace(
        leaf=jnp.where(is_fixed, fixed_windows.leaf, nowhere)
      ),
    )
    return sample, windows

  def update(
    self, state: State, windows: types.Tree, priorities: jax.Array | None
  ) -> State:
    """Sets new priorities, each in the replay that its window is from."""
    if not windows:
      return state
    of_new, of_fixed = windows
    return State(
      self.new.update(state.new, of_new, priorities),
      self.fixed.update(state.fixed, of_fixed, priorities),
    )

  def measure(self, state: State) -> dict[str, jax.Array]:
    """Returns the counts of the replay of new experience."""
    counts: dict[str, jax.Array] = self.new.measure(state.new)
    return counts

  def kept(self, state: State) -> State:
    """Returns the state without the demonstrations."""
    fixed = state.fixed
    return state._replace(
      fixed=fixed._replace(ring=()) if _has_priorities(fixed) else ()
    )

  def with_kept(self, state: State, kept: State) -> State:
    """Returns what was kept with the demonstrations of a state."""
    if _has_priorities(state.fixed):
      return kept._replace(fixed=kept.fixed._replace(ring=state.fixed.ring))
    return kept._replace(fixed=state.fixed)


def _has_priorities(fixed: Any) -> bool:
  return isinstance(fixed, prioritized.PrioritizedState)
