"""Sweeps: what they refuse, and whole ones."""

import contextlib
import importlib
import ipaddress
import json
import os
import re
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from seedx import metrics
from seedx.app.studies import sweep, trials
from seedx.launch import ray_cluster
from tests import programs, running, with_ray

compiled_once = programs.compiled_once

SEARCH = "learning_rate=log:1e-4..1e-2,entropy_cost=0.001|0.01"


def trial(**changes):
  words = "--total-steps 400 --hidden-sizes 8 --num-envs 4 --unroll-length 5"
  words = [*words.split(), "--log-seconds", "0"]
  asked = {"name": "a", "values": {}, "seed": 0, "words": words, **changes}
  return trials.Trial(experiment="a2c", **asked)


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["nothing", "--search", SEARCH], "expected EXPERIMENT of a2c"),
    (["ppo"], "found nothing"),
    (["ppo", "--search", "seed=1|2"], "found seed"),
    (["ppo", "--search", "total_steps=1|2"], "found total_steps"),
    (["ppo", "--search", SEARCH, "--method", "grid"], "A|B with method grid"),
    (["ppo", "--search", SEARCH, "--trials", "0"], "expected --trials"),
    (["ppo", "--search", "discount=0.5|1.5"], "expected --discount"),
    (["ppo --no-such 3", "--search", SEARCH], "unrecognized arguments"),
    (["ppo --seed 3", "--search", SEARCH], "found --seed"),
    (["impala --role actor", "--search", SEARCH], "found --role"),
    (["ppo --help", "--search", SEARCH], "expected no --help"),
  ],
)
def test_what_is_refused(words, message, capfd, tmp_path, monkeypatch):
  """Before Ray starts, and before a directory is made."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(ray_cluster, "ray", None)
  with pytest.raises(SystemExit) as caught:
    sweep.main(words)
  assert caught.value.code == 2
  assert message in capfd.readouterr().err
  assert not os.listdir(tmp_path)


def test_the_directory_of_a_run_is_left_alone(tmp_path, capfd):
  (tmp_path / "config.json").write_text("{}")
  with pytest.raises(SystemExit):
    sweep.main(["ppo", "--search", SEARCH, "--run-dir", str(tmp_path)])
  assert "a directory without config.json, which" in capfd.readouterr().err
  assert (tmp_path / "config.json").read_text() == "{}"


def test_without_ray_it_says_what_to_install(capfd, monkeypatch):
  real = importlib.import_module

  def imported(name, *package):
    if name == "ray":
      raise ImportError(f"No module named {name!r}")
    return real(name, *package)

  monkeypatch.setattr(ray_cluster.importlib, "import_module", imported)
  with pytest.raises(SystemExit):
    sweep.main(["ppo", "--search", SEARCH])
  assert 'pip install "seedx[ray]"' in capfd.readouterr().err


def test_values_are_options():
  values = {"learning_rate": "0.1", "rescale": "False", "dueling": "true"}
  assert trials.options(values) == [
    "--learning-rate",
    "0.1",
    "--no-rescale",
    "--dueling",
  ]


def test_a_trial_says_what_it_reaches(tmp_path):
  """In its own directory, with its values and its seed."""
  values = {"learning_rate": "0.0123"}
  training = trials.Training(trial(values=values, seed=3), tmp_path)
  said = [training.step()]
  while not said[-1]["done"]:
    said.append(training.step())
  steps = [x["env_steps"] for x in said]
  assert steps == sorted(steps) and steps[-1] >= 400
  last = metrics.read_lines(tmp_path / "a" / "metrics.jsonl")[-1]
  assert last["env_steps"] == steps[-1]
  assert last["episode_return"] == said[-1]["episode_return"]
  assert said[-1]["error"] == ""
  config = json.loads((tmp_path / "a" / "config.json").read_text())
  assert config["options"]["learning_rate"] == 0.0123
  assert config["options"]["seed"] == 3


def test_a_trial_that_is_ended_has_a_checkpoint(tmp_path):
  endless = [*trial().words, "--total-steps", "100000000"]
  training = trials.Training(trial(words=endless), tmp_path)
  training.step()
  training.end()
  assert os.listdir(tmp_path / "a" / "checkpoints")


def test_a_trial_says_what_it_dies_of(tmp_path):
  (tmp_path / "a").touch()
  training = trials.Training(trial(), tmp_path)
  said = training.step()
  assert said["done"]
  assert "ConfigError cannot write in the directory" in said["error"]


@pytest.mark.parametrize(
  ("text", "cause"),
  [
    ("Traceback\n  File\nValueError: no\n\n", "ValueError: no"),
    (
      "\x1b[36mRayError\x1b[39m: its node died\n\x1b[0m\n",
      "RayError: its node died",
    ),
    ("", "its process died"),
    ("\x1b[0m\n---\n", "its process died"),
  ],
)
def test_the_cause_is_the_last_line_that_says_something(text, cause):
  assert trials.cause(text) == cause


class Pool:
  """Trains nothing, and writes what trials would have reached."""

  def __init__(self, run_dir, failed):
    self.run_dir, self.stop, self._failed = run_dir, threading.Event(), failed

  def train(self, asked, asha_steps=None):
    del asha_steps
    for k, x in enumerate(asked):
      folder = self.run_dir / x.name
      folder.mkdir(parents=True)
      line = {"env_steps": 400, "wall_seconds": 1.0, "episode_return": float(k)}
      (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    named = {x.name for x in asked}
    return {k: f"failed: {x}" for k, x in self._failed.items() if k in named}


def searched(tmp_path, failed):
  options = sweep.Options(experiment="ppo", trials=2, seeds=3, total_steps=400)
  values = [{"learning_rate": "0.1"}, {"learning_rate": "0.2"}]
  words = ["--total-steps", "400"]
  pool = Pool(tmp_path, failed)
  return sweep._search(options, "ppo", words, values, "CartPole-v1", pool)


def test_where_all_trials_fail_none_is_the_best(tmp_path, capsys):
  failed = {"trials/000": "no memory", "trials/001": "no disk"}
  assert searched(tmp_path, failed) == 1
  said = capsys.readouterr().out
  assert "all trials failed" in said and "best" not in said
  assert "failed: no memory" in said and "failed: no disk" in said
  assert not (tmp_path / "best").exists()


def test_a_run_of_the_best_that_fails_is_no_result(tmp_path, capsys):
  failed = {"trials/001": "no disk", "best/2": "no memory"}
  assert searched(tmp_path, failed) == 1
  *_, default, best, why, _ = capsys.readouterr().out.splitlines()
  assert (
    default.startswith("default: mean return 1.0") and "0.0 1.0 2.0" in default
  )
  # The trial that failed is not the best, though its return is higher.
  assert best.startswith("best: learning_rate=0.1: mean return 4.0")
  assert why == "best: learning_rate=0.1: best/2 failed: no memory"
  assert (tmp_path / "sweep.png").stat().st_size > 1000


@pytest.fixture
def started(tmp_path):
  """Starts a sweep as a program; all of Ray has ended at the end."""
  with_ray.needed()
  begun = []

  def start(*words):
    program = [sys.executable, "-m", "experiments.sweep", *words]
    path = os.pathsep.join([str(tmp_path), str(programs.ROOT)])
    begun.append(
      subprocess.Popen(
        [*program, "--run-dir", str(tmp_path / "run")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, **with_ray.AS_OTHERS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
      )
    )
    return begun[-1]

  yield start
  for program in begun:
    program.kill()
    program.wait()


def rows(table):
  return [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in table.splitlines()
    if line.startswith("| 0")
  ]


@pytest.mark.long
def test_a_sweep_of_eight_trials(started, tmp_path):
  sizes = ["--total-steps", "16000", "--seeds", "1", "--trials", "8"]
  program = started("ppo", "--search", SEARCH, *sizes)
  said, progress = program.communicate()
  assert program.returncode == 0, progress
  run = tmp_path / "run"
  found = rows((run / "sweep.md").read_text())
  assert found == rows(said)
  assert sorted(x[0] for x in found) == [f"{k:03d}" for k in range(8)]
  for name, rate, cost, reached, steps, _, end in found:
    options = json.loads((run / "trials" / name / "config.json").read_text())
    assert options["options"]["learning_rate"] == float(rate)
    assert options["options"]["entropy_cost"] == float(cost)
    last = metrics.read_lines(run / "trials" / name / "metrics.jsonl")[-1]
    assert f"{last['episode_return']:.1f}" == reached
    assert f"{last['env_steps']:,}" == steps
    assert end == ("done" if last["env_steps"] >= 16_000 else "ended early")
  reached = [float(x[3]) for x in found]
  assert reached == sorted(reached, reverse=True)
  assert "ended early" in {x[6] for x in found}  # By ASHA.
  assert len(re.findall(r"^\d/8 trials/", progress, re.MULTILINE)) == 8
  assert re.search(r"^default: mean return .* with seeds 1 to 1$", said, re.M)
  best = found[0]
  words = f"best: learning_rate={best[1]} entropy_cost={best[2]}: mean return"
  assert words in said
  again = json.loads((run / "best" / "1" / "config.json").read_text())
  assert again["options"]["learning_rate"] == float(best[1])
  assert (run / "sweep.png").read_bytes().startswith(b"\x89PNG")
  assert not (run / "tune").exists()


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


@pytest.mark.long
def test_a_trial_that_fails_ends_no_other(started, tmp_path):
  (tmp_path / "own_sink.py").write_text(_SINK)
  words = "--search entropy_cost=0.5|0.02 --method grid --scheduler none"
  words += " --total-steps 3000 --seeds 1"
  program = started(
    "ppo --sink own_sink:make",
    *words.split(),
  )
  said, progress = program.communicate()
  assert program.returncode == 1, progress
  (good, bad) = rows(said)
  assert good[:2] == ["001", "0.02"] and good[-1] == "done"
  assert bad[:3] == ["000", "0.5", "-"]
  assert "failed: ConfigError --sink own_sink:make raises" in bad[-1]
  assert "best: entropy_cost=0.02: mean return" in said


@pytest.mark.long
def test_ctrl_c_ends_all_trials_with_checkpoints(started, tmp_path):
  steps = ["--total-steps", "100000000", "--trials", "2"]
  program = started("ppo", "--search", SEARCH, *steps)
  first = [tmp_path / "run" / "trials" / f"00{k}" for k in range(2)]
  running.wait_until(
    lambda: (
      program.poll() is not None
      or all((x / "metrics.jsonl").exists() for x in first)
    )
  )
  program.send_signal(signal.SIGINT)
  said, progress = program.communicate()
  assert program.returncode == 130, progress
  assert len(rows(said)) == 2
  for run_dir in first:
    assert os.listdir(run_dir / "checkpoints")
  running.wait_until(lambda: not left(tmp_path))


def left(folder):
  """Processes that a sweep has started, and not ended."""
  found = []
  for process in psutil.process_iter():
    with contextlib.suppress(psutil.Error):
      if str(folder) in process.environ().get("PYTHONPATH", ""):
        found.append(process)
  return found


@pytest.mark.slow
def test_no_other_machine_reaches_a_sweep_of_one_machine(
  started, tmp_path, monkeypatch
):
  """Ray and trials listen on 127.0.0.1; their token is in no file."""
  monkeypatch.setenv("HOME", str(tmp_path))
  steps = ["--total-steps", "100000000", "--trials", "1"]
  program = started("ppo", "--search", SEARCH, *steps)
  trial_lines = tmp_path / "run" / "trials" / "000" / "metrics.jsonl"
  running.wait_until(lambda: program.poll() is not None or trial_lines.exists())
  assert program.poll() is None, program.communicate()
  everyone = [psutil.Process(program.pid)]
  everyone += everyone[0].children(recursive=True)
  tokens, listening = set(), {}
  for process in everyone:
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
