# %% [markdown]
# # Bring your own
#
# Your own environment, loss and network, each in a file: nothing is registered,
# and nothing in seedx is changed. At the end they are a program with its own
# command line.

# %% [markdown]
# ## An environment
#
# Any Gymnasium `Env` or `dm_env.Environment` works. seedx needs the name of a
# function that makes one, `module:function`, in a module of the current
# directory or an installed one. seedx calls the function once for each
# environment, with that environment's seed, in a child process.
#
# This environment is a grid with a robot in one cell, a treasure in another,
# and a wall with a single gap between them. Reaching the treasure is a
# *termination*. After 60 steps without it comes a *truncation*, because the
# game would have continued.

# %% writes="my_env.py"
"""A robot looks for a treasure behind a wall."""

import gymnasium
import numpy as np
from gymnasium import spaces

MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])


class Treasure(gymnasium.Env):
  """The observation has the places of robot, treasure and gap, in -1 to 1."""

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
    reached = np.array_equal(self._robot, self._treasure)
    late = self._steps >= 60
    return self._observe(), 1.0 if reached else -0.01, reached, late, {}

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
  """Makes an environment, for `--env my_env:make`."""
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
# Every experiment accepts this environment as `--env`. `--env-options` are the
# function's arguments besides a seed.

# %%
# !{sys.executable} -m seedx train ppo --env my_env:make --env-options size=7 \
#   --num-envs 32 --total-steps 80000 --run-dir runs/treasure

# %% [markdown]
# The other programs of seedx accept this environment, too: here is an episode,
# frame by frame. The run's directory might be from another person, so the code
# that it names is run only with `--trust`.

# %%
# !{sys.executable} -m seedx evaluate runs/treasure --trust --seed 2 --video treasure.gif

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
# (If the function has an argument `render_mode`, seedx passes `"rgb_array"`
# when it needs frames.) In Python, `app.load` returns the policy of a run,
# which acts for any number of environments at a time. Here are the policy's
# actions in every cell of three grids:

# %%
import dm_env
from my_env import MOVES

from seedx import app

policy = app.load("runs/treasure", trust=True)
places = np.array([(row, column) for row in range(7) for column in range(7)])
count = len(places)
fig, axes = plt.subplots(1, 3, figsize=(12, 4))
for ax, (gap, treasure) in zip(
  axes, [(1, (5, 5)), (6, (2, 4)), (3, (0, 6))], strict=True
):
  grids = [(*robot, *treasure, gap) for robot in places]
  timestep = dm_env.TimeStep(
    step_type=np.full(count, dm_env.StepType.FIRST, np.uint8),
    reward=np.zeros(count, np.float32),
    discount=np.ones(count, np.float32),
    observation=(np.array(grids) / 3 - 1).astype(np.float32),
  )
  action, _ = policy.act(timestep, policy.initial_state(count))
  wall = (places[:, 1] == 3) & (places[:, 0] != gap)
  goes = ~wall & (places != treasure).any(axis=1)
  step = MOVES[np.asarray(action)]
  ax.quiver(
    *places[goes].T[::-1],
    *step[goes].T[::-1],
    color="#0072B2",
    angles="xy",
    scale_units="xy",
    scale=1.5,
    pivot="mid",
    width=0.015,
  )
  ax.scatter(*places[wall].T[::-1], s=600, marker="s", color="0.3")
  ax.scatter(*treasure[::-1], s=600, marker="s", color="#E69F00")
  ax.set(aspect="equal", xlim=(-0.6, 6.6), ylim=(6.6, -0.6))
  ax.axis("off")
plt.show()

# %% [markdown]
# If an environment has an error, one line shows the expected and the actual
# value:

# %% writes="my_mistake.py"
"""An environment with a wrong observation."""

import numpy as np
from my_env import Treasure


class Mistaken(Treasure):
  """Its observations have another shape than its space."""

  def _observe(self):
    return np.zeros(4, np.float32)


def make():
  """Makes one."""
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
# Your own network is a Flax module from observations `[B, ...]` to features
# `[B, F]`: it replaces the MLP, or the network for images, and the agent adds
# its heads. This one uses the fact that positions matter *relative to the
# robot*.

# %% writes="my_network.py"
"""A torso that sees the grid relative to the robot."""

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


# %% [markdown]
# `app.train` trains with a config, without a command line. A run writes the
# same files, by default into a new directory; `metrics` is its last line.

# %%
from my_network import FromTheRobot

from seedx import metrics
from seedx.agents import ppo
from seedx.learning import learner
from seedx.pipelines import sync

ENV = envs.Config("my_env:make", env_options={"size": 7})
runs = {}


def train(name, agent, total_steps):
  """Trains an agent in `sync`, and keeps the metrics under a name."""
  config = sync.Config(
    env=ENV,
    agent=agent,
    total_steps=total_steps,
    num_envs=32,
    learner=learner.Config(unroll_length=16),
    log_seconds=0.2,
  )
  run = app.train(config, quiet=True)
  runs[name] = metrics.read_lines(run.run_dir / "metrics.jsonl")
  print(f"{name:<16} return {run.metrics['episode_return']:.2f}")


agent = ppo.Config()
train("PPO, MLP", agent, 50_000)
agent = ppo.Config(torso=FromTheRobot())
train("PPO, my network", agent, 50_000)

# %% [markdown]
# ## A memory
#
# If one observation is not enough, a network needs a memory. `recurrent=True`
# puts an LSTM behind the torso, and `core` replaces it by your module. The
# module takes the features `[T, B, F]` of T steps and its state, and returns
# new features and the next state. It resets the state where an episode begins.
# Here are a GRU, and a transformer whose state is a window of the last steps.

# %% writes="my_memory.py"
"""Two memories: a GRU, and a causal transformer."""

import dm_env
import flax.linen as nn
import jax
import jax.numpy as jnp

FIRST = int(dm_env.StepType.FIRST)

State = dict[str, jax.Array]


class GRU(nn.Module):
  """A gated recurrent unit with `size` units."""

  size: int = 32

  def initial_state(self, batch_size: int) -> jax.Array:
    """Returns the state at the start of an episode."""
    return jnp.zeros((batch_size, self.size))

  @nn.compact
  def __call__(
    self, features: jax.Array, step_type: jax.Array, state: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Unrolls the memory over features `[T, B, F]`."""

    def step(
      cell: nn.GRUCell, state: jax.Array, inputs: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
      features, first = inputs
      return cell(jnp.where(first[:, None], 0.0, state), features)

    unroll = nn.scan(
      step, variable_broadcast="params", split_rngs={"params": False}
    )
    inputs = features, step_type == FIRST
    state, outputs = unroll(nn.GRUCell(self.size), state, inputs)
    return outputs, state


class Transformer(nn.Module):
  """A causal transformer over the current step and `window` previous steps.

  Its state has, for each previous step, whether it belongs to the current
  episode, and the inputs of each layer.
  """

  size: int = 32
  heads: int = 2
  layers: int = 1
  window: int = 16

  def initial_state(self, batch_size: int) -> State:
    """Returns the state at the start of an episode, an empty window."""
    window = batch_size, self.window
    return {
      "valid": jnp.zeros(window, bool),
      "inputs": jnp.zeros((*window, self.layers, self.size)),
    }

  @nn.compact
  def __call__(
    self, features: jax.Array, step_type: jax.Array, state: State
  ) -> tuple[jax.Array, State]:
    """Unrolls the memory over `[T, B, F]`, with T queries, window + T keys."""
    first = (step_type == FIRST).T
    episode = jnp.concatenate(  # The state's episode is 0; -1 is none.
      [jnp.where(state["valid"], 0, -1), jnp.cumsum(first, axis=1)], axis=1
    )
    time = jnp.arange(episode.shape[1])
    age = time[self.window :, None] - time
    visible = (age >= 0) & (age <= self.window)
    visible &= episode[:, self.window :, None] == episode[:, None]
    x, inputs = nn.Dense(self.size)(jnp.swapaxes(features, 0, 1)), []
    for layer in range(self.layers):
      inputs.append(jnp.concatenate([state["inputs"][:, :, layer], x], axis=1))
      x += self._attend(inputs[-1], age, visible)
      hidden = nn.gelu(nn.Dense(2 * self.size)(nn.LayerNorm()(x)))
      x += nn.Dense(self.size)(hidden)
    state = {
      "valid": episode[:, -self.window :] == episode[:, -1:],
      "inputs": jnp.stack(inputs, axis=2)[:, -self.window :],
    }
    return jnp.swapaxes(nn.LayerNorm()(x), 0, 1), state

  def _attend(
    self, inputs: jax.Array, age: jax.Array, visible: jax.Array
  ) -> jax.Array:
    """Returns the attention of the last T of `[B, window + T, size]` inputs."""
    parts = self.heads, self.size // self.heads
    normed = nn.LayerNorm()(inputs)
    mixed = nn.dot_product_attention(
      query=nn.DenseGeneral(parts)(normed[:, self.window :]),
      key=nn.DenseGeneral(parts)(normed),
      value=nn.DenseGeneral(parts)(normed),
      bias=nn.Embed(self.window + 1, self.heads)(
        jnp.clip(age, 0, self.window)
      ).transpose(2, 0, 1),
      mask=visible[:, None],
    )
    return nn.DenseGeneral(self.size, axis=(-2, -1))(mixed)


# %% [markdown]
# In `seedx:MemoryChain` the first observation shows a bit, and the last step
# asks for it. Without a memory, the mean return is 0; with one, it is up to 1.

# %%
from my_memory import GRU, Transformer

for core in (None, GRU(), Transformer()):
  agent = ppo.Config(
    recurrent=core is not None,
    core=core,
    hidden_sizes=(32,),
    learning_rate=1e-3,
    td_lambda=1.0,
    minibatches=2,
  )
  config = sync.Config(
    env=envs.Config("seedx:MemoryChain", {"length": 5}),
    agent=agent,
    total_steps=100_000,
    num_envs=32,
    learner=learner.Config(unroll_length=16),
  )
  run = app.train(config, quiet=True, stop_at=0.95)
  name = "no memory" if core is None else type(core).__name__
  print(f"{name:<16} return {run.metrics['episode_return']:.2f}")

# %% [markdown]
# ## A loss
#
# A loss takes one stream and returns the contribution of each step; see [the
# losses](losses.ipynb). This one imitates actions, with a weight that grows
# with their advantage ([Peng et al. 2019](https://arxiv.org/abs/1910.00177)).
# An agent is a config with a method `make`: this one adds the setting `beta` to
# those of every actor-critic, and `policy_gradient.make` makes the rest of the
# agent. Pipelines need nothing else.

# %% writes="my_loss.py"
"""Advantage-weighted imitation, as a loss and as an agent."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from seedx import losses
from seedx.agents import policy_gradient


def weighted_imitation(
  values, log_prob, entropy, step_type, reward, discount, lambda_, beta
):
  """Advantage-weighted imitation of one stream."""
  steps = losses.transitions(step_type, reward, discount, values)
  target = losses.lambda_returns(
    values, step_type, reward, discount, lambda_=lambda_
  )
  errors = jax.lax.stop_gradient(target) - values[:-1]
  better = jnp.exp(jnp.minimum(jax.lax.stop_gradient(errors) / beta, 3.0))
  return losses.ActorCriticLoss(
    policy_gradient=-better * log_prob * steps.weight,
    value=0.5 * errors**2,
    entropy=-entropy * steps.weight,
    weight=steps.weight,
  )


@dataclasses.dataclass(frozen=True)
class Config(policy_gradient.Config):
  """An actor-critic with that loss.

  Attributes:
    beta: advantage at which an action has e times the weight of an average one.
  """

  td_lambda: float = 0.95
  beta: float = 0.1

  def make(self, spec, axis_name=None, horizon=None):
    """Makes the agent; its batches are streams `[T, B]`."""

    def loss(evaluation, unroll, hyperparameters):
      stream_loss = functools.partial(
        weighted_imitation,
        lambda_=hyperparameters["td_lambda"],
        beta=self.beta,
      )
      return jax.vmap(stream_loss, in_axes=1, out_axes=1)(*evaluation.streams)

    return policy_gradient.make(spec, self, loss, axis_name, horizon)


# %%
import my_loss

agent = my_loss.Config(torso=FromTheRobot())
train("my loss, sync", agent, 100_000)

# %% [markdown]
# ## A program
#
# The agent does not depend on where it acts, and the pipeline does not depend
# on what is learned. So the same agent runs in `impala`, whose actors run in
# processes of their own. They import `my_loss`, `my_network` and `my_env`
# themselves, which is why these are modules. This file is a whole experiment:

# %% writes="imitate.py"
"""Finds the treasure by imitating actions that were better than expected."""

import sys

import my_loss
import my_network

from seedx import app, envs
from seedx.acting import protocol
from seedx.learning import learner
from seedx.pipelines import impala

EXPERIMENT = app.Experiment(
  impala.Config(
    env=envs.Config("my_env:make", env_options={"size": 7}),
    agent=my_loss.Config(torso=my_network.FromTheRobot()),
    total_steps=100_000,
    actors=protocol.Actors(num_actors=2, envs_per_actor=16),
    learner=learner.InboxConfig(unroll_length=16, batch_size=32),
  )
)

if __name__ == "__main__":
  sys.exit(app.main(EXPERIMENT))

# %%
# !{sys.executable} imitate.py --run-dir runs/imitate

# %% [markdown]
# Every field of the config, at any depth, is an option if its value can be
# written on a command line: `beta` is one. Its help is the sentence about it in
# the docstring.

# %%
# !{sys.executable} imitate.py --help | grep -A 1 -e --beta

# %% [markdown]
# The runs of this program can be resumed, plotted, exported and evaluated like
# those of seedx's own experiments. (The most likely action is not always the
# best: a greedy policy that is still partly random may walk in circles. With
# `--no-greedy` it acts as in training.)

# %%
# !{sys.executable} -m seedx evaluate runs/imitate --trust --no-greedy --episodes 20

# %%
runs["my loss, impala"] = metrics.read_lines("runs/imitate/metrics.jsonl")

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
  # The first episodes that end are short ones, which reached the treasure.
  shown = [line for line in lines if line["episodes"] >= 100]
  ax.plot(
    [line["env_steps"] / 1000 for line in shown],
    [line["episode_return"] for line in shown],
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
# These runs have one seed each, so they show that all four learn, but not which
# is best. To compare them, train with several values of `--seed`, and use
# `python -m seedx plot`. `seedx.envs.Config` describes environments with dicts,
# action masks and images. `seedx.agents.base.Agent` describes the contract
# between agents and pipelines.
