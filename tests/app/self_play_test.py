"""Programs with a run of self-play, whose agent searches before it moves."""

import json
import sys

import numpy as np
import pytest

from experiments import alphazero, seed_alphazero
from seedx import app
from seedx.app import export
from tests import programs

own_signals = programs.own_signals
compiled_once = programs.compiled_once

# The greatest part of the time is for compiling the search.
SMALL = "--num-envs 8 --unroll-length 8 --hidden-sizes 8 --num-simulations 2"
SMALL += " --total-steps 800 --replay-min-steps 200 --replay-batch-size 16"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
  """Returns the directory of a finished run."""
  path = tmp_path_factory.mktemp("runs") / "run"
  assert programs.main(alphazero, [*SMALL.split(), "--run-dir", str(path)]) == 0
  return path


@pytest.mark.slow
def test_a_loaded_policy_plays_with_and_without_its_search(run_dir, capfd):
  policy = app.load(run_dir)
  game = policy.spec.game
  plays = {}
  for name, player in (
    ("search", policy),
    ("network", policy.without_search()),
  ):
    state, memory, moves, over = game.start(), None, [], False
    while not over:
      seen = {k: np.asarray(x) for k, x in game.observe(state).items()}
      move, memory = player.predict(seen, memory)
      assert seen["action_mask"][move]
      moves.append(int(move))
      state, _, over = game.play(state, move)
    assert memory.core_state.moves == len(moves) >= 5
    plays[name] = moves
  assert plays["search"] != plays["network"]


@pytest.mark.slow
def test_a_policy_is_exported_without_its_search_on_request(
  run_dir, tmp_path, capfd
):
  sizes = {}
  for words in ([], ["--without-search"]):
    output = tmp_path / f"policy{len(words)}"
    assert export.main([str(run_dir), "--output", str(output), *words]) == 0
    description = json.loads(output.with_suffix(".json").read_text())
    assert description["search"] == (not words)
    sizes[not words] = output.with_suffix(".stablehlo").stat().st_size
  assert sizes[True] > 2 * sizes[False]


@pytest.mark.parametrize("program", [alphazero, seed_alphazero])
def test_a_program_without_the_package_of_the_search_is_refused(
  program, tmp_path, monkeypatch, capfd
):
  monkeypatch.setitem(sys.modules, "mctx", None)  # As if not installed.
  words = ["--hidden-sizes", "8", "--run-dir", str(tmp_path / "run")]
  error = programs.refused(program, words, capfd)
  assert "the package mctx" in error and "pip install 'seedx[games]'" in error
  assert not (tmp_path / "run").exists()


def test_another_environment_than_a_game_is_refused(tmp_path, capfd):
  words = ["--run-dir", str(tmp_path / "run"), "--env", "CartPole-v1"]
  error = programs.refused(seed_alphazero, words, capfd)
  assert "expected a game whose rules are JAX functions" in error
