"""Tasks that cannot be learned without memory or noise."""

import pytest

from seedx import app, envs, replay
from seedx.acting import evaluator, protocol, thin_actor
from seedx.agents import dqn, r2d2, rainbow
from seedx.learning import learner
from seedx.pipelines import apex, seed, sync

pytestmark = pytest.mark.long

CHAIN = envs.Config("seedx:MemoryChain", {"length": 20})
COMMON = {
  "n_step": 20,
  "discount": 0.997,
  "reward_scale": 1.0,
  "hidden_sizes": (64,),
  "learning_rate": 2e-3,
  "max_gradient_norm": 0.5,
  "target_period": 50,
  "epsilon_end": 0.02,
  "epsilon_steps": 20_000,
  "rescale": True,
  "dueling": True,
}
# The bit and the question must be in the same sequence.
R2D2 = r2d2.Config(
  **COMMON,
  epsilon_ladder=False,
  lstm_size=64,
  burn_in=0,
  sequence_length=40,
)
REPLAY = replay.PrioritizedConfig(
  replay_batch_size=32,
  replay_ratio=8.0,
  priority_exponent=0.9,
  importance_exponent=0.6,
)
INBOX = learner.InboxConfig(unroll_length=20, batch_size=8)


def config_of(pipeline, agent, total_steps=150_000):
  run = {
    "env": CHAIN,
    "agent": agent,
    "replay": REPLAY,
    "total_steps": total_steps,
    "seed": 0,
  }
  if pipeline == "sync":
    learner_config = learner.Config(unroll_length=20)
    return sync.Config(**run, num_envs=8, learner=learner_config)
  if pipeline == "seed":
    actors = thin_actor.Config(envs_per_actor=8)
    return seed.Config(**run, actors=actors, learner=INBOX)
  actors = protocol.Actors(envs_per_actor=8)
  return apex.Config(**run, actors=actors, learner=INBOX)


def returns_of(config, run_dir, greedy=True):
  """Trains an agent, plays 1,000 new episodes, and returns their returns."""
  app.train(config, run_dir=run_dir, quiet=True)
  policy = app.load(run_dir, config=config)
  player = evaluator.Evaluator(
    policy.agent,
    evaluator.Config(config.env, 1000, greedy=greedy, num_envs=100),
  )
  return player.play(policy.acting, seed=10**6).returns


@pytest.mark.parametrize("pipeline", ["sync", "seed", "apex"])
def test_r2d2_remembers_the_bit(pipeline, tmp_path):
  returns = returns_of(config_of(pipeline, R2D2), tmp_path)
  assert returns.mean() >= 0.9


def test_an_agent_without_a_memory_does_not_learn_the_bit(tmp_path):
  """The question looks the same after either bit."""
  agent = dqn.Config(**COMMON)
  config = config_of("sync", agent, total_steps=50_000)
  returns = returns_of(config, tmp_path, greedy=False)
  assert set(returns) == {-1.0, 1.0}
  # The 99.9% confidence interval of the mean contains 0.
  assert abs(returns.mean()) < 3.29 / len(returns) ** 0.5


@pytest.mark.parametrize("noise_scale", [0.5, 0.0])
def test_only_noise_finds_the_treasure(noise_scale, tmp_path):
  """Epsilon is 0, so noise is the only exploration."""
  config = sync.Config(
    env=envs.Config("seedx:DeepSea", {"size": 10}),
    agent=rainbow.Config(
      n_step=5,
      learning_rate=1e-3,
      reward_scale=1.0,
      value_min=-1.0,
      value_max=1.0,
      noise_scale=noise_scale,
      max_gradient_norm=10.0,
      target_period=100,
    ),
    num_envs=8,
    learner=learner.Config(unroll_length=4),
    replay=replay.PrioritizedConfig(
      replay_batch_size=32,
      replay_ratio=4.0,
      priority_exponent=0.5,
      importance_exponent_rise=0.6,
    ),
    total_steps=20_000,
    seed=0,
  )
  metrics = app.train(config, run_dir=tmp_path, quiet=True).metrics
  # `episode_return` is the mean of the last 100 of 2,000 episodes, and at most
  # 0.99.
  assert metrics["episodes"] >= 1_990
  if noise_scale:
    assert metrics["episode_return"] >= 0.9 * 0.99
  else:
    assert metrics["episode_return"] <= 0.0
