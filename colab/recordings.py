# %% [markdown]
# # Learn from recordings
#
# A recording is a directory with episodes. Here, an expert and a policy of
# random actions play CartPole; behavioural cloning and DQN learn from what they
# did, without a step of their own; and a run continues on-line with the
# recording in its replay.

# %%
import dataclasses

import numpy as np

from seedx import app, envs, recordings, replay
from seedx.agents import cloning, dqn
from seedx.envs import demonstrators
from seedx.learning import learner
from seedx.pipelines import offline, sync

ENV = envs.Config("CartPole-v1")
rng = np.random.default_rng(0)


def random(timestep, state):
  """A policy maps time steps `[B]` and a state to actions and a state."""
  return rng.integers(0, 2, len(timestep.reward)), state


# %% [markdown]
# ## Record
#
# `Recorder` is an adapter: a loop plays in it as in any environments, and whole
# episodes go to a `Writer`. `seedx record` does the same for a trained run.


# %%
def record(path, policy, episodes):
  """Records the same number of episodes of each of eight environments."""
  description = recordings.Description(
    dataclasses.asdict(ENV), envs.spec(ENV), policy.__name__
  )
  with recordings.Writer(path, description) as writer:
    environment = recordings.Recorder(
      envs.make(ENV, 8, seed=0), writer.add, seed=0, episodes=[episodes] * 8
    )
    environment.reset()
    state = None
    while environment.left.any():
      rows = environment.recv()
      action, state = policy(rows.timestep, state)
      environment.send(rows.index, action)
    environment.close()
    returns = f"mean return {np.mean(writer.returns):.1f}"
    print(f"{path:<7}{writer.env_steps:>7,} env steps, {returns}")


record("expert", demonstrators.cartpole, 5)
record("random", random, 100)

# %% [markdown]
# Recordings of one environment are joined by their episodes. An episode has
# each time step once, and nothing that belongs to an agent.

# %%
parts = [recordings.Recording(name) for name in ("expert", "random")]
both = dataclasses.replace(parts[0].description, policy="both")
with recordings.Writer("both", both) as writer:
  for part in parts:
    for episode in part.episodes():
      writer.add(episode)
episode.observation.shape, episode.action.shape, episode.discount[-1]

# %% [markdown]
# ## Learn off-line
#
# The clock of these runs is the number of updates. Cloning imitates whatever
# it sees, so half of random actions harm it; DQN learns which ones were good.


# %%
def learn(name, agent, dataset):
  """Learns from a recording, and plays 20 greedy episodes at the end."""
  config = offline.Config(
    env=ENV, agent=agent, dataset=dataset, total_steps=5_000
  )
  run = app.train(
    config,
    run_dir=name,
    quiet=True,
    evaluate_every_steps=5_000,
    evaluate_episodes=20,
  )
  steps = f"{run.metrics['env_steps']} env steps"
  print(f"{name:<15} {steps}, {run.evaluation.partition(',')[0]}")


learn("clone of expert", cloning.Config(), "expert")
learn("clone of both", cloning.Config(), "both")

# %%
learn("dqn of both", dqn.Config().for_small(), "both")

# %% [markdown]
# ## Continue on-line
#
# `init_from` begins with the parameters of the off-line run. A quarter of each
# batch comes from the recording, and that share falls to 0.

# %%
config = sync.Config(
  env=ENV,
  agent=dataclasses.replace(dqn.Config().for_small(), epsilon_steps=0),
  num_envs=8,
  learner=learner.Config(unroll_length=8),
  replay=replay.Config(
    replay_min_steps=500,
    demonstrations="both",
    demonstration_ratio=0.25,
    demonstration_ratio_rise=-0.25,
  ),
  total_steps=10_000,
)
run = app.train(config, init_from="dqn of both", quiet=True)
print(f"on-line, mean return {run.metrics['episode_return']:.1f}")
