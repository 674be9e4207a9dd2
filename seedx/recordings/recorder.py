"""The adapter that records the episodes of environments."""

from collections.abc import Callable, Sequence

import dm_env
import numpy as np
import tree

from seedx import envs, types
from seedx.recordings import storage


class Recorder:
  """Environments whose episodes are recorded; see `envs.Environment`.

  `recv` and `send` are those of the environments. An episode is recorded when
  it has ended; an unfinished one is not.

  Attributes:
    left: `[num_envs]`, number of episodes that each environment still records.
  """

  def __init__(
    self,
    environment: envs.Environment,
    add: Callable[[storage.Episode], None],
    seed: int,
    episodes: Sequence[int] | np.ndarray,
    max_episode_steps: int = 2**63 - 1,
  ) -> None:
    """Wraps environments before their `reset`.

    Args:
      environment: environments that have not been reset.
      add: function that receives each episode, such as `Writer.add`.
      seed: seed of environment 0, as in `envs.make`.
      episodes: `[num_envs]`, number of episodes to record in each environment.
        Episodes that end first would be shorter than others, so each
        environment has a number of its own.
      max_episode_steps: number of env steps after which an episode is
        truncated in the recording; the rest of it is not recorded, and neither
        are the environment's later episodes.
    """
    self.spec = environment.spec
    self.num_envs = environment.num_envs
    self.batch_size = environment.batch_size
    self.left = np.array(episodes)
    self._environment = environment
    self._add = add
    self._seed = seed
    self._max_steps = max_episode_steps
    # The rows of each environment's episode so far, and its actions.
    self._rows: list[list[tuple[np.ndarray, ...]]] = [
      [] for _ in range(self.num_envs)
    ]
    self._actions: list[list[np.ndarray]] = [[] for _ in range(self.num_envs)]

  def reset(self) -> None:
    """See `envs.Environment`."""
    self._environment.reset()

  def recv(self) -> types.Rows:
    """See `envs.Environment`; records the rows.

    Raises:
      types.ConfigError: an episode cannot be written.
    """
    rows = self._environment.recv()
    step_type, reward, discount, observation = rows.timestep
    leaves = (reward, discount, *tree.flatten(observation))
    for b, k in enumerate(rows.index):
      if not self.left[k]:
        continue
      if step_type[b] == dm_env.StepType.FIRST:
        self._rows[k], self._actions[k] = [], []
      self._rows[k].append(tuple(leaf[b] for leaf in leaves))
      is_last = step_type[b] == dm_env.StepType.LAST
      is_cut = not is_last and len(self._rows[k]) > self._max_steps
      if is_last or is_cut:
        self._end(k, rows.episode_return[b])
        self.left[k] = 0 if is_cut else self.left[k] - 1
    return rows

  def send(self, index: np.ndarray, action: np.ndarray) -> None:
    """See `envs.Environment`; records the actions."""
    self._environment.send(index, action)
    spec = self.spec.action
    taken = np.clip(action, spec.minimum, spec.maximum).astype(spec.dtype)
    for k, value in zip(index, taken, strict=True):
      if self._rows[k]:
        self._actions[k].append(value)

  def render(self) -> np.ndarray:
    """See `envs.Environment`."""
    return self._environment.render()

  def close(self) -> None:
    """See `envs.Environment`."""
    self._environment.close()

  def _end(self, k: int, episode_return: float) -> None:
    spec = self.spec
    reward, discount, *leaves = map(np.stack, zip(*self._rows[k], strict=True))
    not_taken = np.zeros(spec.action.shape, spec.action.dtype)
    actions = self._actions[k][: len(reward) - 1]
    self._rows[k] = []
    self._add(
      storage.Episode(
        tree.unflatten_as(spec.observation, leaves),
        np.stack([*actions, not_taken]),
        reward,
        discount,
        self._seed + k,
        float(episode_return),
      )
    )
