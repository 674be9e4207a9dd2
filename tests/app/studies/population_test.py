"""Populations of runs: simulated members, and whole programs with kills."""

import collections
import contextlib
import itertools
import json
import os
import threading

import numpy as np
import psutil
import pytest

from seedx import checkpoint, metrics, search_spaces
from seedx.app import lineage
from seedx.app.runs import (
  checkpointer,
  records,
  run_folders,
  saved_agents,
)
from seedx.app.studies import pool, population
from tests import programs, running

started = programs.started
RATES = search_spaces.Range(0.1, 10.0, log=False, whole=False)
TOTAL, READY = 120, 30


def state(steps, rate, params=0.0):
  """Returns the state of a run as a checkpoint has it."""
  return {
    "agent": {
      "hyperparameters": {"learning_rate": np.float32(rate)},
      "params": np.full(2, params),
      "resets": np.float32(steps / 4),
      "updates": np.int32(steps),
    },
    "acted": {"env_steps": np.int64(steps)},
  }


def save(run_dir, steps, rate, params=0.0, score=0.0):
  record = records.Record(
    experiment="experiments.a2c",
    pipeline="",
    agent="",
    seedx="",
    format=records.FORMAT,
    options={"learning_rate": rate, "seed": 3},
  )
  run_dir.mkdir(parents=True, exist_ok=True)
  records.write(run_dir, record)
  items = {
    checkpointer.RUN: state(steps, rate, params),
    checkpointer.ACTING: {"params": np.full(2, params)},
  }
  checkpoints = checkpoint.Checkpoints(checkpointer.directory(run_dir), keep=2)
  checkpoints.save(steps, items, score)


def newest(run_dir):
  """Returns the steps and the arrays of a run's newest checkpoint."""
  checkpoints = checkpoint.Checkpoints(checkpointer.directory(run_dir))
  steps = checkpoints.steps()[-1]
  return steps, checkpoints.restore(steps, checkpointer.RUN)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
  """Members that die start again without a wait."""
  monkeypatch.setattr(population, "_RESTART_SECONDS", 0.0)


class Runs:
  """Simulated trials: each step adds the learning rate to the parameters.

  The parameters are the return. `deaths` has, by member, the steps at which its
  process dies, and `diverging` members without a return.
  """

  def __init__(self, folder, **options):
    self.folder, self.stop = folder, threading.Event()
    self.deaths = {}
    self.diverging, self.starts, self.active = set(), [], set()
    self.largest, self.spread, self.steps = 0, 0, collections.Counter()
    words = {"learning_rate": "0.1..10"}
    self.options = population.Options(
      experiment="a2c",
      search=words,
      total_steps=TOTAL,
      **{"members": 4, "ready_steps": READY, **options},
    )

  def train(self, places):
    return self.make(places).train()

  def make(self, places=4):
    spaces = {"learning_rate": RATES}
    trained = pool.Pool(self.folder, self.stop, places, start=self.start)
    return population._Population(self.options, ["a2c"], spaces, trained)

  def start(self, trial, run_dir):
    self.starts.append(trial)
    return Run(self, trial, run_dir / trial.name)

  def others_have_ended(self):
    """Returns whether all members have ended but those that die."""
    others = {*range(self.options.members)} - {*self.deaths}
    return all(self.steps[k] == TOTAL for k in others)

  def lines(self):
    return programs.lines_of(self.folder / "lineage.jsonl")

  def run_dir(self, k):
    return self.folder / f"members/{k:03d}"


class Run:
  """A simulated trial; see `pool.Job`."""

  def __init__(self, runs, trial, run_dir):
    self.runs, self.run_dir, self.name = runs, run_dir, trial.name
    self.k = int(run_dir.name)
    self.rate = float(trial.words[trial.words.index("--learning-rate") + 1])
    self.at, self.params, self.died = 0, 0.0, False
    if checkpointer.directory(run_dir).has("."):
      self.at, arrays = newest(run_dir)
      self.params = arrays["agent/params"][0]
      assert arrays["agent/hyperparameters/learning_rate"] == pytest.approx(
        self.rate
      )
      assert records.read(run_dir).options["learning_rate"] == self.rate
    assert self.k not in runs.active
    runs.active.add(self.k)
    runs.largest = max(runs.largest, len(runs.active))

  def lines(self, stop):
    deaths = self.runs.deaths.get(self.k, [])
    while self.at < TOTAL and not stop.is_set():
      self.at += 10
      self.params += self.rate
      self.runs.steps[self.k] = self.at
      seen = [self.runs.steps[k] for k in range(self.runs.options.members)]
      self.runs.spread = max(self.runs.spread, max(seen) - min(seen))
      if self.at in deaths:
        running.wait_until(self.runs.others_have_ended)
        deaths.remove(self.at)
        self.died = True
        return
      self.save()
      score = None if self.k in self.runs.diverging else float(self.params)
      yield {"env_steps": self.at, "episode_return": score}

  def save(self):
    save(self.run_dir, self.at, self.rate, self.params, self.params)

  def end(self):
    self.runs.active.discard(self.k)

  def error(self):
    return "it was killed" if self.died else ""


@pytest.mark.parametrize("places", [1, 2, 4, 9])
def test_members_copy_better_ones_keep_their_counts_and_take_turns(
  places, tmp_path, capfd
):
  runs = Runs(tmp_path)
  assert runs.train(places) == 0
  lines = runs.lines()
  copies = [x for x in lines if x["parent"] is not None]
  assert copies
  first = {x["member"]: x["values"] for x in lines if not x["steps"]}
  rates = {k: x["learning_rate"] for k, x in first.items()}
  assert len({*rates.values()}) == 4
  for k in range(4):
    steps, arrays = newest(runs.run_dir(k))
    assert steps == arrays["agent/updates"] == TOTAL
    assert arrays["agent/resets"] == TOTAL / 4
    ends = [x for x in lines if x["member"] == k and x["steps"] == TOTAL]
    assert len(ends) == 1 and ends[0]["parent"] is None
  assert runs.largest <= places
  if places < 4:
    assert runs.spread <= 2 * READY
  else:  # Only members that change start again.
    changed = collections.Counter(x["member"] for x in copies)
    for k in range(4):
      starts = sum(x.name == f"members/{k:03d}" for x in runs.starts)
      assert starts == 1 + changed[k]
  assert {x.name: x.seed for x in runs.starts} == {
    f"members/{k:03d}": k for k in range(4)
  }
  assert "best member: episode_return" in capfd.readouterr().out
  picture = (tmp_path / "population.png").read_bytes()
  assert picture.startswith(b"\x89PNG")


def test_a_copy_is_the_winners_agent_with_the_losers_counts(tmp_path):
  winner, loser = tmp_path / "winner", tmp_path / "loser"
  save(winner, 70, rate=2.0, params=7.0, score=9.0)
  save(loser, 30, rate=1.0, params=1.0, score=-1.0)
  saved_agents.copy(loser, winner, {"learning_rate": 1.6})
  steps, arrays = newest(loser)
  assert steps == arrays["acted/env_steps"] == arrays["agent/updates"] == 30
  assert arrays["agent/resets"] == 30 / 4
  assert (arrays["agent/params"] == 7).all()
  assert arrays["agent/hyperparameters/learning_rate"] == np.float32(1.6)
  checkpoints = checkpoint.Checkpoints(checkpointer.directory(loser))
  assert (checkpoints.restore(30, "acting")["params"] == 7).all()
  assert checkpoints.score(30) == 9
  options = records.read(loser).options
  assert options == {"learning_rate": 1.6, "seed": 3}
  before, after = newest(winner), newest(winner)
  assert before[0] == after[0] == 70 and (after[1]["agent/params"] == 7).all()
  saved_agents.copy(loser, loser, {"learning_rate": 0.5})
  assert (newest(loser)[1]["agent/params"] == 7).all()
  assert records.read(loser).options["learning_rate"] == 0.5


def test_a_winner_may_delete_the_checkpoint_that_is_copied(
  tmp_path, monkeypatch
):
  winner, loser = tmp_path / "winner", tmp_path / "loser"
  save(winner, 10, rate=2.0, params=1.0)
  save(loser, 30, rate=1.0)
  real = checkpointer.arrays

  def arrays(checkpoints, steps, item):
    if steps == 10:  # The winner trains on while its checkpoint is read.
      save(winner, 20, rate=2.0, params=2.0)
      checkpoints.directory.remove_folder("10")
    return real(checkpoints, steps, item)

  monkeypatch.setattr(checkpointer, "arrays", arrays)
  saved_agents.copy(loser, winner, {})
  steps, copied = newest(loser)
  assert steps == 30 and (copied["agent/params"] == 2).all()


def test_a_member_that_dies_once_continues_and_then_counts_as_the_worst(
  tmp_path,
):
  runs = Runs(tmp_path, ready_steps=10 * TOTAL)
  rates = [float(x.values["learning_rate"]) for x in runs.make()._members]
  best = int(np.argmax(rates))
  runs.deaths = {best: [50, 80, 110]}
  assert runs.train(4) == 1
  lines = [x for x in runs.lines() if x["member"] == best]
  # It continues at 40 as it was, copies at 70, and ends as it was at 100.
  assert [x["steps"] for x in lines] == [0, 70, 100]
  assert lines[1]["parent"] not in (None, best)
  others = [k for k in range(4) if k != best]
  assert [newest(runs.run_dir(k))[0] for k in others] == [TOTAL] * 3


def test_a_member_with_a_checkpoint_of_no_steps_can_change(tmp_path):
  runs = Runs(tmp_path)
  for k in range(2):
    save(runs.run_dir(k), 0, rate=k + 1.0, params=float(k))
  made = runs.make()
  first, second = made._members[:2]
  first.change = second, {"learning_rate": "1.5"}
  assert made.prepare(first.trial).words[-1] == "1.5"
  assert records.read(runs.run_dir(0)).options["learning_rate"] == 1.5
  assert (newest(runs.run_dir(0))[1]["agent/params"] == 1).all()


def test_a_member_without_a_return_ranks_last(tmp_path):
  runs = Runs(tmp_path)
  runs.diverging = {2}
  assert runs.train(4) == 0
  copies = [x for x in runs.lines() if x["parent"] is not None]
  assert {x["member"] for x in copies if x["steps"] == READY} >= {2}
  assert not [x for x in copies if x["parent"] == 2]


def test_a_population_that_was_killed_makes_its_last_change_again(tmp_path):
  runs = Runs(tmp_path)
  for k in range(4):
    save(runs.run_dir(k), READY, rate=k + 1.0, params=float(k))
  record = pool.Record(tmp_path, "lineage.jsonl")
  for k in range(4):
    values = {"learning_rate": k + 1.0}
    record.add({"steps": 0, "member": k, "parent": None, "values": values})
  values = {"learning_rate": 4.8}
  change = {"steps": READY, "member": 0, "parent": 3, "values": values}
  record.add(change)  # Killed before the checkpoint was replaced.
  made = runs.make()
  members = made._members
  assert [x.change is not None for x in members] == [True, False, False, False]
  made.prepare(members[0].trial)
  assert runs.lines()[-1] == change and len(runs.lines()) == 6
  steps, arrays = newest(runs.run_dir(0))
  assert steps == READY and (arrays["agent/params"] == 3).all()
  trial = made.prepare(members[1].trial)
  assert [*trial.words[-2:]] == ["--learning-rate", "2"] and trial.resumes
  assert runs.train(2) == 0
  assert [newest(runs.run_dir(k))[0] for k in range(4)] == [TOTAL] * 4
  assert runs.train(2) == 0  # Nothing is left to do.


def test_a_member_starts_when_its_last_process_has_left(tmp_path):
  runs = Runs(tmp_path)
  made = runs.make()
  trial = made._members[0].trial
  runs.run_dir(0).mkdir(parents=True)
  prepared = threading.Event()
  with run_folders.claimed(runs.run_dir(0)):
    thread = threading.Thread(
      target=lambda: (made.prepare(trial), prepared.set())
    )
    thread.start()
    assert not prepared.wait(0.5)
  assert prepared.wait(30)
  thread.join()


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["a2c"], "found none"),
    (["a2c", "--search", "hidden_sizes=8|16"], "found hidden_sizes"),
    (["a2c", "--search", "unroll_length=8..16"], "found unroll_length"),
    (["a2c", "--search", "td_lambda=0.5..2"], "expected td_lambda from"),
    (["a2c", "--search", "td_lambda=0..1", "--members", "1"], "--members"),
    (["a2c --seed 1", "--search", "td_lambda=0..1"], "study reserves"),
  ],
)
def test_wrong_options_are_refused(
  words, message, capfd, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  assert message in programs.refused(population, words, capfd)
  assert not os.listdir(tmp_path)


def test_copies_and_schedules_are_read_from_the_lines_of_a_population(tmp_path):
  line = {"env_steps": 10, "wall_seconds": 1.0, "episode_return": 0.0}
  text = ""
  for steps, parents, rates in ((10, (0, 1), (1, 2)), (20, (1, 1), (3, 2))):
    line["env_steps"] = steps
    for k in (0, 1):
      line[f"member_{k}_parent"] = parents[k]
      line[f"member_{k}_learning_rate"] = rates[k]
    text += json.dumps(line) + "\n"
  (tmp_path / "metrics.jsonl").write_text(text)
  changes = [tuple(x) for together in lineage.read(tmp_path) for x in together]
  assert changes == [
    (10, 0, None, {"learning_rate": 1}),
    (10, 1, None, {"learning_rate": 2}),
    (20, 0, 1, {"learning_rate": 3}),
    (20, 1, None, {"learning_rate": 2}),
  ]


WORDS = [
  "a2c --num-envs 4 --hidden-sizes 8 --checkpoint-every-seconds 0.2",
  "--search",
  "learning_rate=log:1e-5..1e-1",
  "--ready-steps",
  "10000",
  "--env",
  "CartPole-v1",
]


def process_of(run_dir, program):
  """Waits for a member's process, and returns it."""
  processes = []

  def is_there():
    assert program.poll() is None, program.communicate()
    with contextlib.suppress(psutil.Error):
      processes[:] = [
        x
        for x in psutil.Process(program.pid).children()
        if str(run_dir) in x.cmdline()
      ]
    return processes

  running.wait_until(is_there)
  return processes[0]


@pytest.mark.slow
def test_kills_of_a_member_and_of_the_program_cost_only_the_last_steps(
  started, tmp_path
):
  words = [*WORDS, "--members", "2", "--trial-cpus", "0.5"]
  words += ["--total-steps", "30000"]
  program = started(*words, study="population")
  run, member = tmp_path / "run", tmp_path / "run/members/001"
  process = process_of(member, program)
  running.wait_until(lambda: programs.steps_of(member))
  process.kill()
  process.wait(60)  # Until then, it would be seen as the next one.
  kept = programs.steps_of(member)[-1]
  again = process_of(member, program)
  running.wait_until(lambda: programs.steps_of(member)[-1] > kept)
  program.kill()
  program.wait()
  # The members end by themselves, each with a checkpoint.
  running.wait_until(lambda: not again.is_running())
  before = {x: programs.steps_of(x)[-1] for x in (run / "members").iterdir()}
  lines = programs.lines_of(run / "lineage.jsonl")
  program = started(*words, "--resume", study="population")
  output, progress = program.communicate()
  assert program.returncode == 0, progress
  assert "best member: episode_return" in output
  now = programs.lines_of(run / "lineage.jsonl")
  assert now[: len(lines)] == lines
  assert sum(x["steps"] >= 30_000 for x in now) == 2
  for folder, steps in before.items():
    taken = [
      x["env_steps"] for x in metrics.read_lines(folder / "metrics.jsonl")
    ]
    resumed = [b for a, b in itertools.pairwise(taken) if b < a]
    assert taken[-1] >= 30_000 and all(x >= kept for x in resumed)
    assert steps <= taken[-1]


@pytest.mark.slow
def test_a_population_of_two_apex_runs_with_actors_trains_to_its_end(
  started, tmp_path
):
  experiment = (
    "apex_dqn --num-actors 1 --envs-per-actor 4 --hidden-sizes 16"
    " --replay-min-steps 500 --checkpoint-every-seconds 0.2 --log-seconds 0.1"
  )
  words = [experiment, *WORDS[1:], "--members", "2", "--trial-cpus", "0.5"]
  words += ["--ready-steps", "4000", "--total-steps", "9000"]
  program = started(*words, study="population")
  _, progress = program.communicate()
  assert program.returncode == 0, progress
  run = tmp_path / "run"
  lines = programs.lines_of(run / "lineage.jsonl")
  assert sorted(x["member"] for x in lines if x["steps"] >= 9_000) == [0, 1]
  copies = [x for x in lines if x["parent"] is not None]
  assert copies
  for k in (0, 1):
    options = records.read(run / f"members/00{k}").options
    last = [x for x in lines if x["member"] == k][-1]["values"]
    assert options["learning_rate"] == last["learning_rate"]
    _, arrays = newest(run / f"members/00{k}")
    rate = arrays["agent/hyperparameters/learning_rate"]
    assert rate == np.float32(last["learning_rate"])
