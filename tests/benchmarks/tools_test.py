"""Developers' benchmarks: each program runs with tiny sizes."""

import json
import re
import sys

import pytest

from benchmarks import host_path, overhead, pairs, start, watched
from benchmarks.peers import __main__ as peers
from benchmarks.peers import replays
from seedx import types
from tests import programs

RUN = "ppo --num-envs 2 --hidden-sizes 4 --unroll-length 4 --epochs 1"
# Reports progress as a peer would, at most 1,000 env steps per second.
PEER = """
import time
for number in range(1, 10**6):
  print(f"env_steps={100 * number} episode_return={number}")
  sum(range(2 * 10**6))
  time.sleep(0.1)
"""


def rows_of(text):
  """Returns the numbers in the rows of a table, by the rows' names."""
  rows = re.findall(r"^\| (.*?) \| (.*) \|$", text, re.MULTILINE)
  return {
    name: [float(x.replace(",", "")) for x in numbers]
    for name, cells in rows
    if (numbers := re.findall(r"(?<![\w-])\d[\d,.]*", cells))
  }


@pytest.mark.parametrize(
  "words",
  [
    "",
    pytest.param("--frames --address 127.0.0.1:0", marks=pytest.mark.slow),
  ],
)
def test_the_host_path_serves_actors_without_environments(words, capsys):
  options = "--rows 4 --streams 2 --processes 1 --seconds 0.2"
  assert host_path.main([*options.split(), *words.split()]) == 0
  rows = rows_of(capsys.readouterr().out)
  assert rows["messages"][0] > 0
  assert 0 < rows["rows in a batch"][0] <= 8
  assert rows["CPU us/message"][0] > 0


def test_updates_and_messages_have_an_overhead(capsys):
  assert overhead.main(["--rows", "2", "--calls", "5"]) == 0
  text = capsys.readouterr().out
  assert len(re.findall("^. update", text, re.MULTILINE)) == 4
  assert all(x > 0 for row in rows_of(text).values() for x in row)


@pytest.mark.parametrize("kind", ["prioritized", "uniform"])
def test_a_replay_has_a_cost(kind, monkeypatch, capsys):
  monkeypatch.setattr(replays, "BATCH", 64)
  words = ["seedx", "--kind", kind, "--steps", "256", "--seconds", "0"]
  assert replays.main(words) == 0
  micros = json.loads(capsys.readouterr().out)
  assert ("update" in micros) == (kind == "prioritized")
  assert min(micros.values()) > 0
  assert micros.pop("all") == pytest.approx(sum(micros.values()), abs=1)


@pytest.mark.slow
def test_starts_and_pairs_of_runs_are_watched(capsys):
  run = f"{programs.ROOT} {RUN}"
  assert start.main([f"a={run}", "--rounds", "1"]) == 0
  ((first_line, first_update, wall),) = rows_of(
    capsys.readouterr().out
  ).values()
  assert 0 < first_line < first_update and wall > 0
  words = [f"a={run}", f"b={run}", "--seconds", "1", "--settle", "0"]
  assert pairs.main(words) == 0
  rows = rows_of(capsys.readouterr().out)
  for name in "ab":
    total, busiest, others, rate = rows[name]
    assert total == pytest.approx(busiest + others, abs=0.02)
    assert total > 0 and rate > 0


def test_a_peer_is_watched_from_its_first_progress_on(
  tmp_path, monkeypatch, capsys
):
  (tmp_path / "peer.py").write_text(PEER)
  given = peers.Peer("A peer", "no", "p", "{here}/peer.py", peers.STEP)
  missing = given._replace(name="Not given", python="q")
  failed = given._replace(name="Fails", command="{here}/none.py")
  monkeypatch.setattr(peers, "PEERS", (given, missing, failed))
  words = ["--python", f"p={sys.executable}", "--source", f"here={tmp_path}"]
  words += ["--seconds", "0.5", "--settle", "0", "--rounds", "1"]
  assert peers.main([*words, "--only", "peer|Not|Fails"]) == 0
  out, err = capsys.readouterr()
  assert "Fails" in err and "none.py" in err
  rows = rows_of(out)
  assert "Not given" not in rows and "Fails" not in rows
  micros, rate, episode_return, steps = rows["A peer"]
  assert micros > 0 and 100 < rate <= 1000 and episode_return > 0
  assert steps < 1


def test_lines_of_progress_are_parsed():
  lines = peers.Lines(peers.SAMPLE_FACTORY)
  assert lines("Avg episode reward: [(0, '36.5')]") is None
  progress = lines("Fps is (10 sec: 9.0). Total num frames: 40960. Through")
  assert progress == watched.Progress(40960, 1, 36.5)
  lines = peers.Lines(peers.CLEANRL)
  assert lines("global_step=512, episodic_return=[20.]") is None
  assert lines("global_step=1024, episodic_return=[30.]") is None
  assert lines("SPS: 515") == watched.Progress(1024, 1, 25)
  assert lines("global_step=2048, episodic_return=[-200.]") is None
  assert lines("SPS: 515") == watched.Progress(2048, 1, -50)
  assert lines("another line") is None


@pytest.mark.parametrize("text", ["ppo", "a=."])
def test_a_run_needs_a_name_a_checkout_and_an_experiment(text):
  with pytest.raises(types.ConfigError, match="expected NAME=CHECKOUT"):
    watched.Run.of(text)


def test_the_cost_of_env_steps_is_that_of_all_processes():
  start = watched.Sample(watched.Progress(1000), 10.0, {1: 2.0, 2: 1.0})
  end = watched.Sample(watched.Progress(3000), 14.0, {1: 4.0, 2: 1.5, 3: 0.5})
  cost = watched.cost(start, end)
  assert cost.rate == 500
  assert cost.busiest == pytest.approx(1000)
  assert cost.others == pytest.approx(500)
  assert cost.total == pytest.approx(1500)


def test_only_new_and_complete_lines_make_samples(tmp_path):
  (tmp_path / "lines").write_text("env_steps=1 episode_return=2\nenv_steps=3")
  words = [sys.executable, "-c", "import time; time.sleep(600)"]
  lines = peers.Lines(peers.STEP)
  with watched.Program(words, tmp_path, lines, "lines") as program:
    assert program.read() and program.read()
    with open(tmp_path / "lines", "a") as file:
      file.write("0 episode_return=4\n")
    assert program.read()
    progress = [x.progress for x in program.samples]
    assert progress == [watched.Progress(1, 1, 2), watched.Progress(30, 1, 3)]
    with pytest.raises(types.ConfigError, match="more progress within 0 s"):
      watched.wait([program], lambda x: False, 0)
  assert program.samples[-1].cpu_seconds


def test_a_program_that_fails_is_an_error(tmp_path):
  words = [sys.executable, "-c", "raise SystemExit('why')"]
  with (
    watched.Program(words, tmp_path, lambda line: None) as program,
    pytest.raises(types.ConfigError, match="ended with 1: why"),
  ):
    watched.wait([program], lambda x: False, 600)
