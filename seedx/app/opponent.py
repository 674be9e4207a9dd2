"""A trained run as the opponent in a game; see `runs.opponents`."""

import jax
import numpy as np

from seedx import types
from seedx.agents import acting_step
from seedx.app import policies
from seedx.app.settings import opponents
from seedx.envs.functional import games
from seedx.envs.functional import opponents as opponents_lib


def run(game: games.Game, text: str) -> opponents_lib.Opponent:
  """Loads the greedy policy of a run, with its search if it has one.

  Args:
    game: the game.
    text: directory of the run, which may still be training; with @best or
      @STEPS after it, another checkpoint than the latest.

  Raises:
    types.ConfigError: there is no such run or checkpoint, the run is one of
      another game or has a memory, or it names code that is not seedx's.
  """
  return _loaded(game, text, trust=False)


def trusted_run(game: games.Game, text: str) -> opponents_lib.Opponent:
  """Loads a run as `run` does, and runs the code that it names."""
  return _loaded(game, text, trust=True)


def _loaded(game: games.Game, text: str, trust: bool) -> opponents_lib.Opponent:
  path, which = opponents.split(text)
  try:
    # The run's own opponent is not needed here.
    policy = policies.load(path, which, trust=trust, opponent="random")
  except types.ConfigError as error:
    raise types.ConfigError(f"opponent run:{text}: {error}") from error
  _check(policy, game, path)
  agent, spec = policy.agent, policy.spec
  greedy = agent.greedy
  assert greedy is not None
  # Arrays of no device, since environments are also stepped on CPUs.
  acting = jax.tree.map(np.asarray, policy.acting)

  def opponent(
    rng_key: jax.Array, game_seed: jax.Array, state: types.Tree
  ) -> jax.Array:
    del game_seed
    inputs = acting_step.zero_inputs(spec, 1)
    observation = jax.tree.map(lambda x: x[None], game.observe(state))
    timestep = inputs.timestep._replace(observation=observation)
    output, _ = greedy(
      acting,
      rng_key,
      inputs._replace(timestep=timestep),
      agent.initial_core_state(1),
    )
    move: jax.Array = output.action[0].astype(np.int32)
    return move

  return opponent


def _check(policy: policies.Policy, game: games.Game, path: str) -> None:
  """Raises types.ConfigError if a policy cannot play a game by its state."""
  name = type(game).__name__
  if policy.env.observation_transform or policy.env.info_keys:
    raise types.ConfigError(
      "expected an opponent without observation_transform and info_keys, found"
      f" one with them in {path!r}; choose another run"
    )
  if policy.spec.game != game:
    raise types.ConfigError(
      f"expected a run of {name} as an opponent, found one of"
      f" {policy.env.env} in {path!r}; choose a run of the same game"
    )
  if policy.agent.greedy is None:
    raise types.ConfigError(
      "expected an opponent whose agent has a `greedy` step, found one without"
      f" in {path!r}"
    )
  if policy.has_memory:
    raise types.ConfigError(
      "expected an opponent without a memory, found one with a memory in"
      f" {path!r}; choose another run"
    )
