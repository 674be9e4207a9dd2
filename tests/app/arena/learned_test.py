"""Tic-tac-toe, learned by AlphaZero and played against every line of moves."""

import jax
import pytest

from experiments import alphazero
from seedx.app.arena import matches, players
from tests import programs

own_signals = programs.own_signals


@pytest.fixture
def optimized():
  """Compiles as users do: a search runs longer than it takes to compile."""
  name = "jax_disable_most_optimizations"
  before = getattr(jax.config, name)
  jax.config.update(name, False)
  yield
  jax.config.update(name, before)


def exams(path, *words):
  """Trains, and returns the exams of the trained and of an untrained agent."""
  words = ("--run-dir", path, "--quiet", *words)
  assert programs.main(alphazero, words) == 0
  loaded = [
    players.load(name, path, name) for name in ("latest", players.UNTRAINED)
  ]
  return [matches.exam(x.game, x, 200) for x in loaded]


@pytest.mark.slow
@pytest.mark.usefixtures("optimized")
def test_a_short_training_loses_few_lines_of_tic_tac_toe(tmp_path):
  trained, untrained = exams(str(tmp_path / "run"), "--total-steps", "80000")
  assert trained.lost_as_first == 0 and trained.lost_as_second <= 15
  # The search alone has as many simulations.
  assert untrained.lost_as_second > 50
