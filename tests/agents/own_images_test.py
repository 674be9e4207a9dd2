"""Custom environments with images, and with rewards unlike those of Atari."""

import numpy as np
import pytest

from experiments import dqn
from seedx import app, envs
from tests import programs

pytestmark = pytest.mark.slow
own_signals = programs.own_signals


def test_the_better_of_two_actions_is_learned(tmp_path):
  """If rewards were clipped to 1, the worse action would be learned."""
  words = (
    f"--env tests.own_envs:Bandit --run-dir {tmp_path} --quiet"
    " --checkpoint-every-seconds 1000 --total-steps 4000 --epsilon-steps 2000"
    " --replay-min-steps 500 --replay-batch-size 32 --replay-ratio 3"
  )
  assert programs.main(dqn, words.split()) == 0
  policy = app.load(tmp_path, trust=True)
  environment = envs.make(policy.env, num_envs=1)
  try:
    environment.reset()
    rows = environment.recv()
  finally:
    environment.close()
  action, _ = policy.act(rows.timestep, policy.initial_state(1))
  np.testing.assert_array_equal(action, [0])
