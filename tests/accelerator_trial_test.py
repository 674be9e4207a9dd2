"""The trial of a machine: what it writes, here of the CPU."""

import json

import pytest

from seedx.app import accelerator_trial


@pytest.mark.slow
def test_it_writes_what_a_machine_does(tmp_path, monkeypatch):
  small = "--hidden-sizes 8 --envs-per-actor 8 --num-actors 1"
  monkeypatch.setattr(
    accelerator_trial,
    "_SIZES",
    (
      (f"seed_vtrace {small}", "CartPole-v1"),
      ("a2c --epochs 3", "CartPole-v1"),
    ),
  )
  trained = accelerator_trial._trained
  monkeypatch.setattr(
    accelerator_trial,
    "_trained",
    lambda words, env, *rest: trained(
      f"seed_vtrace {small}" if "Pong" in env else words, "CartPole-v1", *rest
    ),
  )
  monkeypatch.setattr(
    accelerator_trial, "_TESTS", ("tests/losses/vtrace_test.py",)
  )
  output = tmp_path / "trial.json"
  words = ["--output", str(output), "--pong-seconds", "2"]
  # One of the sizes has options that are wrong.
  assert accelerator_trial.main([*words, "--rate-seconds", "2"]) == 1
  found = json.loads(output.read_text())
  assert found["machine"]["devices"] == "8 x CPU"
  assert found["tests"]["status"] == 0
  assert found["pong"]["env_steps_per_second"] > 100
  good, wrong = found["rates"].values()
  assert good["env_steps"] > 0 and good["bottleneck"]
  assert "unrecognized arguments" in wrong["error"]
