"""Runs that resume from a checkpoint: what is restored, and what is new."""

import dataclasses
import json
import pathlib
import shutil
import time

import chex
import jax
import numpy as np
import pytest

from experiments import a2c, dqn, ppo
from seedx import app, checkpoint, envs, files, metrics, types, wire
from seedx.agents import base
from seedx.app import policies
from seedx.app.runs import checkpointer, run_folders
from seedx.launch import instances
from seedx.learning import replay_source
from seedx.runtime import seeding
from tests import conftest, programs, running
from tests.app import cases
from tests.pipelines import cells

own_signals = programs.own_signals
compiled_once = programs.compiled_once
# Pipelines with different parts. IMPALA has those of SEED, as Ape-X has.
CELLS = [
  ("sync", "a2c"),
  ("seed", "a2c"),
  ("pool", "a2c"),
  ("a3c", "a2c"),
  ("gorila", "dqn"),
  ("sync", "sac"),
]
STEPS = cells.TOTAL_STEPS


class Seeds:
  """Records of made environments.

  Attributes:
    used: their seeds.
    env_steps: env steps of the run when they were made, for each call.
  """

  def __init__(self, monkeypatch):
    self.used, self.env_steps, make = [], [], envs.make

    def spy(env, num_envs, *, seed=0, **rest):
      self.used += range(seed, seed + num_envs)
      assert env.env_options.pop("env_steps") == self.env_steps[-1]
      return make(env, num_envs, seed=seed, **rest)

    def at(env, env_steps):
      self.env_steps.append(env_steps)
      options = env.env_options | {"env_steps": env_steps}
      return dataclasses.replace(env, env_options=options)

    monkeypatch.setattr(envs, "make", spy)
    monkeypatch.setattr(envs, "at", at)


@dataclasses.dataclass
class Saved:
  """A run that has ended: its state, its last line, and its checkpoint."""

  pipeline: str
  name: str
  nest: types.Tree
  last: dict
  seeds: list
  checkpoints: checkpoint.Checkpoints

  def load(self, like):
    return self.checkpoints.restore(self.last["env_steps"], "run", like)


@pytest.fixture(
  scope="module",
  params=conftest.slow_but([(CELLS[0],)], [(cell,) for cell in CELLS]),
  ids="-".join,
)
def saved(request, tmp_path_factory):
  """Runs each pipeline, and saves a checkpoint at its end."""
  pipeline, name = request.param
  folder, nests = tmp_path_factory.mktemp("a"), []
  with pytest.MonkeyPatch.context() as monkeypatch:
    seeds = Seeds(monkeypatch)
    made = cells.make(pipeline, name, folder)
    last = cells.run_all(
      made, lambda: nests.append(running.copied(made.process.saved()))
    )
  checkpoints = checkpoint.Checkpoints(tmp_path_factory.mktemp("checkpoints"))
  checkpoints.save(last["env_steps"], {"run": nests[0]}, 0.0)
  return Saved(pipeline, name, nests[0], last, seeds.used, checkpoints)


def make(saved, tmp_path, total_steps=2 * STEPS):
  return cells.make(saved.pipeline, saved.name, tmp_path, total_steps)


def test_all_parts_are_restored(saved, tmp_path):
  started = time.monotonic()
  made = make(saved, tmp_path)
  # `gorila_test` has tests of the parameter servers' state.
  process = made.process
  if saved.pipeline == "gorila":
    parts = {k: x for k, x in process.parts.items() if k != "agent"}
    process = dataclasses.replace(process, parts=parts)
  fresh = running.copied(process.saved())
  assert isinstance(saved.nest["agent"], base.AgentState)
  made.process.restore(saved.load)
  restored = process.saved()
  expected = {name: saved.nest[name] for name in restored}
  # The clock has continued since the restore.
  acted = expected["acted"] = dict(expected["acted"])
  since = restored["acted"].pop("wall_seconds") - acted.pop("wall_seconds")
  assert 0 < since < time.monotonic() - started
  fresh["acted"].pop("wall_seconds")
  assert jax.tree.structure(restored) == jax.tree.structure(expected)
  chex.assert_trees_all_equal(restored, expected)
  for name, leaf in expected.items():
    if not jax.tree.leaves(leaf):
      continue  # Some pipelines have no other counts.
    pairs = zip(
      jax.tree.leaves(fresh[name]), jax.tree.leaves(leaf), strict=True
    )
    assert any(np.any(a != b) for a, b in pairs), name
  # The restored parameters compute the next actions.
  if saved.pipeline == "a3c":
    acting, version = made.process.parts["agent"].newest()
    chex.assert_trees_all_equal(acting.params, saved.nest["agent"].params)
  elif saved.pipeline != "gorila":
    acting, version = made.learner.newest()
    chex.assert_trees_all_equal(acting, made.process.policy(saved.nest))
  assert saved.pipeline == "gorila" or version == saved.last["learner_steps"]


def test_the_acting_parameters_are_those_of_the_state(saved, tmp_path):
  made = make(saved, tmp_path)
  acting, nest = made.process.policy(saved.nest), saved.nest
  agent = made.config.agent.make(envs.spec(made.config.env))
  like = jax.eval_shape(
    lambda key: agent.acting(agent.init(key)), jax.random.key(0)
  )
  shapes = [
    jax.tree.map(lambda x: (x.shape, np.dtype(x.dtype)), x)
    for x in (acting, like)
  ]
  assert shapes[0] == shapes[1]
  flat, _ = jax.flatten_util.ravel_pytree(nest["agent"].params)
  if saved.pipeline != "gorila":
    assert nest["agent"].updates == saved.last["learner_steps"]
  has_variables = saved.name in ("dqn", *cells.CRITICS)
  variables = acting.variables if has_variables else acting
  actual, _ = jax.flatten_util.ravel_pytree(variables.params)
  np.testing.assert_array_equal(actual, flat)


def test_a_restored_run_continues_its_counts_with_new_seeds(
  saved, tmp_path, monkeypatch
):
  made_seconds = time.monotonic()
  made = make(saved, tmp_path)
  started = time.monotonic()
  seeds = Seeds(monkeypatch)
  made.sink, times = running.Lines(), []
  write = made.sink.write
  made.sink.write = lambda line: (times.append(time.monotonic()), write(line))
  made.process.restore(
    lambda like: saved.load(like) | {"seeds": np.int64(1000)}
  )
  last = cells.run_all(made)
  last_saved = saved.last
  assert last_saved["env_steps"] >= STEPS
  lines = made.sink.lines
  for name in (
    "env_steps",
    "learner_steps",
    "episodes",
    "wall_seconds",
    "learned_steps",
    "env_frames",
  ):
    values = [last_saved[name], *(line[name] for line in lines)]
    # Equal if no update has ended between two lines.
    assert values == sorted(values), name
    assert values[-1] > values[0], name
  assert last["env_steps"] >= 2 * STEPS
  assert last["wall_seconds"] <= saved.nest["acted"]["wall_seconds"] + (
    time.monotonic() - made_seconds
  )
  # Env steps before the resume do not count in the first rate.
  first_steps = lines[0]["steps_per_second"] * (times[0] - started)
  assert first_steps <= lines[0]["env_steps"] - last_saved["env_steps"] + 30
  # All seeds are new, and differ from those of evaluations.
  assert max(saved.seeds) < saved.nest["seeds"] < 1000 <= min(seeds.used)
  assert len(set(seeds.used)) == len(seeds.used) > 0
  assert max(seeds.used) < seeding.evaluation_seed(0, 0)
  # New environments receive the env steps of the resumed run.
  assert min(seeds.env_steps) >= last_saved["env_steps"]


@pytest.mark.slow
def test_a_run_that_resumes_twice_is_bitwise_equal(tmp_path):
  """TD3's state has groups whose optimizers have skipped updates."""
  config = cells.config_of("sync", "td3", tmp_path)
  app.train(config, run_dir=str(tmp_path / "run"), quiet=True)
  longer, ends = dataclasses.replace(config, total_steps=2 * STEPS), []
  for name in ("one", "other"):
    shutil.copytree(tmp_path / "run", tmp_path / name)
    app.train(longer, resume=str(tmp_path / name), quiet=True)
    folder = checkpoint.Checkpoints(checkpointer.directory(tmp_path / name))
    assert len(folder.steps()) == 2
    step = folder.steps()[-1]
    ends.append({x: folder.restore(step, x) for x in ("run", "replay")})
  assert ends[0]["replay"] and len(ends[0]["run"]) > 10
  (clock,) = (x for x in ends[0]["run"] if "wall_seconds" in x)
  for end in ends:
    del end["run"][clock]
  chex.assert_trees_all_equal(*ends)


def test_a_checkpointer_saves_periodically_and_restores_the_newest_checkpoint(
  tmp_path, monkeypatch
):
  run = cases.Counting()
  kept = cases.Keeper(run, tmp_path, monkeypatch, 10)
  kept.check_after(9.9)
  assert programs.steps_of(tmp_path) == []
  for env_steps, score in ((10, []), (10, [5.0]), (10, [1.0, 1.0])):
    run.acted.add(env_steps, np.array(score), np.ones(len(score)))
    run.down = True
    kept.check_after(10.1)
    run.down = False
    kept.check_after(0)
    run.acted.add(1, np.array([]), np.array([]))
    kept.check_after(9.9)  # It is too early for another checkpoint.
  assert programs.steps_of(tmp_path) == [21, 32]
  checkpoints = checkpoint.Checkpoints(checkpointer.directory(tmp_path))
  # The scores are none, 5.0, and (5 + 1 + 1) / 3.
  assert checkpoints.ranked()[0] == 21
  acting = checkpoints.restore(32, checkpointer.ACTING, {"w": np.int64(0)})
  assert acting == {"w": 32}
  other = cases.Counting()
  cases.Keeper(other, tmp_path, monkeypatch).restore()
  assert other.acted.env_steps == 32
  assert other.acted.returns.count == 3
  run.down = True
  kept.finish(interrupted=True)
  with pytest.raises(wire.WireError):
    kept.finish(interrupted=False)
  run.down = False
  kept.finish(interrupted=True)
  assert programs.steps_of(tmp_path) == [21, 32, 33]


def test_a_run_that_would_stop_again_does_not_recommend_a_resume(
  tmp_path, monkeypatch
):
  run = cases.Counting()
  kept = cases.Keeper(run, tmp_path, monkeypatch)
  run.acted.add(7, np.array([]), np.array([]))
  resume = f"--resume {tmp_path} continues from checkpoint 7"
  assert kept.rescue(has_ended=True) == resume
  message = kept.rescue(has_ended=True, resumes=False)
  assert message.startswith(f"--init-from {tmp_path} begins a new run")


def test_evaluations_decide_which_checkpoint_is_the_best(tmp_path, monkeypatch):
  run, evaluation = cases.Counting(), cases.Evaluation()
  kept = cases.Keeper(run, tmp_path, monkeypatch, 100, evaluation)
  means = {10: 1.0, 20: 3.0, 30: 2.0}
  checkpoints = checkpoint.Checkpoints(checkpointer.directory(tmp_path))
  for env_steps in (10, 20, 30):
    # By the returns of training, the last checkpoint would be the best.
    left = env_steps - run.acted.env_steps
    run.acted.add(left, np.array([float(env_steps)]), np.ones(1))
    kept.check_after(1)
    assert evaluation.started[-1] == env_steps == run.acted.env_steps
    for _ in range(3):  # Three checkpoints before the evaluation ends.
      run.acted.add(1, np.array([]), np.array([]))
      kept.check_after(101)
    assert env_steps in checkpoints.steps()
    evaluation.means[env_steps] = means[env_steps]
    run.acted.add(6, np.array([]), np.array([]))
    kept.check_after(101)
  assert checkpoints.ranked()[0] == 20
  evaluation.means[checkpoints.steps()[-1]] = 4.0
  kept.finish(interrupted=False)
  assert checkpoints.ranked()[0] == checkpoints.steps()[-1]


def test_no_checkpoint_has_a_parameter_that_is_not_finite(
  tmp_path, monkeypatch
):
  run = cases.Counting()
  kept = cases.Keeper(run, tmp_path, monkeypatch, 10)
  kept.check_after(10)
  run.policy = lambda saved: {"w": np.array([1.0, np.inf], np.float32)}
  run.acted.add(10, np.array([]), np.array([]))
  with pytest.raises(RuntimeError, match=r"finite parameters .* in w"):
    kept.check_after(10)
  with pytest.raises(RuntimeError, match="finite parameters"):
    kept.finish(interrupted=False)
  assert programs.steps_of(tmp_path) == [0]


def test_a_checkpointer_without_a_period_saves_at_the_end_only(
  tmp_path, monkeypatch
):
  kept = cases.Keeper(cases.Counting(), tmp_path, monkeypatch)
  kept.check_after(1e9)
  assert programs.steps_of(tmp_path) == []
  kept.finish(interrupted=False)
  assert programs.steps_of(tmp_path) == [0]


# From the command line

_SMALL = ["--hidden-sizes=8", "--num-envs=4", "--unroll-length=8"]


def raw_lines(run_dir):
  return programs.lines_of(run_dir / "metrics.jsonl")


def assert_rising(run_dir):
  """Checks that counts and times never fall; returns the lines."""
  lines = metrics.read_lines(run_dir / "metrics.jsonl")
  for clock in ("env_steps", "wall_seconds", "learner_steps", "episodes"):
    values = [line[clock] for line in lines]
    assert values == sorted(values), clock
  return lines


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  run_dir = tmp_path_factory.mktemp("runs") / "run"
  words = [*_SMALL, "--total-steps", "256", "--run-dir", str(run_dir)]
  assert programs.main(a2c, words) == 0
  return run_dir


@pytest.mark.slow
def test_the_previous_checkpoint_replaces_a_damaged_newest_one(
  finished, tmp_path, capfd
):
  """Programs that resume or load a run use the previous checkpoint."""
  run_dir = tmp_path / "run"
  shutil.copytree(finished, run_dir)
  folder, step = checkpointer.directory(run_dir), programs.steps_of(run_dir)[-1]
  shutil.copytree(folder / str(step), folder / "900")
  for item in ("run", "acting"):
    path = folder / "900" / item
    path.write_bytes(path.read_bytes()[:-10])
  for which in ("latest", "best"):
    assert policies.load(run_dir, which).env_steps == step
    error = capfd.readouterr().err
    assert (
      "checkpoint 900 in" in error and f"checkpoint {step} instead" in error
    )
  with pytest.raises(types.ConfigError, match="checkpoint 900 in"):
    policies.load(run_dir, "900")
  words = ["--resume", str(run_dir), "--total-steps", "512"]
  assert programs.main(a2c, words) == 0
  error = capfd.readouterr().err
  assert "checkpoint 900 in" in error and f"checkpoint {step} instead" in error
  steps = programs.steps_of(run_dir)
  assert max(steps) >= 512 and 900 not in steps


_DQN = [
  *_SMALL,
  "--replay-min-steps=200",
  "--replay-batch-size=16",
  "--replay-capacity=4000",
  "--checkpoint-every-seconds=0.05",
]


@pytest.mark.slow
def test_a_replay_is_restored(tmp_path, monkeypatch, capfd):
  run_dir, restored = tmp_path / "run", []
  words = [*_DQN, "--total-steps", "600", "--run-dir", str(run_dir)]
  assert programs.main(dqn, words) == 0
  step = programs.steps_of(run_dir)[-1]
  checkpoints = checkpoint.Checkpoints(checkpointer.directory(run_dir))
  saved = checkpoints.restore(step, checkpointer.REPLAY)
  replays = [
    path for path in pathlib.Path(checkpoints.directory).glob("*/replay")
  ]
  assert [path.parent.name for path in replays] == [str(step)]
  lines = [x for x in raw_lines(run_dir) if "checkpoint_bytes" in x]
  assert lines[-1]["checkpoint_bytes"] > 4000 * 16
  assert all(x["checkpoint_seconds"] > 0 for x in lines)
  begin = replay_source.ReplaySource._begin

  def spy(source, shares):
    begin(source, shares)
    if not restored:
      restored.append(running.copied(source.saved()()))

  monkeypatch.setattr(replay_source.ReplaySource, "_begin", spy)
  words = ["--resume", str(run_dir), "--total-steps", "800"]
  updates = raw_lines(run_dir)[-1]["learner_steps"]
  assert programs.main(dqn, words) == 0
  content = np.frombuffer(checkpoint.to_bytes(restored[0]), np.uint8)
  chex.assert_trees_all_equal(checkpoint.from_bytes(content), saved)
  # The replay did not have to be filled again.
  assert raw_lines(run_dir)[-1]["learner_steps"] >= updates + 10
  assert "empty" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_replay_that_is_too_large_is_left_out_with_a_message(tmp_path, capfd):
  run_dir = tmp_path / "run"
  words = [*_DQN, "--total-steps", "600", "--run-dir", str(run_dir)]
  words += ["--checkpoint-replay-gib", "1e-6", "--learning-rate-end", "0.1"]
  assert programs.main(dqn, words) == 0
  error = capfd.readouterr().err
  assert error.count("more than --checkpoint-replay-gib 1e-06") == 1
  updates = raw_lines(run_dir)[-1]["learner_steps"]
  words = ["--resume", str(run_dir), "--total-steps", "1000"]
  assert programs.main(dqn, words) == 0
  error = capfd.readouterr().err
  assert error.count("the replay starts empty: it was not saved") == 1
  # The replay is filled again before the next update.
  assert updates > 0
  last = raw_lines(run_dir)[-1]
  assert last["learner_steps"] < 1.6 * updates
  # The schedule leaves out the updates that are missing.
  options = json.loads((run_dir / "config.json").read_text())["options"]
  share = last["learning_rate"] / options["learning_rate"]
  # Unfinished unrolls at the end of both starts are not learned from.
  assert share == pytest.approx(0.1, abs=0.06)


def test_a_run_without_a_whole_checkpoint_is_refused(finished, tmp_path, capfd):
  run_dir = tmp_path / "run"
  shutil.copytree(finished, run_dir)
  (step,) = programs.steps_of(run_dir)
  (checkpointer.directory(run_dir) / str(step) / "run").write_bytes(b"")
  error = programs.refused(a2c, ["--resume", str(run_dir)], capfd)
  assert f"checkpoint {step} in" in error and "no other" in error
  assert programs.steps_of(run_dir) == [step]


def test_a_finished_run_resumes_to_the_same_checkpoint(finished, capfd):
  (step,) = programs.steps_of(finished)
  where = checkpointer.directory(finished) / str(step)
  before = {path: path.stat().st_mtime_ns for path in where.rglob("*")}
  config = (finished / "config.json").read_text()
  last = raw_lines(finished)[-1]
  assert programs.main(a2c, ["--resume", str(finished)]) == 0
  assert "a larger --total-steps adds some" in capfd.readouterr().out
  assert programs.steps_of(finished) == [step]
  assert before == {path: path.stat().st_mtime_ns for path in where.rglob("*")}
  assert (finished / "config.json").read_text() == config
  lines = assert_rising(finished)
  assert lines[-1]["env_steps"] == last["env_steps"] == step >= 256
  assert lines[-1]["learner_steps"] == last["learner_steps"] > 0


@pytest.mark.slow
def test_total_steps_can_be_raised(finished):
  (first,) = programs.steps_of(finished)
  before = raw_lines(finished)
  words = ["--resume", str(finished), "--total-steps", "512"]
  # Options that do not affect the state may change.
  words += ["--checkpoint-every-seconds", "60", "--log-seconds", "0.1"]
  # Options may be repeated with their first values.
  assert programs.main(a2c, [*words, *_SMALL]) == 0
  assert programs.steps_of(finished)[-1] >= 512
  assert first in programs.steps_of(finished)
  lines = raw_lines(finished)
  assert lines[: len(before)] == before
  assert (
    assert_rising(finished)[-1]["env_steps"] == programs.steps_of(finished)[-1]
  )
  assert lines[-1]["learner_steps"] > before[-1]["learner_steps"]
  options = json.loads((finished / "config.json").read_text())["options"]
  assert options["total_steps"] == 512
  assert options["hidden_sizes"] == [8] and options["num_envs"] == 4


@pytest.fixture
def copy(finished, tmp_path):
  """Returns a directory with a run's config, but without checkpoints."""
  text = (finished / "config.json").read_text()
  (tmp_path / "config.json").write_text(text)
  return tmp_path


def test_a_total_below_the_env_steps_made_is_refused(finished, capfd):
  config = (finished / "config.json").read_text()
  (*_, step) = programs.steps_of(finished)
  words = ["--resume", str(finished), "--total-steps", str(step // 2)]
  error = programs.refused(a2c, words, capfd)
  assert f"more than the {step:,} that the run has made" in error
  assert (finished / "config.json").read_text() == config


@pytest.mark.parametrize(
  ("words", "reason"),
  [
    ("--num-envs 8", "found another --num-envs"),
    ("--seed 1 --env Acrobot-v1", "--seed, --env"),
    ("--env-options max_episode_steps=9", "--env-options"),
    ("--run-dir elsewhere", "--resume without --run-dir"),
  ],
)
def test_a_changed_option_is_refused(finished, words, reason, capfd):
  error = programs.refused(
    a2c, ["--resume", str(finished), *words.split()], capfd
  )
  assert reason in error


def test_a_run_of_another_experiment_is_refused(finished, capfd):
  error = programs.refused(ppo, ["--resume", str(finished)], capfd)
  assert "expected a run of ppo to --resume" in error
  assert "found one of a2c in" in error


def test_a_directory_with_a_run_is_refused_without_resume(
  copy, finished, capfd
):
  words = [*_SMALL, "--total-steps", "64", "--run-dir", str(copy)]
  # Without a checkpoint, the run cannot be resumed.
  error = programs.refused(a2c, words, capfd)
  assert "remove it, or choose another" in error
  checkpointer.directory(copy).make()
  (step,) = programs.steps_of(finished)[-1:]
  shutil.copytree(
    checkpointer.directory(finished) / str(step),
    checkpointer.directory(copy) / str(step),
  )
  error = programs.refused(a2c, words, capfd)
  assert "continue it with --resume" in error
  assert not (copy / "metrics.jsonl").exists()


def test_a_directory_in_which_a_process_trains_is_refused(finished, capfd):
  lines = raw_lines(finished)
  with run_folders.claimed(finished):
    for words in (["--resume", str(finished)], ["--run-dir", str(finished)]):
      error = programs.refused(a2c, words, capfd)
      assert "another process is training in" in error
  assert raw_lines(finished) == lines
  assert programs.main(a2c, ["--resume", str(finished)]) == 0


@pytest.mark.parametrize(
  ("values", "reason"),
  [
    ({"format": 99}, "expected a run of format 6"),
    ({"format": 2}, "found format 2, which an earlier commit of seedx"),
    ({"options": []}, "without 'options'"),
    ({"options": {"sead": 1}, "seedx": "9.9"}, "9.9"),
    ({"options": {"sead": 1}}, "sead"),
    ("{", "cannot read config.json"),
    (None, "expected the directory of a run"),
    ({}, "expected a checkpoint"),
  ],
)
def test_a_directory_without_a_run_of_this_version_is_refused(
  copy, values, reason, capfd
):
  path = copy / "config.json"
  if values is None:
    path.unlink()
  else:
    content = json.loads(path.read_text())
    path.write_text("{" if values == "{" else json.dumps(content | values))
  assert reason in programs.refused(a2c, ["--resume", str(copy)], capfd)
  assert not files.Folder(copy).has("checkpoints")


@pytest.mark.parametrize(
  ("minimum", "learned"),
  [(0, False), pytest.param(400, True, marks=pytest.mark.slow)],
  ids=["at once", "late"],
)
def test_a_run_that_fails_has_saved_its_newest_state(
  minimum, learned, tmp_path, monkeypatch, capfd
):
  run_dir = tmp_path / "run"
  path = run_dir / "metrics.jsonl"

  def check(processes):
    lines = metrics.read_lines(path) if path.exists() else []
    if not minimum or (lines and lines[-1]["env_steps"] >= minimum):
      raise RuntimeError("actor died 6 times")

  monkeypatch.setattr(instances.Processes, "check", check)
  words = "--run-dir", str(run_dir), "--checkpoint-every-seconds", "0"
  with pytest.raises(RuntimeError, match="died 6 times"):
    programs.main(a2c, (*_SMALL, "--total-steps", "1000000", *words))
  steps = checkpoint.Checkpoints(run_dir / "checkpoints").steps()
  resume = f"--resume {run_dir} continues from checkpoint"
  err = capfd.readouterr().err
  assert bool(steps) == (resume in err)
  if learned:
    assert steps == [metrics.read_lines(path)[-1]["env_steps"]]
    assert steps[0] >= minimum and f"{resume} {steps[0]}\n" in err


@pytest.mark.slow
def test_a_killed_run_resumes_from_its_newest_checkpoint(tmp_path):
  words = "--hidden-sizes 8 --replay-min-steps 100 --replay-batch-size 16"
  words += " --total-steps 100000000 --checkpoint-every-seconds 0.3"
  program = programs.start(dqn, *words.split(), "--run-dir", str(tmp_path))

  def failed():
    assert program.poll() is None, program.stderr.read()

  try:
    running.wait_until(lambda: len(programs.steps_of(tmp_path)) >= 2, failed)
    path = tmp_path / "metrics.jsonl"
    count = path.read_text().count("\n")
    running.wait_until(lambda: path.read_text().count("\n") > count, failed)
  finally:
    program.kill()
    program.wait()
  with (tmp_path / "metrics.jsonl").open("a") as file:
    file.write('{"wall_seconds": 1')  # A kill may leave half a line.
  before = metrics.read_lines(tmp_path / "metrics.jsonl")
  step = programs.steps_of(tmp_path)[-1]
  assert 0 < step <= before[-1]["env_steps"] + 10_000
  total = step + 400
  words = ["--resume", str(tmp_path), "--total-steps", str(total)]
  assert programs.main(dqn, words) == 0
  lines = assert_rising(tmp_path)
  assert lines[-1]["env_steps"] == programs.steps_of(tmp_path)[-1]
  assert total <= lines[-1]["env_steps"] < total + 100
  earlier = [line for line in before if line["env_steps"] <= step]
  assert lines[: len(earlier) - 1] == earlier[:-1]
  assert lines[-1]["learner_steps"] > earlier[-1]["learner_steps"]
