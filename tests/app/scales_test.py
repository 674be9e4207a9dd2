"""Rewards of other sizes than those that the defaults were measured with."""

import re

import numpy as np
import pytest

from experiments import a2c as a2c_experiment
from experiments import ppo as ppo_experiment
from experiments import seed_vtrace
from seedx import app, envs
from seedx.agents import alphazero, ddpg, dqn, ppo, rainbow
from seedx.app import scales
from seedx.runtime import counters
from tests import chain, programs

own_signals = programs.own_signals
compiled_once = programs.compiled_once

CARTPOLE = envs.Config("CartPole-v1")
OWN = envs.Config("tests.own_envs:cartpole")
CHAIN = "jax:tests.chain:Chain"


def greedy(run_dir):
  """Returns the greedy action in each state of the chain but the last."""
  policy = app.load(run_dir, trust=True)
  actions, _ = policy.predict(np.eye(chain.LENGTH, dtype=np.float32)[:-1])
  return actions.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
  ("experiment", "total_steps", "reward"),
  [
    (ppo_experiment, 20_000, 0.01),
    (ppo_experiment, 20_000, 100),
    (seed_vtrace, 100_000, 100),
  ],
)
def test_a_chain_is_learned_with_rewards_of_every_size(
  experiment, total_steps, reward, tmp_path
):
  agent = experiment.EXPERIMENT.config.agent
  remedy = re.findall("use (.*)", scales.too_small(agent, reward))
  assert remedy == ([] if reward > 1 else ["--reward-scale 100"])
  words = f"--env {CHAIN} --env-options reward={reward} --quiet"
  arguments = f"{words} --total-steps {total_steps} {''.join(remedy)}".split()
  arguments += ["--run-dir", str(tmp_path / "run")]
  assert programs.main(experiment, arguments) == 0
  assert greedy(tmp_path / "run") == [1] * (chain.LENGTH - 1)


def test_a_run_states_its_scale_and_reports_small_returns_once(tmp_path, capfd):
  words = f"--env {CHAIN} --env-options reward=0.01 --hidden-sizes 8"
  words += " --reward-scale 0.5 --num-envs 8 --total-steps 4000"
  words += f" --log-seconds 0 --run-dir {tmp_path}"
  assert programs.main(a2c_experiment, words.split()) == 0
  lines = capfd.readouterr().err.splitlines()
  assert "rewards: times 0.5 in the loss (--reward-scale)" in lines
  assert [x for x in lines if "returns" in x] == [
    "returns reach only 0.005 with --reward-scale 0.5, which is little to learn"
    " from; use --reward-scale 100"
  ]
  assert scales.scaled(ppo.Config()) == ""


def acted(returns, lengths):
  """Returns counts of one environment that has ended these episodes."""
  counts = counters.ActingCounts()
  environments = counts.join(np.ones(1, bool))
  for episode in zip(returns, lengths, strict=True):
    one_return, length = (np.array([x]) for x in episode)
    environments.add(int(length[0]), slice(None), one_return, length)
  return counts


@pytest.mark.parametrize(
  ("agent", "env", "returns", "words"),
  [
    (ppo.Config(), OWN, (0.0, 0.01), "only 0.01 .*; use --reward-scale 100$"),
    (ppo.Config(), OWN, (0.0, -0.01), "only 0.01 .*use --reward-scale 100$"),
    (
      dqn.Config().for_small(),
      OWN,
      (0.0, 0.2),
      "only 0.02 .*--reward-scale 1$",
    ),
    # Nothing is known before the first reward.
    (ppo.Config(), OWN, (0.0, 0.0), None),
    (ppo.Config(), OWN, (), None),
    (ppo.Config(), OWN, (100.0,), None),
    # The returns of seedx's and EnvPool's small tasks are known.
    (ppo.Config().for_small(), CARTPOLE, (0.01,), None),
    # Other settings make rewards of all sizes alike, or there is no scale.
    (ppo.Config(normalize_rewards=True), OWN, (0.01,), None),
    (ppo.Config().for_images(), OWN, (0.01,), None),
    (alphazero.Config(), OWN, (0.01,), None),
  ],
)
def test_small_returns_of_an_unknown_environment_are_reported(
  agent, env, returns, words, capfd
):
  check = scales.Check(agent, env, acted(returns, [9] * len(returns)))
  check()
  check()
  lines = capfd.readouterr().err.splitlines()
  assert len(lines) == (words is not None)
  assert all(re.search(words, line) for line in lines)


@pytest.mark.parametrize(
  ("agent", "mean", "length", "words"),
  [
    (rainbow.Config(), 500.0, 500, r"reach 83\.5 .* end at 10; .*-scale 0\.1$"),
    (rainbow.Config().for_small(), 500.0, 500, None),
    (
      rainbow.Config(),
      -20.0,
      1,
      r"reach -20 .*at -10; use --reward-scale 0\.1$",
    ),
    (rainbow.Config(), 9.0, 1, None),
    (ddpg.Config(), -1200.0, 200, None),
    # No scale moves a negative return above 0.
    (rainbow.Config(value_min=0.0), -5.0, 1, "at 0; use --value-min -10$"),
  ],
)
def test_returns_that_atoms_cannot_hold_are_reported(
  agent, mean, length, words, capfd
):
  scales.Check(agent, CARTPOLE, acted([mean], [length]))()
  lines = capfd.readouterr().err.splitlines()
  assert len(lines) == (words is not None)
  assert all(re.search(words, line) for line in lines)


def test_discounted_returns_are_at_least_as_large_as_reported():
  rng = np.random.default_rng(0)
  agent = rainbow.Config(value_min=-1e-6, value_max=1e-6, discount=0.9)
  for _ in range(100):
    rewards = rng.normal(rng.normal(), 1.0, rng.integers(1, 30))
    line = scales.beyond_atoms(agent, float(rewards.sum()), len(rewards))
    reached = float(re.findall(r"reach (\S+)", line)[0])
    total, returns = 0.0, []
    for reward in rewards[::-1]:
      total = reward + agent.discount * total
      returns.append(total)
    largest = max(returns) if reached > 0 else -min(returns)
    assert largest >= abs(reached) * 0.99
