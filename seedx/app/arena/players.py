"""Players of a game: trained runs, and opponents of `envs.functional`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types
from seedx.agents import acting_step
from seedx.app import policies
from seedx.app.runs import foreign_code
from seedx.envs.functional import games, opponents

# Checkpoint of a run's name that stands for new parameters of its agent.
UNTRAINED = "untrained"
# The setting of an agent that searches.
_SIMULATIONS = "num_simulations"


@dataclasses.dataclass(frozen=True)
class Player:
  """A player of a game, for several games in lockstep.

  Attributes:
    name: name in tables.
    game: the game.
    is_random: whether moves are random, so that games differ by themselves.
    start: `(rows) -> memory` of `[rows, ...]`.
    act: `(rng_key, state [rows, ...], memory, is_first []) -> (move [rows],
      memory)`; `is_first` is whether it is the player's first move.
    details: facts about a run.
  """

  name: str
  game: games.Game
  is_random: bool
  start: Callable[[int], types.Tree]
  act: Callable[
    [jax.Array, Any, types.Tree, bool], tuple[jax.Array, types.Tree]
  ]
  details: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def load(
  name: str,
  run_dir: str,
  checkpoint: str = "latest",
  network: bool = False,
  num_simulations: int = 0,
  *,
  trust: bool = False,
) -> Player:
  """Loads a run as a player.

  Args:
    name: name in tables.
    run_dir: directory of the run.
    checkpoint: checkpoint as in `app.load`, or `UNTRAINED`.
    network: whether an agent that searches plays by its network alone.
    num_simulations: number of simulations of each search of such an agent; 0
      for that of the training.
    trust: whether to run the code that the directory names.

  Raises:
    types.ConfigError: see `app.load` and `of_run`.
  """
  is_new = checkpoint == UNTRAINED
  which = "latest" if is_new else checkpoint
  # The opponent of the run's training does not play here.
  saved = foreign_code.trusted(run_dir, trust, opponent="random")
  changes = _SIMULATIONS in saved.options and num_simulations > 0
  options = {_SIMULATIONS: num_simulations} if changes else {}
  policy = policies.load(
    run_dir, which, trust=trust, options=options, opponent="random"
  )
  if is_new:
    state = jax.jit(policy.agent.init)(jax.random.key(policy.seed))
    policy = dataclasses.replace(
      policy, acting=policy.agent.acting(state), env_steps=0
    )
  return of_run(name, policy, network)


def of_run(
  name: str, policy: policies.Policy, without_search: bool = False
) -> Player:
  """Returns a player of a run's greedy moves, or of its network's alone.

  Raises:
    types.ConfigError: the run was not trained on a game, or has no such moves.
  """
  game, agent = policy.spec.game, policy.agent
  if game is None:
    raise types.ConfigError(
      "expected a run that was trained on a game, such as seedx:TicTacToe,"
      f" without a transform of observations, found one on {policy.env.env}:"
      f" {name}"
    )
  step = agent.without_search if without_search else agent.greedy
  if step is None:
    kind = "a search" if without_search else "a `greedy` step"
    raise types.ConfigError(
      f"expected an agent with {kind}, found one without: {name}"
    )
  agent = dataclasses.replace(agent, step=step)

  @jax.jit
  def act(
    acting: types.Tree,
    rng_key: jax.Array,
    state: types.Tree,
    memory: acting_step.ActingState,
    is_first: jax.Array,
  ) -> tuple[jax.Array, acting_step.ActingState]:
    rows = memory.action.shape[:1]
    kinds = dm_env.StepType
    step_type = jnp.where(is_first, int(kinds.FIRST), int(kinds.MID))
    timestep = dm_env.TimeStep(
      step_type=jnp.broadcast_to(step_type.astype(jnp.uint8), rows),
      reward=jnp.zeros(rows),
      discount=jnp.ones(rows),
      observation=jax.vmap(game.observe)(state),
    )
    taken = acting_step.take(
      agent, acting, rng_key, timestep, memory, np.zeros(rows, np.float32)
    )
    return taken.output.action, taken.acting_state

  return Player(
    name=name,
    game=game,
    is_random=False,
    start=policy.initial_state,
    act=functools.partial(act, policy.acting),
    details={
      "experiment": policy.name,
      "seed": policy.seed,
      "env_steps": policy.env_steps,
    },
  )


def game_of(runs: Sequence[Player]) -> games.Game:
  """Returns the game of all runs.

  Raises:
    types.ConfigError: the runs have different games.
  """
  game = runs[0].game
  for run in runs:
    if run.game != game:
      raise types.ConfigError(
        f"expected runs of one game, found {type(game).__name__} in"
        f" {runs[0].name} and {type(run.game).__name__} in {run.name}"
      )
  return game


def of_opponent(game: games.Game, name: str, num_simulations: int) -> Player:
  """Returns a player of an opponent's moves; see `opponents.make`."""
  opponent = opponents.make(game, name, num_simulations)

  @jax.jit
  def act(
    rng_key: jax.Array, state: types.Tree, game_seed: jax.Array, is_first: bool
  ) -> tuple[jax.Array, jax.Array]:
    move_key, seed_key = jax.random.split(rng_key)
    rows = game_seed.shape
    drawn = jax.random.bits(seed_key, rows)
    game_seed = jnp.where(is_first, drawn, game_seed)
    keys = jax.random.split(move_key, rows)
    return jax.vmap(opponent)(keys, game_seed, state), game_seed

  return Player(
    name=name,
    game=game,
    is_random=name in opponents.NAMES,
    start=lambda rows: jnp.zeros(rows, jnp.uint32),
    act=act,
  )
