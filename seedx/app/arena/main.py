"""Lets runs and other players play a game against each other.

  seedx arena runs/first runs/second --output arena.json
  seedx arena runs/first runs/first@untrained runs/first:network --exhaustive

All pairs of players play, each player half of the games as first. Prints the
results of each pair and the players' Elo ratings, with 95% intervals. A RUN is
the directory of a run whose environment is a game, such as seedx:TicTacToe, of
any agent, which plays its best moves. RUN@N is its checkpoint after N env
steps, RUN@best the best one, and RUN@untrained its agent with new parameters.
RUN:network plays by the network alone, without the agent's search.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from seedx import files, types
from seedx.app.arena import tables
from seedx.app.cli import command_line
from seedx.app.runs import foreign_code
from seedx.app.settings import opponents

_NETWORK = ":network"


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of the command line.

  Attributes:
    run: players, each a directory of a run, perhaps with @CHECKPOINT or
      :network.
    against: other players, of random, perfect, search (a tree search with
      random playouts) and your own MODULE:FUNCTION; random, search and, in
      small games, perfect if empty; none for runs only.
    games: number of games of each pair, half of them with each player as first.
    simulations: number of simulations of each search of the player search.
    run_simulations: number of simulations of each search of a run; that of its
      training if 0.
    opening_moves: number of random moves before games of two players whose
      moves are not random, so that their games differ. Both play each opening
      as first. Games with random, perfect or search have no opening.
    exhaustive: whether each run also plays against every line of moves of an
      opponent, in a small game.
    native: whether games are played on EnvPool's TicTacToe-v1 or ConnectFour-v1
      and compared with seedx's rules, move by move.
    seed: seed of the random numbers.
    trust: whether to run the code that the directories name, such as an
      environment.
    output: JSON file for the results; no file if empty.
  """

  run: tuple[str, ...] = ()
  against: tuple[str, ...] = ()
  games: int = types.setting(400, low=2, high=2**20)
  simulations: int = types.setting(32, low=1, high=2**16)
  run_simulations: int = types.setting(0, low=0, high=2**16)
  opening_moves: int = types.setting(2, low=0, high=2**10)
  exhaustive: bool = False
  native: bool = False
  seed: int = types.setting(0, low=0, high=2**31 - 1)
  trust: bool = False
  output: str = ""

  def __post_init__(self) -> None:
    types.check_settings(self)
    if self.games % 2:
      raise types.ConfigError(
        f"expected games of an even number, found {self.games}"
      )
    names = [*self.run, *self.against]
    for name in names:
      if names.count(name) > 1:
        raise types.ConfigError(f"expected each player once, found two {name}")


@dataclasses.dataclass(frozen=True)
class Entry:
  """A run as a player.

  Attributes:
    name: word of the command line.
    directory: directory of the run.
    checkpoint: latest, best, untrained, or the env steps of a checkpoint.
    network: whether it plays without its search.
  """

  name: str
  directory: str
  checkpoint: str = "latest"
  network: bool = False

  @classmethod
  def of(cls, name: str) -> "Entry":
    """Reads RUN, RUN@CHECKPOINT, RUN:network or RUN@CHECKPOINT:network."""
    if os.path.isdir(name):
      return cls(name, name)
    path = name.removesuffix(_NETWORK)
    return cls(name, *opponents.split(path), network=path != name)


def main(argv: Sequence[str] | None = None) -> int:
  """Plays all games; returns the exit status."""
  return command_line.run(
    _play, Options(), "seedx arena", __doc__, argv, positional=("run",)
  )


def _play(options: Options) -> int:
  entries = [Entry.of(name) for name in options.run]
  for entry in entries:  # Only the game of a run's environment is needed.
    foreign_code.trusted(entry.directory, options.trust, opponent="random")
  # These modules import JAX, so the check comes first.
  from seedx.app import compiled
  from seedx.app.arena import matches, players

  compiled.keep()
  loaded = [
    players.load(
      x.name,
      x.directory,
      x.checkpoint,
      x.network,
      options.run_simulations,
      trust=options.trust,
    )
    for x in entries
  ]
  game = players.game_of(loaded)
  others = [
    players.of_opponent(game, name, options.simulations)
    for name in _others(options, hasattr(game, "optimal"))
  ]
  if len(loaded + others) < 2:
    raise types.ConfigError(
      "expected two players or more, found one; leave out --against"
    )
  if options.exhaustive:
    matches.check_exam(game)
  rows = options.games // 2
  board = (matches.NativeBoard if options.native else matches.Board)(game, rows)
  results = tables.Results.of(
    [x.name for x in loaded + others],
    matches.tournament(
      board, loaded + others, options.opening_moves, options.seed, _report
    ),
    {x.name: matches.exam(game, x, rows) for x in loaded}
    if options.exhaustive
    else {},
  )
  _write(
    options, type(game).__name__, {x.name: x.details for x in loaded}, results
  )
  return 0


def _write(
  options: Options,
  game: str,
  runs: Mapping[str, Mapping[str, Any]],
  results: tables.Results,
) -> None:
  """Prints the tables, and writes the JSON file if there is to be one."""
  rules = "EnvPool's environment" if options.native else "seedx's rules"
  print(f"{game} by {rules}, {options.games} games of each pair\n")
  print(results.text(), flush=True)
  if options.output:
    record = {
      "game": game,
      "options": dataclasses.asdict(options),
      "runs": runs,
      **results.record(),
    }
    files.write_file(options.output, json.dumps(record, indent=2) + "\n")
    print(f"\nthese results are in {options.output}", flush=True)


def _report(number: int, total: int, names: str, score: float) -> None:
  print(f"{number}/{total} {names}: {score:.1%}", file=sys.stderr, flush=True)


def _others(options: Options, has_perfect: bool) -> tuple[str, ...]:
  if options.against == ("none",):
    return ()
  standard = ("random", "search", *("perfect",) * has_perfect)
  return options.against or standard
