"""Custom environments with images, and with rewards unlike those of Atari."""

import numpy as np
import pytest

from experiments import dqn, ppo
from seedx import app, envs
from tests import programs

pytestmark = pytest.mark.slow
own_signals = programs.own_signals

_WORDS = {
  ppo: "--total-steps 6144",
  dqn: "--total-steps 4000 --epsilon-steps 2000 --replay-min-steps 500"
  " --replay-batch-size 32 --replay-ratio 3",
}


@pytest.mark.parametrize("program", _WORDS, ids=lambda x: x.__name__)
def test_the_better_of_two_actions_is_learned(program, tmp_path):
  """If rewards were clipped to 1, the worse action would be learned."""
  words = ["--env", "tests.own_envs:Bandit", "--run-dir", str(tmp_path)]
  words += ["--checkpoint-every-seconds", "1000", "--quiet"]
  assert programs.main(program, [*words, *_WORDS[program].split()]) == 0
  policy = app.load(tmp_path, trust=True)
  environment = envs.make(policy.env, num_envs=1)
  try:
    environment.reset()
    rows = environment.recv()
  finally:
    environment.close()
  action, _ = policy.act(rows.timestep, policy.initial_state(1))
  np.testing.assert_array_equal(action, [0])
