"""Programs of experiments: their training, options, help and roles."""

import types as types_lib

import pytest

from experiments import (
  a2c,
  a3c,
  dqn,
  gorila_dqn,
  impala,
  ppo,
  seed_ppo,
)
from seedx import envs
from seedx.app import training
from seedx.app.cli import programs as programs_lib
from tests import programs

own_signals = programs.own_signals
compiled_once = programs.compiled_once

# A few updates of a small network, which take less time than compiling.
_SMALL = "--total-steps 400 --hidden-sizes 8"


@pytest.mark.long
@pytest.mark.parametrize(
  "env",
  [
    "Pendulum-v1 --normalize-observations",
    "MiniGrid-Empty-5x5-v0",
    "gfootball/11_vs_11_easy_stochastic-v1",
  ],
)
def test_a_program_trains(env, tmp_path, capfd):
  words = f"{_SMALL} --num-envs 4 --unroll-length 8 --epochs 2 --minibatches 2"
  words += f" --run-dir {tmp_path} --env {env}"
  assert programs.main(ppo, words.split()) == 0
  last = programs.lines_of(tmp_path / "metrics.jsonl")[-1]
  assert last["env_steps"] >= 400
  assert last["learner_steps"] >= 2
  assert any(name.startswith("loss") for name in last)
  assert " env steps (" in capfd.readouterr().out or last["episodes"] == 0


@pytest.mark.parametrize(
  ("program", "arguments", "reason"),
  [
    (dqn, "--learner-devices 0,1,2", "--num-envs that is a multiple of 3"),
    (a2c, "--observation-transform nowhere:f", "found 'nowhere:f'"),
    (seed_ppo, "--role learner", "expected --address"),
    (impala, "--role worker", "expected all, learner, actor, found 'worker'"),
    (
      ppo,
      "--recurrent --minibatches 7",
      "16 unrolls of a batch on each learner device",
    ),
    (impala, "--agent ppo --minibatches 7", "such as 8 or 5, found 7"),
    (a2c, "--coordinator x --host-index 0", "expected host:port"),
    (gorila_dqn, "--role worker", "--address with --role worker"),
    (gorila_dqn, "--role server --address x:1", "--server-addresses with"),
  ],
)
def test_wrong_options_exit_with_2_and_the_reason(
  program, arguments, reason, tmp_path, capfd
):
  words = ["--run-dir", str(tmp_path), *arguments.split()]
  assert reason in programs.refused(program, words, capfd)


def helped(program, capfd, *words):
  """Returns the output of `--help` as one line."""
  capfd.readouterr()
  with pytest.raises(SystemExit) as caught:
    programs.main(program, [*words, "--help"])
  assert caught.value.code == 0
  out, err = capfd.readouterr()
  assert not err
  return " ".join(out.split())


def test_help_marks_the_values_of_presets(capfd):
  output = helped(a2c, capfd)
  assert output.startswith("usage: python -m experiments.a2c [options] ")
  assert "initial learning rate (default: 0.002)" in output
  output = helped(a2c, capfd, "--env", "Pong-v5")
  mark = (
    "initial learning rate (default: 0.0007, from a preset, not measured; 0.002"
    " without it)"
  )
  assert (
    mark in output and "(default: 16, from a preset; 20 without it)" in output
  )


def test_help_has_the_settings_of_the_agent(capfd):
  output = helped(a3c, capfd)
  assert "--td-lambda" in output and "--n-step" not in output
  output = helped(a3c, capfd, "--agent", "dqn", "--env", "Acrobot-v1")
  assert "n-step returns (default: 5, from a preset; 3 without it)" in output
  assert "--td-lambda" not in output
  output = helped(a2c, capfd)
  # Only programs with several processes have a role.
  assert "--agent" not in output and "--role" not in output
  assert "--role" in helped(impala, capfd)


def test_a_run_that_does_not_begin_leaves_no_directory(
  tmp_path, capfd, monkeypatch
):
  mine = tmp_path / "mine"
  mine.mkdir()
  monkeypatch.chdir(tmp_path)
  for run_dir in (tmp_path / "new" / "one", mine, ""):
    words = ["--run-dir", str(run_dir), "--learner-devices", "99"]
    programs.refused(a2c, words, capfd)
  assert list(tmp_path.iterdir()) == [mine]
  assert not list(mine.iterdir())


@pytest.mark.parametrize(
  ("words", "printed"),
  [
    ("", True),
    # Here, the processes outside may include the run's own actors.
    ("--role learner --address 127.0.0.1:1", False),
    ("--launcher ray", False),
  ],
)
def test_the_result_states_the_cpu_time_of_processes_outside_the_run(
  words, printed, monkeypatch, capsys, tmp_path
):
  line = {"episode_return": None, "episodes": 0, "learner_steps": 1}
  ended = training.Run(tmp_path, {"env_steps": 10**9, **line})
  outside = types_lib.SimpleNamespace(seconds=12.3, cores=0.41)
  for where, name, value in (
    (programs_lib.training, "run", lambda *_, **__: ended),
    (programs_lib.cpu_time, "Others", lambda: outside),
    (programs_lib.devices, "compute_on_own_threads", lambda: None),
    (programs_lib.allocator, "keep_freed_memory", lambda: None),
  ):
    monkeypatch.setattr(where, name, value)
  words = ["--compilation-cache", "off", *words.split()]
  assert programs.main(seed_ppo, words) == 0
  lines = capsys.readouterr().out.splitlines()
  text = "other processes used 12 s of CPU time during the run (0.41 cores)"
  assert (text in lines) == printed
  outside.seconds = None  # As on other systems than Linux.
  assert programs.main(seed_ppo, words) == 0
  assert "CPU time" not in capsys.readouterr().out


@pytest.mark.slow
def test_each_role_of_gorila_can_be_a_separate_command(tmp_path):
  """The worker starts first, before the servers and the learner."""
  sockets = [f"unix:{tmp_path}/{name}" for name in ("learner", "a", "b")]
  words = f"{_SMALL} --num-workers 1 --replay-min-steps 100"
  words = [*words.split(), "--replay-batch-size", "16", "--address", sockets[0]]
  words += ["--server-addresses", ",".join(sockets[1:]), "--role"]
  roles = [["worker"], *(["server", "--server", str(i)] for i in range(2))]
  begun = [programs.start(gorila_dqn, *words, *role) for role in roles]
  try:
    words += ["learner", "--run-dir", str(tmp_path / "run")]
    assert programs.main(gorila_dqn, words) == 0
    for program in begun:
      _, err = program.communicate(timeout=600)
      assert program.returncode == 0, err
  finally:
    for program in begun:
      program.kill()
  last = programs.lines_of(tmp_path / "run" / "metrics.jsonl")[-1]
  assert last["env_steps"] >= 400 and last["learner_steps"] >= 2


@pytest.mark.parametrize(
  ("options", "judged"), [({}, True), ({"max_episode_steps": 200}, False)]
)
def test_a_threshold_is_that_of_the_environment_without_options(
  options, judged, tmp_path
):
  last = {"env_steps": 20_000, "episode_return": 200.0, "episodes": 100}
  last |= {"wall_seconds": 9.0, "compile_seconds": 4.0}
  env = envs.Config("CartPole-v1", options)
  verdict = programs_lib._verdict(env, training.Run(tmp_path, last))
  assert ("not solved" in verdict) == judged
  assert "(2,222 a second) in 9 s, of which" in verdict
  before = {"steps_before": 10_000, "seconds_before": 4.0}
  verdict = programs_lib._verdict(env, training.Run(tmp_path, last, **before))
  assert "(2,000 a second) in 5 s since the resume, of which" in verdict
