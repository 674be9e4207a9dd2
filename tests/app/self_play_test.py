"""Programs of self-play that cannot start."""

import sys

import pytest

from experiments import alphazero, seed_alphazero
from tests import programs

own_signals = programs.own_signals


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
