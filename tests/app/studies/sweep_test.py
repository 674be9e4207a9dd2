"""Tests of sweeps: wrong options, single trials, and whole sweeps."""

import contextlib
import importlib
import ipaddress
import json
import os
import re
import signal
import threading

import psutil
import pytest

from seedx import metrics
from seedx.app.studies import ray_tasks, search, study, sweep, trials
from seedx.launch import ray_cluster
from tests import programs, running, with_ray

compiled_once = programs.compiled_once
started = programs.started

SEARCH = "learning_rate=log:1e-4..1e-2,entropy_cost=0.001|0.01"


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["nothing", "--search", SEARCH], "expected one of a2c"),
    (["ppo"], "found none"),
    (["ppo", "--search", "seed=1|2"], "found seed"),
    (["ppo", "--search", "total_steps=1|2"], "found total_steps"),
    (["ppo", "--search", SEARCH, "--method", "grid"], "A|B with method grid"),
    (["ppo", "--search", "discount=0.5|1.5"], "expected --discount"),
    (["ppo --no-such 3", "--search", SEARCH], "unrecognized arguments"),
    (["ppo --seed 3", "--search", SEARCH], "found --seed"),
    (["ppo --help", "--search", SEARCH], "expected no --help"),
    (["ppo", "--search", SEARCH, "--score", "won"], "with --log-info in EXP"),
  ],
)
def test_wrong_options_are_refused_before_ray_starts(
  words, message, capfd, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(ray_cluster, "ray", None)
  with pytest.raises(SystemExit) as caught:
    sweep.main(words)
  assert caught.value.code == 2
  assert message in capfd.readouterr().err
  assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
  ("missing", "words"),
  [
    ("ray", ["--ray-address", "local", "--scheduler", "none"]),
    ("optuna", []),
  ],
)
def test_a_missing_library_is_reported_with_the_command_to_install_it(
  missing, words, capfd, monkeypatch
):
  real = importlib.import_module

  def imported(name, *package):
    if name == missing:
      raise ImportError(f"No module named {name!r}")
    return real(name, *package)

  monkeypatch.setattr(ray_cluster.importlib, "import_module", imported)
  with pytest.raises(SystemExit):
    sweep.main(["ppo", "--search", SEARCH, *words])
  extra = {"ray": "ray", "optuna": "sweep"}[missing]
  assert f'pip install "seedx[{extra}]"' in capfd.readouterr().err


def test_values_become_options_of_a_command_line():
  values = {"learning_rate": "0.1", "rescale": "False", "dueling": "true"}
  expected = "--learning-rate 0.1 --no-rescale --dueling"
  assert sweep.option_words(values) == expected.split()


@pytest.mark.slow
def test_a_trial_has_its_own_directory_options_seed_and_lines(tmp_path):
  """Calls the trial as the cluster does, but without a cluster."""
  words = "a2c --env CartPole-v1 --hidden-sizes 8 --num-envs 4 --log-seconds 0"
  words += " --total-steps 400 --learning-rate 0.0123"
  trial = trials.Trial("trials/000", words.split(), seed=3)
  remote = ray_tasks._Remote(trial, tmp_path, 0.0)
  lines = [*iter(remote.next_line, None)]
  assert remote.end() == ""
  steps = [x["env_steps"] for x in lines]
  assert steps == sorted(steps) and steps[-1] >= 400 and len(steps) > 2
  folder = tmp_path / "trials" / "000"
  assert lines == metrics.read_lines(folder / "metrics.jsonl")
  options = json.loads((folder / "config.json").read_text())["options"]
  assert options["learning_rate"] == 0.0123 and options["seed"] == 3


class FakePool:
  """A pool that writes the metrics of trials without training them."""

  def __init__(self, run_dir, failed):
    self.run_dir, self.stop, self._failed = run_dir, threading.Event(), failed

  def train(self, planned, ends=None, total=None):
    del ends, total
    for k, x in enumerate(planned):
      folder = self.run_dir / x.name
      folder.mkdir(parents=True)
      line = {"env_steps": 400, "wall_seconds": 1.0, "episode_return": float(k)}
      line["info_won"] = 1 - k / 4
      (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
      error = self._failed.get(x.name)
      yield x, f"failed: {error}" if error else ""


def run_search(tmp_path, failed, score="episode_return", seeds=1):
  options = sweep.Options(
    experiment="ppo", trials=2, seeds=seeds, total_steps=400, score=score
  )
  values = [{"learning_rate": "0.1"}, {"learning_rate": "0.2"}]
  words = ["ppo", "--total-steps", "400"]
  draws, places = search.Draws(values), FakePool(tmp_path, failed)
  return sweep._search(options, words, draws, "CartPole-v1", places)


def test_a_score_is_a_metric_that_the_trials_have():
  assert study.score_of("episode_return", ()) == "episode_return"
  assert study.score_of("a/won", ("b", "a/won")) == "info_a/won"
  assert study.score_of("info_b", ("b",)) == "info_b"


def test_trials_are_ranked_by_the_score(tmp_path):
  assert run_search(tmp_path, {}, "info_won") == 0
  table, sentences = (tmp_path / "sweep.md").read_text().split("\n\n")
  titles, _, first, second = table.splitlines()
  assert "| won |" in titles
  assert "| 000 | 0.1 | 1 |" in first and "| 001 | 0.2 | 0.75 |" in second
  assert "mean won 0.75 (1 0.75 0.5) with seeds 1 to 3" in sentences
  assert "best: learning_rate=0.1" in sentences


def test_the_mean_over_seeds_ranks_a_draw(tmp_path):
  assert run_search(tmp_path, {}, seeds=3) == 0
  table, sentences = (tmp_path / "sweep.md").read_text().split("\n\n")
  *_, first, second = table.splitlines()
  assert "| 001 | 0.2 | 4.0 (3.0 4.0 5.0) |" in first
  assert "| 000 | 0.1 | 1.0 (0.0 1.0 2.0) |" in second
  assert "best: learning_rate=0.2: mean return 4.0" in sentences
  assert "with seeds 3 to 5" in sentences  # Seeds that no trial had.
  for name in ("trials/001/2", "best/3"):
    assert (tmp_path / name / "metrics.jsonl").exists()


def test_if_all_trials_fail_none_is_the_best(tmp_path, capsys):
  failed = {"trials/000": "no memory", "trials/001": "no disk"}
  assert run_search(tmp_path, failed) == 1
  output = capsys.readouterr().out
  assert "all trials failed" in output and "best" not in output
  assert "failed: no memory" in output and "failed: no disk" in output
  assert not (tmp_path / "best").exists()


def test_a_failed_run_of_the_best_draw_is_left_out_of_its_mean(
  tmp_path, capsys
):
  failed = {"trials/001/1": "no disk", "best/3": "no memory"}
  assert run_search(tmp_path, failed, seeds=2) == 1
  table, _ = (tmp_path / "sweep.md").read_text().split("\n\n")
  assert "no disk" in table.splitlines()[-1]
  *_, default, best, failure, _ = capsys.readouterr().out.splitlines()
  assert default.startswith("default: mean return 1.0 (0.0 1.0 2.0)")
  # A draw with a failed seed is not the best, although its return is higher.
  assert best.startswith("best: learning_rate=0.1: mean return 4.0 (3.0 5.0)")
  assert failure == "best: learning_rate=0.1: best/3 failed: no memory"
  assert (tmp_path / "sweep.png").stat().st_size > 1000


def rows(table):
  return [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in table.splitlines()
    if line.startswith("| 0")
  ]


@pytest.mark.long
def test_a_sweep_ranks_eight_trials_and_trains_the_best_again(
  started, tmp_path
):
  sizes = ["--total-steps", "16000", "--final-seeds", "1", "--trials", "8"]
  program = started("ppo", "--search", SEARCH, *sizes)
  output, progress = program.communicate()
  assert program.returncode == 0, progress
  run = tmp_path / "run"
  table = rows((run / "sweep.md").read_text())
  assert table == rows(output)
  assert sorted(x[0] for x in table) == [f"{k:03d}" for k in range(8)]
  for name, rate, cost, episode_return, steps, _, end in table:
    options = json.loads((run / "trials" / name / "config.json").read_text())
    assert options["options"]["learning_rate"] == float(rate)
    assert options["options"]["entropy_cost"] == float(cost)
    last = metrics.read_lines(run / "trials" / name / "metrics.jsonl")[-1]
    assert f"{last['episode_return']:.1f}" == episode_return
    assert f"{last['env_steps']:,}" == steps
    assert end == ("done" if last["env_steps"] >= 16_000 else "ended early")
  returns = [float(x[3]) for x in table]
  assert returns == sorted(returns, reverse=True)
  assert "ended early" in {x[6] for x in table}  # By ASHA.
  assert len(re.findall(r"^\d/8 trials/", progress, re.MULTILINE)) == 8
  assert re.search(r"^default: mean return .* with seeds 1 to 1$", output, re.M)
  best = table[0]
  words = f"best: learning_rate={best[1]} entropy_cost={best[2]}: mean return"
  assert words in output
  final = json.loads((run / "best" / "1" / "config.json").read_text())
  assert final["options"]["learning_rate"] == float(best[1])
  assert (run / "sweep.png").read_bytes().startswith(b"\x89PNG")


_SINK = """
def make(run_dir, options):
  if options["entropy_cost"] == 0.5:
    raise ValueError("not that")
  class Sink:
    def write(self, line):
      pass
    def close(self):
      pass
  return Sink()
"""


ENGINES = {"here": [], "on Ray": ["--ray-address", "local"]}


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_a_failed_trial_does_not_end_the_others(engine, started, tmp_path):
  (tmp_path / "own_sink.py").write_text(_SINK)
  words = "--search entropy_cost=0.5|0.02 --method grid --scheduler none"
  words += " --total-steps 3000 --final-seeds 1"
  words = [*words.split(), *ENGINES[engine]]
  program = started("ppo --sink own_sink:make", *words)
  output, progress = program.communicate()
  assert program.returncode == 1, progress
  (good, bad) = rows(output)
  assert good[:2] == ["001", "0.02"] and good[-1] == "done"
  assert bad[:3] == ["000", "0.5", "-"]
  assert "--sink own_sink:make raises" in bad[-1]
  assert "best: entropy_cost=0.02: mean return" in output


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_ends_all_trials_with_checkpoints(engine, started, tmp_path):
  steps = ["--total-steps", "100000000", "--trials", "2"]
  program = started("ppo", "--search", SEARCH, *steps, *ENGINES[engine])
  folders = [tmp_path / "run" / "trials" / f"00{k}" for k in range(2)]
  running.wait_until(
    lambda: (
      program.poll() is not None
      or all((x / "metrics.jsonl").exists() for x in folders)
    )
  )
  program.send_signal(signal.SIGINT)
  output, progress = program.communicate()
  assert program.returncode == 130, progress
  assert len(rows(output)) == 2
  for folder in folders:
    assert os.listdir(folder / "checkpoints")
  running.wait_until(lambda: not left_behind(tmp_path))


@pytest.mark.slow
def test_a_sweep_that_was_stopped_is_continued(started, tmp_path, capfd):
  run = tmp_path / "run"
  lines = run / "trials/001/metrics.jsonl"
  small = "a2c --hidden-sizes 8 --num-envs 4 --log-seconds 0"
  words = [small, "--search", "learning_rate=log:1e-4..1e-2", "--method", "tpe"]
  words += ["--scheduler", "none", "--trials", "2", "--final-seeds", "0"]
  words += ["--trial-cpus", "64", "--total-steps", "20000"]  # One at a time.
  program = started(*words)
  running.wait_until(lambda: program.poll() is not None or lines.exists())
  program.send_signal(signal.SIGINT)
  output, progress = program.communicate()
  assert program.returncode == 130, progress
  assert {x[-1] for x in rows(output)} == {"done", "ended early"}
  draws = (run / "draws.jsonl").read_text().splitlines()
  first = (run / "trials/000/metrics.jsonl").read_bytes()
  past = metrics.read_lines(lines)
  words += ["--run-dir", str(run), "--resume"]
  with pytest.raises(SystemExit):
    sweep.main([*words, "--total-steps", "30000"])
  assert "another value of --total-steps" in capfd.readouterr().err
  assert sweep.main(words) == 0
  table = rows(capfd.readouterr().out)
  assert sorted(x[0] for x in table) == ["000", "001"]
  assert (run / "draws.jsonl").read_text().splitlines()[: len(draws)] == draws
  assert (run / "trials/000/metrics.jsonl").read_bytes() == first
  now = metrics.read_lines(lines)
  assert now[: len(past)] == past  # Nothing was trained again.
  assert past[-1]["env_steps"] < 20_000 <= now[-1]["env_steps"]
  ended = map(json.loads, (run / "ended.jsonl").read_text().splitlines())
  assert sorted(x["name"] for x in ended) == [f"trials/00{k}" for k in range(2)]


def left_behind(folder):
  """Returns the processes that a sweep started and that still run."""
  processes = []
  for process in psutil.process_iter():
    with contextlib.suppress(psutil.Error):
      if str(folder) in process.environ().get("PYTHONPATH", ""):
        processes.append(process)
  return processes


@pytest.mark.slow
def test_no_other_machine_can_reach_a_sweep_of_one_machine(
  started, tmp_path, monkeypatch
):
  """Ray and trials listen on 127.0.0.1 only, and no file has Ray's token."""
  with_ray.needed()
  monkeypatch.setenv("HOME", str(tmp_path))
  steps = ["--total-steps", "100000000", "--trials", "1"]
  steps += ["--ray-address", "local"]
  program = started("ppo", "--search", SEARCH, *steps)
  trial_lines = tmp_path / "run" / "trials" / "000" / "metrics.jsonl"
  running.wait_until(lambda: program.poll() is not None or trial_lines.exists())
  assert program.poll() is None, program.communicate()
  processes = [psutil.Process(program.pid)]
  processes += processes[0].children(recursive=True)
  tokens, listening = set(), {}
  for process in processes:
    with contextlib.suppress(psutil.Error):
      name = process.name()
      if name in ("gcs_server", "raylet"):
        tokens.add(process.environ().get("RAY_AUTH_TOKEN"))
      for socket in process.net_connections("inet"):
        if socket.status == psutil.CONN_LISTEN:
          address = ipaddress.ip_address(socket.laddr.ip)
          address = getattr(address, "ipv4_mapped", None) or address
          listening[name, socket.laddr.port] = address
  assert {"gcs_server", "raylet"} <= {name for name, _ in listening}
  assert all(x.is_loopback for x in listening.values()), listening
  (token,) = tokens
  assert len(token) == 64 and not (tmp_path / ".ray").exists()
