"""The command `seedx record`."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from seedx import recordings
from seedx.app import record
from tests import programs
from tests.app import cases

own_signals = programs.own_signals
compiled_once = programs.compiled_once


def recorded(output, *words):
  """Records; returns the episodes."""
  assert record.main([*words, "--output", str(output)]) == 0
  return list(recordings.Recording(str(output)).episodes())


def test_random_actions_are_recorded_and_more_are_added(tmp_path, capsys):
  words = "--env CartPole-v1 --num-envs 3 --seed 4 --episodes"
  first = recorded(tmp_path, *words.split(), "5")
  assert sorted({x.seed for x in first}) == [4, 5, 6]
  steps = sum(len(x.reward) - 1 for x in first)
  line = capsys.readouterr().out
  assert line.startswith(f"5 episodes of CartPole-v1 ({steps:,} env steps)")
  assert "of 5 episodes" in line
  second = recorded(tmp_path, *words.split(), "7")
  assert sorted(x.seed for x in second[5:]) == [7, 8]
  actions = np.concatenate([x.action[:-1] for x in second])
  assert {*actions.tolist()} == {0, 1}


@pytest.mark.parametrize(
  ("env", "options"),
  [
    ("seedx:TicTacToe", "opponent=random"),
    ("tests.own_envs:masked_choices", '{"values": [2, 3], "shape": 5}'),
    ("tests.own_envs:bounded_hybrid", ""),
    ("Pendulum-v1", ""),
  ],
)
def test_random_actions_are_legal(tmp_path, env, options):
  words = ["--env", env, "--env-options", options, "--episodes", "4"]
  episodes = recorded(tmp_path, *words, "--max-episode-steps", "50")
  assert len(episodes) == 4
  spec = recordings.Recording(str(tmp_path)).description.spec
  for episode in episodes:
    actions = episode.action[:-1]
    if spec.action_mask:
      mask = episode.observation[spec.action_mask][:-1]
      chosen = np.take_along_axis(
        mask.reshape(len(actions), -1, mask.shape[-1]),
        actions.reshape(len(actions), -1, 1).astype(np.int64),
        axis=2,
      )
      assert (chosen != 0).all()
  values = np.concatenate([x.action[:-1] for x in episodes])
  assert len(np.unique(values)) > 1 or "choices" in env


@pytest.mark.parametrize(
  ("env", "options", "policy", "best"),
  [
    ("CartPole-v1", "", "cartpole", 500),
    ("seedx:DeepSea", "size=6,cued=true", "deep_sea", 0.99),
  ],
)
def test_demonstrators_are_perfect(tmp_path, env, options, policy, best):
  words = ["--env", env, "--env-options", options, "--episodes", "8"]
  policy = f"seedx.envs.demonstrators:{policy}"
  episodes = recorded(tmp_path, *words, "--policy", policy)
  assert min(x.episode_return for x in episodes) == pytest.approx(best)


def test_the_policy_of_a_run_is_recorded(tmp_path):
  run = tmp_path / "run"
  assert cases.train("", run) == 0
  episodes = recorded(tmp_path / "data", str(run), "--episodes", "3")
  description = recordings.Recording(str(tmp_path / "data")).description
  assert description.env["env"] == "CartPole-v1" and len(episodes) == 3
  assert description.policy == "a2c after 400 env steps, greedy"
  recorded(tmp_path / "other", str(run), "--no-greedy", "--episodes", "1")
  description = recordings.Recording(str(tmp_path / "other")).description
  assert description.policy == "a2c after 400 env steps, sampled"


@pytest.mark.parametrize(
  ("words", "message"),
  [
    ([], "expected RUN_DIR, found none"),
    (["nowhere"], "expected the directory of a run"),
    (["--env", "CartPole-v1", "--run-dir", "x"], "--env or the directory"),
    (["--env", "seedx:TicTacToe"], "one player, found self-play"),
    (["--env", "CartPole-v1", "--policy", "greedy"], "a policy package.module"),
    (["--env", "Nothing-v1"], "Nothing-v1"),
    (["--env", "tests.own_envs:Hybrid"], "expected actions with bounds"),
  ],
)
def test_a_wrong_command_line_is_refused_in_one_line(
  tmp_path, capfd, words, message
):
  assert message in programs.refused(
    record, [*words, "--output", str(tmp_path / "data")], capfd
  )
  assert not (tmp_path / "data").exists()


def test_code_that_a_run_names_needs_trust(tmp_path, capfd):
  run = tmp_path / "run"
  assert cases.train("", run) == 0
  path = run / "config.json"
  content = json.loads(path.read_text())
  content["options"]["env"] = "os:getcwd"
  path.write_text(json.dumps(content))
  words = [str(run), "--output", str(tmp_path / "data")]
  assert "names code that would run" in programs.refused(record, words, capfd)
  assert not (tmp_path / "data").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_recording_that_was_stopped_is_continued(tmp_path, number):
  program = (
    "import sys\n"
    "from seedx.recordings import storage\n"
    "storage._PART_BYTES = 20_000\n"
    "from seedx import __main__\n"
    "sys.exit(__main__.program())\n"
  )
  words = ["record", "--env", "CartPole-v1", "--output", "data", "--episodes"]
  running = subprocess.Popen(
    [sys.executable, "-c", program, *words, "1_000_000"],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": str(programs.ROOT)},
    stderr=subprocess.PIPE,
  )
  deadline = time.monotonic() + 300
  while not (tmp_path / "data" / "part-000003").exists():
    assert running.poll() is None and time.monotonic() < deadline
    time.sleep(0.01)
  running.send_signal(number)
  _, error = running.communicate()
  assert b"Traceback" not in error
  before = list(recordings.Recording(str(tmp_path / "data")).episodes())
  more = str(len(before) + 3)
  after = recorded(
    tmp_path / "data", "--env", "CartPole-v1", "--episodes", more
  )
  assert [x.seed for x in after[:-3]] == [x.seed for x in before]
  assert min(x.seed for x in after[-3:]) > max(x.seed for x in before)
