"""The benchmark of self-play: what it measures, keeps and draws."""

import json

import pytest

from benchmarks import self_play


@pytest.mark.parametrize("name", self_play.FORMS)
def test_the_games_are_divided_among_the_processes(name):
  form = self_play.FORMS[name]
  config = form.config(32)
  actors = getattr(config, "actors", None)
  assert (actors or config).num_envs == 32
  if name.startswith("apex"):
    assert actors.num_actors == form.workers
  assert config.agent.num_simulations == 32


def test_results_are_measured_once_and_drawn(tmp_path, monkeypatch, capsys):
  measured = []

  def run(name, games, options):
    measured.append((name, games))
    cell = self_play.Cell(1e3, 200.0, games / 2, others=None)
    return cell._asdict()

  def alone(part, games, options):
    measured.append((part, games))
    return {"search": 800.0 / games, "environment": 20.0, "learning": 10.0}[
      part
    ]

  monkeypatch.setattr(self_play, "machine", lambda: "a machine")
  monkeypatch.setattr(self_play, "run", run)
  monkeypatch.setattr(self_play, "alone", alone)
  path, picture = tmp_path / "results.json", tmp_path / "picture.png"
  words = ["--results", str(path), "--picture", str(picture)]
  assert self_play.main([*words, "--games", "8,32"]) == 0
  assert len(measured) == len(set(measured)) == 4 + 2 + 1 + 2 * 5
  assert picture.stat().st_size > 1000
  out = capsys.readouterr().out
  # The search of 16 positions costs 50 us, a quarter of the move's 200 us.
  for name, shares in (("anakin", "0% | 70%"), ("sync", "10% | 60%")):
    line = f"| {name} | 32 | 1,000 | 16 | 200 | 25% | 5% | {shares} |  |"
    assert line in out
  assert "With 32 games, a call of the network has 16 positions in seed" in out
  measured.clear()
  assert self_play.main([*words, "--games", "8,32"]) == 0
  assert not measured
  values = json.loads(path.read_text())
  del values["sync"]["32"]
  path.write_text(json.dumps(values))
  assert self_play.main([*words, "--games", "8,32"]) == 0
  assert measured == [("sync", 32)]


def test_a_cost_between_two_sizes_is_interpolated(tmp_path):
  path = tmp_path / "results.json"
  path.write_text(json.dumps({"search": {"16": 60.0, "4": 100.0}}))
  costs = self_play.Results(path).alone
  assert [costs("search", n) for n in (1, 4, 8, 32)] == pytest.approx(
    [100, 100, 80, 60]
  )
