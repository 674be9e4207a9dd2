"""Tic-tac-toe, learned by AlphaZero and played against every line of moves."""

import json
import os

import jax
import pytest

from experiments import alphazero
from seedx.app.arena import main as arena
from seedx.app.arena import matches, players
from tests import programs

own_signals = programs.own_signals


@pytest.fixture
def optimized():
  """Compiles as users do: a search runs longer than it takes to compile."""
  name = "jax_disable_most_optimizations"
  jax.config.update(name, False)
  yield
  jax.config.update(name, name.upper() in os.environ)


def exams(path, *words):
  """Trains; returns exams with 32 simulations, trained and untrained."""
  words = ("--run-dir", path, "--quiet", *words)
  assert programs.main(alphazero, words) == 0
  loaded = [
    players.load(name, path, name, num_simulations=32)
    for name in ("latest", players.UNTRAINED)
  ]
  return [matches.exam(x.game, x, 200) for x in loaded]


@pytest.mark.slow
@pytest.mark.usefixtures("optimized")
def test_a_short_training_loses_few_lines_of_tic_tac_toe(tmp_path):
  words = "--total-steps", "160000", "--num-simulations", "16"
  trained, untrained = exams(str(tmp_path / "run"), *words)
  assert trained.lost_as_first == 0 and trained.lost_as_second <= 15
  assert untrained.lost_as_second > 50


@pytest.mark.long
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_default_training_loses_few_lines_and_beats_random_play(
  tmp_path, seed
):
  path = str(tmp_path / "run")
  trained, untrained = exams(path, "--seed", str(seed))
  assert trained.lost_as_first == 0 and trained.lost_as_second <= 15
  assert untrained.lost_as_second > 50
  output = tmp_path / "arena.json"
  words = path, "--against", "random", "--output", str(output)
  assert programs.main(arena, words) == 0
  (pair,) = json.loads(output.read_text())["pairs"]
  # Perfect play scores 93.6%.
  assert pair["both"]["score"] >= 0.9 and pair["both"]["lost"] <= 4
