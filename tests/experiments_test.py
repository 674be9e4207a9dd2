"""The programs that train in one process, and what all programs share."""

import dataclasses
import inspect
import json
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from experiments import (
  a2c,
  a3c,
  apex_dqn,
  dqn,
  gorila_dqn,
  impala,
  options,
  ppo,
  seed_ppo,
  seed_vtrace,
  settings,
)
from seedx import envs

PROGRAMS = (
  *(a2c, a3c, apex_dqn, dqn, gorila_dqn, impala, ppo, seed_ppo, seed_vtrace),
)
_ROOT = pathlib.Path(__file__).parent.parent
# A few updates of a small network: compiling is all that takes time.
_SMALL = {
  a2c: "--num-envs 4 --unroll-length 5",
  dqn: "--replay-min-steps 100 --replay-batch-size 16",
  ppo: "--num-envs 4 --unroll-length 8 --epochs 2 --minibatches 2",
  impala: "--num-actors 1 --envs-per-actor 4 --batch-size 4 --unroll-length 5",
  gorila_dqn: "--num-workers 1 --replay-min-steps 100 --replay-batch-size 16",
}


@pytest.fixture(autouse=True)
def _own_signals():
  """A program takes Ctrl-C over; the next test needs it back."""
  handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
  yield
  for number, handler in handlers.items():
    signal.signal(number, handler)


def run(program, run_dir, *arguments):
  """Runs a program in this process; returns its lines of metrics."""
  words = [*_SMALL[program].split(), "--run-dir", str(run_dir), *arguments]
  words = ["--total-steps", "400", "--hidden-sizes", "8", *words]
  assert program.main(words) == 0
  text = (run_dir / "metrics.jsonl").read_text()
  return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
  ("program", "arguments"),
  [
    (a2c, ()),
    (ppo, ("--env", "Pendulum-v1", "--normalize-observations")),
    (dqn, ("--dueling", "--epsilon-ladder")),
  ],  # The others are the README's, see `readme_test`.
  ids=lambda x: x.__name__ if inspect.ismodule(x) else " ".join(x),
)
def test_a_program_trains_and_leaves_its_files(
  program, arguments, tmp_path, capfd
):
  last = run(program, tmp_path, *arguments)[-1]
  assert last["env_steps"] >= 400
  assert last["learner_steps"] >= 2
  assert any(name.startswith("loss") for name in last)
  assert (tmp_path / "learning_curve.png").exists()
  config = json.loads((tmp_path / "config.json").read_text())
  assert config["experiment"] == program.__name__
  assert config["options"]["total_steps"] == 400
  assert config["options"]["hidden_sizes"] == [8]
  assert "env steps and" in capfd.readouterr().out or last["episodes"] == 0


@pytest.mark.parametrize(
  ("program", "arguments", "reason"),
  [
    (dqn, "--env Pendulum-v1", "expected discrete actions"),
    (dqn, "--recurrent", "unrecognized arguments: --recurrent"),
    (ppo, "--micro-batches 2", "minibatches of its own"),
    (ppo, "--num-envs 3 --unroll-length 5 --minibatches 4", "divide the 15"),
    (a2c, "--num-envs 6 --learner-devices 0,1,2,3", "4 learner devices"),
    (a2c, "--learner-devices 99", "devices from 0 to"),
    (dqn, "--learner-devices 0,1,2", "num_envs that 3 learner devices"),
    (a2c, "--image-torso vgg", "invalid choice"),
    (a2c, "--action-mask legal", "found 'legal'"),
    (a2c, "--observation-transform nowhere:f", "found 'nowhere:f'"),
    (seed_ppo, "--role learner", "expected --address"),
    (ppo, "--total-steps 999", "total_steps of at least 1024"),
    (dqn, "--total-steps 1999", "total_steps of at least 2000"),
    (
      dqn,
      "--num-envs 64 --replay-capacity 200 --replay-min-steps 100",
      "a replay of at least 256 env steps",
    ),
    (a2c, "--learner-devices ,", "expected different learner devices"),
  ],
)
def test_what_makes_no_sense_exits_with_2_and_the_reason(
  program, arguments, reason, tmp_path, capfd
):
  with pytest.raises(SystemExit) as caught:
    program.main(["--run-dir", str(tmp_path), *arguments.split()])
  assert caught.value.code == 2
  lines = [x for x in capfd.readouterr().err.splitlines() if "error" in x]
  assert len(lines) == 1
  assert reason in lines[0]


@dataclasses.dataclass(frozen=True)
class Counts:
  one: int = options.option(5, "at least one", least=1)
  none: int = options.option(5, "or none", least=0)
  few: int = options.option(5, "at most nine", least=1, most=9)
  seconds: float = options.option(5.0, "or none", least=0)


@pytest.mark.parametrize("name", [x.name for x in dataclasses.fields(Counts)])
def test_what_is_counted_begins_where_it_says(name, capfd):
  flag = options.flag(name)
  least = Counts.__dataclass_fields__[name].metadata["least"]
  given = options.parse(Counts, [flag, str(least)], None)
  assert getattr(given, name) == least
  with pytest.raises(SystemExit) as caught:
    options.parse(Counts, [flag, str(least - 1)], None)
  assert caught.value.code == 2
  said = capfd.readouterr().err
  bounds = "from 1 to 9" if name == "few" else f"of at least {least}"
  assert f"expected {flag} {bounds}, found {least - 1}" in said


@pytest.mark.parametrize(
  "words", ["--few 10", "--seconds inf", "--seconds nan"]
)
def test_what_is_counted_ends_where_it_says(words, capfd):
  with pytest.raises(SystemExit) as caught:
    options.parse(Counts, words.split(), None)
  assert caught.value.code == 2
  assert f"expected {words.split()[0]} " in capfd.readouterr().err


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda x: x.__name__)
def test_numbers_of_environments_and_steps_are_counts(program):
  fields = {field.name: field for field in dataclasses.fields(program.Options)}
  per_update = (
    "num_envs envs_per_actor envs_per_worker unroll_length batch_size"
  )
  found = [name for name in per_update.split() if name in fields]
  assert len(found) >= 2
  for name in [*found, "total_steps"]:
    assert fields[name].metadata["least"] == 1, name


def test_help_says_defaults_as_one_gives_them(capfd):
  with pytest.raises(SystemExit):
    options.parse(a2c.Options, ["--help"], None, {"env_options": {"a": 1}})
  said = " ".join(capfd.readouterr().out.split())
  assert "units of the MLP's layers (default: 64,64)" in said
  assert "KEY=VALUE,KEY=VALUE (default: a=1)" in said
  assert "--run-dir DIR where results go; runs/<experiment>/<time> if" in said
  assert "(default: )" not in said and "(default: ())" not in said


def test_a_run_that_does_not_begin_leaves_no_directory(tmp_path):
  mine = tmp_path / "mine"
  mine.mkdir()
  for run_dir in (tmp_path / "new", mine):
    with pytest.raises(SystemExit):
      a2c.main(["--run-dir", str(run_dir), "--learner-devices", "99"])
  assert list(tmp_path.iterdir()) == [mine]
  assert not list(mine.iterdir())


def test_an_option_means_the_same_everywhere():
  helps = {}
  for program in PROGRAMS:
    for field in dataclasses.fields(program.Options):
      helps.setdefault(field.name, set()).add(field.metadata["help"])
  # There are other roles in Gorila.
  assert {name for name, texts in helps.items() if len(texts) > 1} == {"role"}
  everywhere = {field.name for field in dataclasses.fields(settings.Common)}
  assert {"env", "total_steps", "seed", "learning_rate"} <= everywhere


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda x: x.__name__)
def test_presets_are_of_options_that_there_are(program):
  names = {field.name for field in dataclasses.fields(program.Options)}
  for key, values in program.PRESETS.items():
    assert set(values) <= names, key


@pytest.mark.parametrize(
  ("env_id", "recurrent", "expected"),
  [
    ("CartPole-v1", False, ["default"]),
    ("CartPole-v1", True, ["default", "recurrent"]),
    ("Pong-v5", False, ["default", "images"]),
    ("Pendulum-v1", False, ["default", "continuous"]),
    ("RubiksCube-v0", False, ["default"]),
  ],
)
def test_presets_follow_the_environment_the_last_wins(
  env_id, recurrent, expected
):
  keys = ("default", "continuous", "images", "recurrent")
  presets = {key: {key: 1, "last": key} for key in keys}
  given = a2c.Options(env=env_id, recurrent=recurrent)
  chosen = settings.preset(presets, given, envs.spec(envs.Config(env_id)))
  assert chosen == dict.fromkeys(expected, 1) | {"last": expected[-1]}


def test_a_preset_of_no_option_is_an_error():
  with pytest.raises(ValueError, match="lerning_rate"):
    options.parse(a2c.Options, [], None, {"lerning_rate": 1.0})


def test_a_transform_of_the_users_changes_what_the_agent_sees(tmp_path):
  lines = run(
    *(a2c, tmp_path, "--observation-transform"),
    "experiments.transforms:hide_velocities",
  )
  assert lines[-1]["learner_steps"] > 2
  config = settings.environment(
    a2c.Options(observation_transform="experiments.transforms:hide_velocities")
  )
  environment = envs.EnvPoolEnvironment(config, 3)
  environment.reset()
  assert environment.spec.observation.shape == (2,)
  plain = envs.EnvPoolEnvironment(envs.Config("CartPole-v1"), 3)
  plain.reset()
  np.testing.assert_array_equal(
    environment.recv().timestep.observation,
    plain.recv().timestep.observation[:, [0, 2]],
  )


def test_the_roles_of_gorila_run_apart(tmp_path):
  """Each is a command of its own; the worker starts first."""
  sockets = [f"unix:{tmp_path}/{name}" for name in ("learner", "a", "b")]
  words = ["--hidden-sizes", "8", *_SMALL[gorila_dqn].split()]
  words += ["--total-steps", "400", "--address", sockets[0]]
  words += ["--server-addresses", ",".join(sockets[1:])]

  def start(*role):
    program = [sys.executable, "-m", "experiments.gorila_dqn"]
    return subprocess.Popen(
      [*program, "--role", *role, *words], cwd=_ROOT, stderr=subprocess.PIPE
    )

  worker = start("worker")
  servers = [start("server", "--server", str(i)) for i in range(2)]
  learner = start("learner", "--run-dir", str(tmp_path / "run"))
  try:
    for program in (learner, worker):
      _, err = program.communicate(timeout=120)
      assert program.returncode == 0, err
    for server in servers:
      server.send_signal(signal.SIGINT)
    assert [server.wait(30) for server in servers] == [130, 130]
  finally:
    for program in (learner, worker, *servers):
      program.kill()
  text = (tmp_path / "run" / "metrics.jsonl").read_text()
  last = json.loads(text.splitlines()[-1])
  assert last["env_steps"] >= 400 and last["learner_steps"] >= 2


def test_an_actor_of_impala_runs_apart(tmp_path):
  words = ["--hidden-sizes", "8", *_SMALL[impala].split()]
  words += ["--total-steps", "400", "--address", f"unix:{tmp_path}/learner"]
  program = [sys.executable, "-m", "experiments.impala", "--role"]
  actor = subprocess.Popen([*program, "actor", *words], cwd=_ROOT)
  learner = [*program, "learner", "--run-dir", str(tmp_path / "run"), *words]
  try:
    assert subprocess.run(learner, cwd=_ROOT, timeout=120).returncode == 0
    assert actor.wait(30) == 0
  finally:
    actor.kill()


@pytest.mark.parametrize(
  ("words", "reason"),
  [
    ("--role worker --address x:1", "--server-addresses with --role worker"),
    (
      "--role server --server 2 --server-addresses a:1,b:1 --address x:1",
      "--server from 0 to 1",
    ),
    ("--num-servers 0", "at least 1 parameter server"),
    ("--normalize-observations", "without statistics"),
  ],
)
def test_a_gorila_that_makes_no_sense_exits_with_2(
  words, reason, tmp_path, capfd
):
  with pytest.raises(SystemExit) as caught:
    gorila_dqn.main(["--run-dir", str(tmp_path), *words.split()])
  assert caught.value.code == 2
  assert reason in capfd.readouterr().err
