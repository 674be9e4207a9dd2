"""The command `seedx arena` with runs of several agents."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from seedx import app, checkpoint, envs
from seedx.agents import alphazero, ppo
from seedx.app.arena import main as arena
from seedx.app.arena import players
from seedx.app.runs import checkpointer, records
from seedx.envs import native_games
from seedx.pipelines import sync
from tests import programs

own_signals = programs.own_signals

SEARCHING = alphazero.Config(hidden_sizes=(8,), num_simulations=2)


def plant(path, agent, env="seedx:TicTacToe", **options):
  """Writes the directory of a run with checkpoints after 10 and 20 steps."""
  config = sync.Config(
    env=envs.Config(env, env_options=options), agent=agent, seed=3
  )
  path.mkdir()
  records.write(path, records.of(config, config, None))
  made = agent.make(envs.spec(config.env))
  checkpoints = checkpoint.Checkpoints(checkpointer.directory(path))
  for seed, env_steps in enumerate((10, 20)):
    acting = made.acting(jax.jit(made.init)(jax.random.key(seed)))
    checkpoints.save(env_steps, {checkpointer.ACTING: acting}, -float(seed))
  return str(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  folder = tmp_path_factory.mktemp("runs")
  small = ppo.Config(hidden_sizes=(8,))
  return {
    "ppo": plant(folder / "ppo", small, opponent="random"),
    "search": plant(folder / "search", SEARCHING),
    "four": plant(
      folder / "four", small, "seedx:ConnectFour", opponent="random"
    ),
    "pole": plant(folder / "pole", small, "CartPole-v1"),
  }


def test_the_command_prints_and_writes_results_of_every_pair(
  runs, tmp_path, capsys
):
  output = tmp_path / "arena.json"
  names = [runs["ppo"], runs["ppo"] + "@10", runs["search"] + ":network"]
  words = [*names, "--against", "random,perfect", "--games", "40", "--trust"]
  words += ["--exhaustive", "--output", str(output)]
  assert programs.main(arena, words) == 0
  out, err = capsys.readouterr()
  record = json.loads(output.read_text())
  assert record["game"] == "TicTacToe" and record["options"]["games"] == 40
  steps = [run["env_steps"] for run in record["runs"].values()]
  assert [*record["runs"]] == names and steps == [20, 10, 20]
  pairs = {(x["player"], x["opponent"]): x for x in record["pairs"]}
  assert len(pairs) == 10 and "10/10" in err
  for pair in record["pairs"]:
    for side, games in (("as_first", 20), ("as_second", 20), ("both", 40)):
      results = pair[side]
      won, drawn, lost = (results[x] for x in ("won", "drawn", "lost"))
      assert won + drawn + lost == games
      assert results["score"] == (won + drawn / 2) / games
      assert results["score_low"] <= results["score"] <= results["score_high"]
    assert (
      pair["as_first"]["won"] + pair["as_second"]["won"]
      == (pair["both"]["won"])
    )
  random = pairs["random", "perfect"]
  assert random["both"]["won"] == 0 and random["both"]["score"] < 0.2
  ranking = record["ranking"]
  assert ranking[0]["player"] == "perfect"
  assert {x["player"]: x["elo"] for x in ranking}["random"] == 0
  assert [x["elo"] for x in ranking] == sorted(
    (x["elo"] for x in ranking), reverse=True
  )
  exams = {x.pop("player"): x for x in record["exhaustive"]}
  assert [*exams] == names
  assert all(
    x["lost_as_second"] <= x["lines_as_second"] for x in exams.values()
  )
  exam = exams[names[0]]
  cells = f"{exam['lost_as_first']} of {exam['lines_as_first']}"
  words = " ".join(out.split())
  assert f"| {names[0]} | {cells} |" in words
  assert f"| 1 | perfect | {ranking[0]['elo']:.0f} |" in words


def test_a_run_plays_the_greedy_moves_of_its_policy(runs):
  player = players.load("a", runs["ppo"], trust=True)
  policy = app.load(runs["ppo"], trust=True)
  state = np.zeros((4, 2, 3, 3), np.int8)
  state[1, 0, 0, 0] = state[2, 1, 1, 1] = state[3, 0, 2, 2] = 1
  observed = {"board": state, "action_mask": state.sum(1).reshape(4, 9) == 0}
  moves, _ = player.act(jax.random.key(0), state, player.start(4), True)
  np.testing.assert_array_equal(moves, policy.predict(observed)[0])
  new = players.load("b", runs["ppo"], "untrained", trust=True)
  other, _ = new.act(jax.random.key(0), state, new.start(4), True)
  assert new.details["env_steps"] == 0
  assert not np.array_equal(moves, other)
  # The checkpoint has the parameters of another seed than the run's.
  old = players.load("c", runs["ppo"], "10", trust=True)
  earlier, _ = old.act(jax.random.key(0), state, old.start(4), True)
  assert not np.array_equal(earlier, other)


@pytest.mark.parametrize(
  ("options", "used"),
  [({}, [2]), ({"num_simulations": 5}, [5]), ({"network": True}, [])],
)
def test_a_run_plays_with_a_search_of_its_training_or_another_or_with_none(
  runs, options, used, monkeypatch
):
  numbers, search = [], alphazero.search_lib.search

  def counted(*args, num_simulations, **others):
    numbers.append(num_simulations)
    return search(*args, num_simulations=num_simulations, **others)

  monkeypatch.setattr(alphazero.search_lib, "search", counted)
  player = players.load("a", runs["search"], **options)
  board = np.zeros((2, 2, 3, 3), np.int8)
  jax.eval_shape(player.act, jax.random.key(0), board, player.start(2), True)
  assert numbers == used


def test_an_agent_that_does_not_search_has_no_number_of_simulations(runs):
  players.load("b", runs["ppo"], num_simulations=5, trust=True)


def test_a_players_name_has_a_directory_a_checkpoint_and_a_network(tmp_path):
  odd = tmp_path / "a@b"
  odd.mkdir()
  read = {
    name: dataclasses.astuple(arena.Entry.of(name))[1:]
    for name in ("a/b", "a/b@best", "a/b:network", "a/b@10:network")
  }
  assert read == {
    "a/b": ("a/b", "latest", False),
    "a/b@best": ("a/b", "best", False),
    "a/b:network": ("a/b", "latest", True),
    "a/b@10:network": ("a/b", "10", True),
  }
  for ending, rest in (
    ("", ("latest", False)),
    (":network", ("latest", True)),
    ("@7", ("7", False)),
  ):
    entry = arena.Entry.of(f"{odd}{ending}")
    assert dataclasses.astuple(entry)[1:] == (str(odd), *rest)


def test_games_can_be_played_on_envpool(runs, capsys, monkeypatch):
  steps, step = [], native_games.NativeGames.step

  def counted(self, action):
    steps.append(action)
    return step(self, action)

  monkeypatch.setattr(native_games.NativeGames, "step", counted)
  words = [runs["ppo"], "--against", "random", "--games", "20", "--trust"]
  assert programs.main(arena, [*words, "--native"]) == 0
  native = capsys.readouterr().out
  assert 10 <= len(steps) <= 18
  assert programs.main(arena, words) == 0
  own = capsys.readouterr().out
  assert native.splitlines()[2:] == own.splitlines()[2:]
  assert native.splitlines()[0] != own.splitlines()[0]


@pytest.mark.parametrize(
  ("words", "message"),
  [
    ("{pole}", "expected a run that was trained on a game"),
    ("{ppo} {four}", "expected runs of one game, found TicTacToe in"),
    ("{ppo}:network", "expected an agent with a search"),
    ("{ppo} {ppo}", "expected each player once"),
    ("{ppo} --games 41", "expected --games of an even number"),
    ("{ppo} --against none", "expected two players or more"),
    ("{four} --against perfect", "expected an opponent other than perfect"),
    ("{four} --exhaustive", "expected a small game"),
  ],
)
def test_what_cannot_be_played_is_refused(runs, words, message, capfd):
  words = [*words.format(**runs).split(), "--trust"]
  assert message in programs.refused(arena, words, capfd)


def test_code_that_a_run_names_needs_trust(runs, tmp_path, capfd):
  path = tmp_path / "theirs"
  plant(path, ppo.Config(hidden_sizes=(8,)), "CartPole-v1")
  config = path / "config.json"
  config.write_text(config.read_text().replace("CartPole-v1", "theirs:make"))
  words = [str(path) + "@10:network", "--games", "2"]
  assert "theirs:make; if you trust" in programs.refused(arena, words, capfd)


def test_a_run_plays_without_the_opponent_of_its_training(runs, tmp_path):
  path = tmp_path / "learned"
  shutil.copytree(runs["ppo"], path)
  config = path / "config.json"
  config.write_text(
    config.read_text().replace('"random"', '"run:missing+random"')
  )
  words = [str(path), "--games", "2", "--against", "random"]
  assert programs.main(arena, words) == 0
