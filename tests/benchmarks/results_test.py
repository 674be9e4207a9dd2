"""Tests of the runs of results, and of what makes a row stale."""

import dataclasses
import json
import pathlib
import re
import shutil
import sys

import pytest

from benchmarks.results import data, fingerprints, runs, staleness, tables
from seedx import losses

_WORDS = ["anakin_ppo", "--env", "seedx:Catch", "--num-envs", "16"]
_WORDS += ["--unroll-length", "16", "--total-steps", "60000"]
_COPIED = ("seedx", "experiments", "benchmarks", "tests")


def outcome(**values):
  here = {"versions": data.versions(), "cpu": data.cpu(), "commit": "1234567"}
  return data.Outcome(**{"seed": 0, "fingerprint": "a", **here, **values})


def row(*outcomes, command="ppo --env CartPole-v1 --total-steps 300000"):
  made = data.Row("a_row", "learned", command)
  made.__dict__["outcomes"] = {x.seed: x for x in outcomes}
  return made


def state(monkeypatch, *outcomes, today="a", there=None, **options):
  """Returns the state of a row whose fingerprint of today is given."""

  def of_rows(names, root=data.ROOT):
    digest = today if root == data.ROOT else there
    return dict.fromkeys(names, digest) if digest else {}

  monkeypatch.setattr(fingerprints, "of_rows", of_rows)
  monkeypatch.setattr(data, "git", lambda *words: "commit")
  made = row(*outcomes, **options)
  return staleness.states([made])["a_row"]


def test_a_row_without_outcomes_is_not_measured(monkeypatch):
  assert state(monkeypatch) == staleness.NOT_MEASURED


def test_a_row_with_an_outcome_without_fingerprint_is_old(monkeypatch):
  second = outcome(seed=1, fingerprint=None)
  assert state(monkeypatch, outcome(), second) == staleness.OLD


def test_a_row_with_todays_fingerprint_is_current(monkeypatch):
  assert state(monkeypatch, outcome()) == staleness.CURRENT
  assert (
    state(
      monkeypatch,
      outcome(),
      command="seed_vtrace --env CartPole-v1 --total-steps 2000000",
    )
    == staleness.SAME_AGENT
  )


def test_a_row_with_another_fingerprint_is_stale(monkeypatch):
  second = outcome(seed=1, fingerprint="b")
  assert state(monkeypatch, outcome(), second) == staleness.STALE
  assert state(monkeypatch, outcome(), today=None) == staleness.STALE


def test_a_row_without_its_library_is_not_stale(monkeypatch):
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  command = "ppo --env gymnax:CartPole-v1 --total-steps 300000"
  missing = state(monkeypatch, outcome(), today=None, command=command)
  assert missing == staleness.UNKNOWN


@pytest.mark.parametrize(
  "other", [{"cpu": "another"}, {"versions": {"jax": "0.0.1"}}]
)
def test_a_fingerprint_of_another_machine_is_computed_here(other, monkeypatch):
  # The recorded digest is of the other machine, and is not compared.
  of_there = outcome(fingerprint="other", **other)
  assert state(monkeypatch, of_there, there="a") == staleness.UNKNOWN
  monkeypatch.setattr(staleness, "_checkout", _fake_checkout)
  assert state(monkeypatch, of_there, there="a") == staleness.CURRENT
  assert state(monkeypatch, of_there, there="b") == staleness.STALE
  assert state(monkeypatch, of_there, there=None) == staleness.UNKNOWN


class _fake_checkout:
  def __init__(self, commit):
    assert commit == "1234567"

  def __enter__(self):
    return pathlib.Path("there")

  def __exit__(self, *error):
    pass


def test_returns_are_reached_at_the_first_line():
  lines = [
    {"episode_return": None, "env_steps": 1, "wall_seconds": 0.5},
    {"episode_return": 20.0, "env_steps": 2, "wall_seconds": 1.0},
    {"episode_return": 19.0, "env_steps": 3, "wall_seconds": 1.5},
    {"episode_return": 22.0, "env_steps": 4, "wall_seconds": 2.0},
  ]
  expected = {"20": [2, 1.0], "20.5": [4, 2.0]}
  assert runs.reached(lines, [20, 20.5, 23]) == expected


def test_seeds_are_due_without_an_outcome_of_the_same_fingerprint():
  made = row(outcome(), outcome(seed=1, fingerprint="b"))
  assert runs.due(made, [], "a") == [1, 2, 3, 4]
  assert runs.due(made, [0, 1, 4], "b") == [0, 4]
  # Without a fingerprint of today, nothing is known to be the same.
  assert runs.due(made, [0, 1], None) == [0, 1]


@pytest.mark.slow
def test_a_row_of_several_seeds_is_trained_and_measured_once(
  tmp_path, monkeypatch
):
  words = [*_WORDS, "--num-seeds", "2", "--hidden-sizes", "8"]
  made = data.Row("a_row", "a", " ".join(words), "greedy", seeds=(3, 4))
  monkeypatch.setattr(data, "OUTCOMES", tmp_path / "outcomes")
  monkeypatch.setattr(runs, "_RUNS", tmp_path / "runs")
  monkeypatch.setattr(data, "git", lambda *words: "")
  monkeypatch.setattr(data, "provenance", lambda: {"commit": "1234567"})
  monkeypatch.setattr(fingerprints, "of_rows", lambda names: {"a_row": "a"})
  assert runs.run([made], [], minutes=10, core=-1) == 0
  made = dataclasses.replace(made)  # Reads the outcomes.
  assert {*made.outcomes} == {3, 4}
  for seed, read in made.outcomes.items():
    assert (read.seed, read.commit, read.fingerprint) == (seed, "1234567", "a")
    for measured in (read.training, read.greedy):
      assert -1 <= measured <= 1
  assert made.outcomes[3].training != made.outcomes[4].training
  paths = [made.path(seed) for seed in made.seeds]
  times = [path.stat().st_mtime_ns for path in paths]
  assert runs.run([made], [], minutes=10, core=-1) == 0
  assert [path.stat().st_mtime_ns for path in paths] == times


@pytest.mark.slow
def test_a_loss_that_changes_by_a_percent_changes_the_fingerprint(monkeypatch):
  before = fingerprints.of_words(_WORDS)
  assert fingerprints.of_words(_WORDS) == before
  kept = losses.ppo

  def changed(*args, **kwargs):
    terms = kept(*args, **kwargs)
    return terms._replace(entropy=1.01 * terms.entropy)

  monkeypatch.setattr(losses, "ppo", changed)
  assert fingerprints.of_words(_WORDS) != before


@pytest.mark.slow
def test_a_renamed_module_does_not_change_the_fingerprint(tmp_path):
  copy = tmp_path / "copy"
  for name in _COPIED:
    shutil.copytree(data.ROOT / name, copy / name)
  (copy / "seedx/agents/ppo.py").rename(copy / "seedx/agents/proximal.py")
  for path in [*copy.glob("experiments/*.py"), *copy.glob("seedx/**/*.py")]:
    text = path.read_text()
    path.write_text(
      re.sub(
        r"^(from seedx.agents import .*)\bppo\b",
        r"\1proximal as ppo",
        text,
        flags=re.M,
      )
    )
  name = "anakin_ppo_catch"
  here = fingerprints.of_rows([name])
  assert here and fingerprints.of_rows([name], copy) == here


def test_a_shortened_config_keeps_the_rows_settings():
  words = ["rainbow", "--env", "CartPole-v1", "--total-steps", "500000"]
  config = fingerprints.trials.read(words).run
  short = fingerprints.shortened(config)
  assert short.total_steps == 500_000
  assert short.replay.replay_min_steps <= 512 < config.replay.replay_min_steps
  agent = dataclasses.replace(
    short.agent, target_period=config.agent.target_period
  )
  assert dataclasses.replace(agent, **_exploration(config)) == config.agent


def _exploration(config):
  names = ("epsilon_steps",)
  return {
    k: getattr(config.agent, k) for k in names if hasattr(config.agent, k)
  }


def test_tables_of_a_program_are_kept_with_their_origin(tmp_path, monkeypatch):
  monkeypatch.setattr(data, "TABLES", tmp_path)
  old = {"command": "a program", "values": {"best": "7"}}
  (tmp_path / "b.json").write_text(json.dumps(old))
  text = (
    "some\n| x | y |\n|---|---:|\n| 1 | 2,000 |\n\n| z |\n| --- |\n| a-b |\n"
  )
  program = [sys.executable, "-c", f"print({text!r})"]
  assert tables.measure(["a", "b"], program) == 0
  first = json.loads((tmp_path / "a.json").read_text())
  second = json.loads((tmp_path / "b.json").read_text())
  assert (first["columns"], first["rows"]) == (["x", "y"], [["1", "2,000"]])
  assert (second["columns"], second["rows"]) == (["z"], [["a-b"]])
  assert second["command"] == "a program" and second["values"] == {"best": "7"}
  assert first["command"].startswith(sys.executable)
  assert first["commit"] == data.git("rev-parse", "--short=7", "HEAD")
  assert tables.measure(["a", "b", "c"], program) == 2
  assert tables.measure(["a"], [sys.executable, "-c", "exit(3)"]) == 3
