"""Tests of the programs in `examples/`, by their own commands."""

import ast
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_FOLDER = _ROOT / "examples"
# For each experiment, options that make its run short, and a metric.
_EXPERIMENTS = {
  "auxiliary_head": ("--total-steps 20000", "prediction"),
  "logged_number": ("--total-steps 20000", "clipped_advantage"),
  "ports": ("--total-steps 6000", "episode_return"),
  "rnd": ("--total-steps 200000 --env-options size=12", "rnd_error"),
  "two_losses": ("--total-steps 20000", "entropy"),
}


def command(name):
  """Returns the words of the last command in a program's docstring."""
  text = ast.get_docstring(ast.parse((_FOLDER / name).read_text()))
  *_, last = re.findall(r"^ *((?:python|seedx) .*)$", text, re.MULTILINE)
  program, *words = shlex.split(last)
  return [sys.executable, *(["-m", "seedx"] * (program == "seedx")), *words]


def run(words, **kwargs):
  return subprocess.run(
    words,
    cwd=_ROOT,
    env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(_ROOT)},
    capture_output=True,
    text=True,
    timeout=300,
    **kwargs,
  )


def train(words, run_dir):
  """Runs a command with another run directory; returns the last metrics."""
  words[words.index("--run-dir") + 1] = str(run_dir)
  done = run(words)
  assert done.returncode == 0, done.stderr
  return json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(_EXPERIMENTS))
def test_an_experiment_trains_and_has_its_metric(name, tmp_path):
  options, metric = _EXPERIMENTS[name]
  words = [*command(f"{name}.py"), *options.split()]
  line = train(words, tmp_path / "run")
  assert line["learner_steps"] > 0
  assert line[metric] is not None
  if name in ("ports", "rnd"):
    assert line["episode_return"] >= 0.9


@pytest.mark.slow
def test_a_loop_around_a_loss_learns():
  done = run(command("own_loop.py"))
  assert done.returncode == 0, done.stderr
  assert float(done.stdout.split()[-1]) >= 400


@pytest.mark.slow
def test_a_loop_around_an_agent_learns_with_each_rate_in_its_way():
  done = run(command("rates_at_once.py"))
  assert done.returncode == 0, done.stderr
  lengths = ast.literal_eval(done.stdout.partition(" are ")[2])
  assert len({*lengths}) == 4 and max(lengths) >= 300


@pytest.mark.slow
def test_the_moves_of_a_game_against_a_person_are_saved(tmp_path):
  trained = ["train", "alphazero", "--env", "seedx:TicTacToe"]
  words = [sys.executable, "-m", "seedx", *trained, "--run-dir", ""]
  train([*words, "--total-steps", "5000"], tmp_path / "run")
  words = command("play.py")
  words[2] = str(tmp_path / "run")
  words[words.index("--moves") + 1] = str(tmp_path / "game.json")
  # A word and a cell that does not exist are asked for again.
  typed = "word\n9\n" + "0\n1\n2\n3\n4\n5\n6\n7\n8\n" * 5
  done = run(words, input=typed)
  assert done.returncode == 0, done.stderr
  game = json.loads((tmp_path / "game.json").read_text())
  assert game["moves"][0] == 0
  assert len({*game["moves"]}) == len(game["moves"]) >= 5
  lines = {(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8)}
  lines |= {(0, 4, 8), (2, 4, 6)}
  winners = [
    x for x in (0, 1) if any({*k} <= {*game["moves"][x::2]} for k in lines)
  ]
  assert [game["winner"]] == (winners or [None])
