# %% [markdown]
# # Bring your own
#
# An environment, a loss and a network of your own, in files of your own:
# nothing is registered, and nothing in seedx is changed. At the end a script
# trains one agent in two pipelines.

# %% [markdown]
# ## An environment
#
# Any Gymnasium `Env` or `dm_env.Environment` will do. What seedx is told is a
# function that makes one, `module:function`, in a module of the current
# directory or any that is installed. It calls it in processes of its own, once
# for each environment, and gives each a seed.
#
# This one is a grid. In one cell is a robot, in another a treasure, and a wall
# with a single gap is between them. Not finding it within 60 steps is a
# *truncation*, since the game would have gone on; finding it a *termination*.

# %% writes="my_env.py"
"""A robot looks for a treasure behind a wall."""

import gymnasium
import numpy as np
from gymnasium import spaces

MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])


class Treasure(gymnasium.Env):
  """The observation is where robot, gap and treasure are, from -1 to 1."""

  def __init__(self, size, render_mode):
    self.observation_space = spaces.Box(-1.0, 1.0, (5,), np.float32)
    self.action_space = spaces.Discrete(len(MOVES))
    self.render_mode = render_mode
    self._size = size

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    half = self._size // 2
    self._gap = self.np_random.integers(self._size)
    robot, treasure = self.np_random.integers(self._size, size=(2, 2))
    robot[1], treasure[1] = robot[1] % half, half + 1 + treasure[1] % half
    self._robot, self._treasure, self._steps = robot, treasure, 0
    return self._observe(), {}

  def step(self, action):
    self._steps += 1
    to = np.clip(self._robot + MOVES[action], 0, self._size - 1)
    if to[1] != self._size // 2 or to[0] == self._gap:
      self._robot = to
    found = np.array_equal(self._robot, self._treasure)
    late = self._steps >= 60
    return self._observe(), 1.0 if found else -0.01, found, late, {}

  def render(self):
    picture = np.full((self._size, self._size, 3), 235, np.uint8)
    picture[:, self._size // 2] = 70
    picture[self._gap, self._size // 2] = 235
    picture[tuple(self._treasure)] = (230, 159, 0)
    picture[tuple(self._robot)] = (0, 114, 178)
    return picture.repeat(24, axis=0).repeat(24, axis=1)

  def _observe(self):
    places = np.array([*self._robot, *self._treasure, self._gap])
    return (2 * places / (self._size - 1) - 1).astype(np.float32)


def make(size=9, render_mode=None):
  """What `--env my_env:make` calls."""
  return Treasure(size, render_mode)


# %% [markdown]
# It is plain Python, so it can be tried out. A random walk does not get far:

# %%
import numpy as np
from my_env import make

env, returns = make(size=7), []
env.action_space.seed(0)
for episode in range(200):
  env.reset(seed=episode)
  over, total = False, 0.0
  while not over:
    _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    over, total = terminated or truncated, total + reward
  returns.append(total)
print(f"mean return {np.mean(returns):.2f}")
print(f"found the treasure in {np.mean(np.array(returns) > 0):.0%} of episodes")

# %% [markdown]
# Every experiment takes it as `--env`. What the function takes besides a seed
# comes from `--env-options`. The presets are for rewards of CartPole's size, so
# `--reward-scale` says that these are smaller.

# %%
# !python -m experiments.ppo --env my_env:make --env-options size=7 \
#   --reward-scale 1 --num-envs 32 --total-steps 80000 --run-dir runs/treasure

# %% [markdown]
# And so do the other programs: here is an episode, frame by frame.

# %%
# !python -m experiments.evaluate runs/treasure --seed 2 --video treasure.gif

# %%
import matplotlib.pyplot as plt
from PIL import Image

with Image.open("treasure.gif") as film:
  shown = min(film.n_frames, 12)
  fig, axes = plt.subplots(1, shown, figsize=(12, 12 / shown))
  for i, ax in enumerate(axes):
    film.seek(i)
    ax.imshow(film.convert("RGB"))
    ax.axis("off")
plt.show()

# %% [markdown]
# A `render_mode` that the function takes is set to `"rgb_array"` where frames
# are asked for. Where something is wrong with an environment, a single line
# says what was expected and what was found:

# %% writes="my_mistake.py"
"""An environment that does not do what it says."""

import numpy as np
from my_env import Treasure


class Mistaken(Treasure):
  """Its observations are of another shape than its space."""

  def _observe(self):
    return np.zeros(4, np.float32)


def make():
  """Returns it."""
  return Mistaken(size=7, render_mode=None)


# %%
from seedx import envs, types

try:
  envs.make(envs.Config("my_mistake:make"), num_envs=2, seed=0).reset()
except types.ConfigError as error:
  print(error)

# %% [markdown]
# ## A network
#
# A network of your own is a Flax module from observations `[B, ...]` to
# features `[B, F]`: it takes the place of the MLP, or of the network for
# images, and the agent adds its heads. This one knows that what counts in the
# grid is where things are *from the robot*, and on which side of it.

# %% writes="my_network.py"
"""A torso that sees the grid from where the robot is."""

import flax.linen as nn
import jax.numpy as jnp


class FromTheRobot(nn.Module):
  """Maps observations of `my_env` `[B, 5]` to features `[B, size]`."""

  size: int = 64

  @nn.compact
  def __call__(self, observation):
    robot, treasure = observation[:, :2], observation[:, 2:4]
    gap = observation[:, 4:]
    ways = jnp.concatenate([treasure - robot, gap - robot[:, :1]], axis=-1)
    sides = jnp.tanh(10.0 * ways)
    features = jnp.concatenate([observation, ways, sides], axis=-1)
    for _ in range(2):
      features = nn.relu(nn.Dense(self.size)(features))
    return features


# %%
from my_network import FromTheRobot

from seedx.agents import base, ppo
from seedx.pipelines import sync

ENV = envs.Config("my_env:make", options={"size": 7})
STEPS = 50_000


class Lines(list):
  """Keeps lines of metrics: all that a sink is."""

  write = list.append

  def close(self):
    """Has nothing to close."""


runs = {}
for name, torso in {
  "PPO, MLP": None,
  "PPO, my network": FromTheRobot(),
}.items():
  config = ppo.Config(learning_rate=2e-3, torso=torso)
  trainer = sync.Trainer(
    sync.Config(
      env=ENV,
      make_agent=base.Maker(ppo.make, config),
      total_steps=STEPS,
      seed=0,
      num_envs=32,
      unroll_length=32,
      log_seconds=0.2,
    ),
    [runs.setdefault(name, Lines())],
  )
  last = trainer.run()
  print(f"{name:<16} return {last['episode_return']:.2f}")

# %% [markdown]
# ## A loss
#
# A loss takes one stream and says what each step contributes; see
# [the losses](losses.ipynb). This one imitates each action the more, the better
# it went ([Peng et al. 2019](https://arxiv.org/abs/1910.00177)). `make_agent`
# makes an actor-critic of it, here with the network from above: it is all that
# a pipeline needs to know.

# %% writes="my_loss.py"
"""Advantage-weighted imitation, as a loss and as an agent."""

import jax
import jax.numpy as jnp
from my_network import FromTheRobot

from seedx import losses
from seedx.agents import actor_critic


def weighted_imitation(
  values, log_prob, entropy, step_type, reward, discount, beta=0.1
):
  """Advantage-weighted imitation of one stream."""
  steps = losses.transitions(step_type, reward, discount, values)
  target = losses.lambda_returns(
    values, step_type, reward, discount, lambda_=0.95
  )
  errors = jax.lax.stop_gradient(target) - values[:-1]
  better = jnp.exp(jnp.minimum(jax.lax.stop_gradient(errors) / beta, 3.0))
  return losses.ActorCriticLoss(
    policy_gradient=-better * log_prob * steps.weight,
    value=0.5 * errors**2,
    entropy=-entropy * steps.weight,
    weight=steps.weight,
  )


def make_agent(spec, axis_name):
  """An actor-critic with that loss, over a batch of streams `[T, B]`."""

  def loss(evaluation, unroll):
    return jax.vmap(weighted_imitation, in_axes=1, out_axes=1)(*evaluation)

  config = actor_critic.Config(learning_rate=2e-3, torso=FromTheRobot())
  return actor_critic.make(spec, config, loss, axis_name)


# %% [markdown]
# ## A script that takes any pipeline
#
# The agent does not know where it acts, and the pipeline not what it learns. So
# the script is the same for both; `impala` also says which processes run beside
# it. They import `my_loss` and `my_env` for themselves, for which these are
# modules.

# %% writes="train.py"
"""Trains my agent in the pipeline that is named: sync or impala."""

import sys
import tempfile

import my_loss

from seedx import envs, launch, metrics
from seedx.pipelines import impala, sync

STEPS = 100_000


def main(name):
  """Leaves `<name>.jsonl`."""
  common = {
    "env": envs.Config("my_env:make", options={"size": 7}),
    "make_agent": my_loss.make_agent,
    "total_steps": STEPS,
    "seed": 0,
    "unroll_length": 16,
  }
  sinks = [metrics.JsonLines(f"{name}.jsonl"), metrics.Console(STEPS)]
  with tempfile.TemporaryDirectory() as sockets:
    if name == "sync":
      nodes = []
      own = sync.Trainer(sync.Config(**common, num_envs=32), sinks)
    else:
      config = impala.Config(
        **common,
        address=f"unix:{sockets}/learner",
        num_actors=2,
        envs_per_actor=16,
        batch_size=32,
      )
      nodes = [impala.actors(config)]
      own = impala.Learner(config, sinks)
    processes = launch.Processes(nodes)
    try:
      last = own.run(processes.check)
    finally:
      processes.stop()
  print(f"{name}: mean return {last['episode_return']:.2f}")


if __name__ == "__main__":
  main(sys.argv[1])

# %%
# !python train.py sync

# %%
# !python train.py impala

# %%
from seedx import metrics

runs["my loss, sync"] = metrics.read_lines("sync.jsonl")
runs["my loss, impala"] = metrics.read_lines("impala.jsonl")

plt.rcParams.update(
  {
    "figure.dpi": 80,
    "figure.constrained_layout.use": True,
    "font.size": 17,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
  }
)
fig, ax = plt.subplots(figsize=(12, 4.8))
styles = zip(
  ("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
  ("-", "--", "-.", ":"),
  ("o", "s", "^", "D"),
  strict=True,
)
for (name, lines), (colour, dashes, marker) in zip(
  runs.items(), styles, strict=True
):
  # The first episodes to end are the short ones, that found the treasure.
  known = [line for line in lines if line["episodes"] >= 100]
  ax.plot(
    [line["env_steps"] / 1000 for line in known],
    [line["episode_return"] for line in known],
    color=colour,
    linestyle=dashes,
    marker=marker,
    markevery=0.15,
    markersize=9,
    linewidth=2.5,
    label=name,
  )
ax.axhline(np.mean(returns), color="0.5", linewidth=1.5)
ax.text(100, np.mean(returns), "random walk", ha="right", va="bottom")
ax.grid(color="0.88")
ax.set(xlabel="env steps (thousands)", ylabel="episode return")
fig.legend(loc="outside lower center", ncols=4, handlelength=3)
plt.show()

# %% [markdown]
# One seed each says that all of them learn, not which is better:
# `--seed` and `experiments.plot` are for that. What more there is to know about
# environments (dicts, action masks, images) stands in `seedx.envs.Config`, and
# about agents in `seedx.agents.base.Agent`, the contract that a pipeline relies
# on.
