# %% [markdown]
# # The pipelines
#
# Five years of distributed reinforcement learning, as programs: where inference
# ran, what crossed the network, and how gradients reached the parameters. In
# seedx the agents, losses and environments stay the same, and each architecture
# is a short module that connects the same parts. This notebook describes the
# architectures, runs each on the same small problem, and compares them.
#
# | | when | authors | what crossed the network |
# |---|---|---|---|
# | [Gorila](https://arxiv.org/abs/1507.04296) | July 2015 | Nair et al., Google DeepMind | gradients to sharded parameter servers, parameters back, as in [DistBelief](https://research.google/pubs/large-scale-distributed-deep-networks/) (Dean et al. 2012) |
# | [A3C](https://arxiv.org/abs/1602.01783) | February 2016 | Mnih et al., Google DeepMind | nothing: threads of one machine share the parameters |
# | [A2C](https://arxiv.org/abs/1705.04862) | May 2017 | Clemente et al.; the name is from OpenAI Baselines | nothing: one process, in lock step and in one batch |
# | [IMPALA](https://arxiv.org/abs/1802.01561) | February 2018 | Espeholt et al., DeepMind | unrolls to the learner, parameters back |
# | [Ape-X](https://arxiv.org/abs/1803.00933) | March 2018 | Horgan et al., DeepMind | transitions with priorities to one replay, parameters back |
# | [SEED](https://arxiv.org/abs/1910.06591) | October 2019 | Espeholt et al., Google Research | observations to the learner, actions back |
# | PPO at scale: [DD-PPO](https://arxiv.org/abs/1911.00357), [OpenAI Five](https://arxiv.org/abs/1912.06680) | November, December 2019 | Wijmans et al., Berner et al. | gradients between learners, all-reduced in lock step; at OpenAI also experience and parameters |
#
# Two developments connect them. *The gradient* was first computed by the
# workers (Gorila, A3C), and later by one learner with accelerators (all
# others). And *the traffic* became less and less dependent on the network's
# size: gradients and parameters, then only parameters, then, with SEED,
# neither. Each module begins with the figure of its paper.

# %%
from seedx.pipelines import a3c, apex, gorila, impala, seed, sync

for pipeline in (gorila, a3c, impala, apex, seed):
  title, _, rest = pipeline.__doc__.partition("\n\n")
  drawing, _, _ = rest.partition("\n\n")
  print(title, "\n\n", drawing, "\n", sep="")

# %% [markdown]
# ## The same agents for all
#
# The actor-critic is the same in `sync` (the loop of A2C), `a3c`, `impala` and
# `seed`: the same network with V-trace, which equals A2C's loss on new
# experience and corrects for the age of old experience. PPO runs in `seed`,
# too. DQN with its replay is the agent for which Gorila and Ape-X were made.

# %%
from seedx import envs, replay
from seedx.agents import dqn, ppo, vtrace

VTRACE = vtrace.Config(td_lambda=0.95).for_small()
PPO = ppo.Config(epochs=4, minibatches=4).for_small()
DQN = dqn.Config(
  learning_rate=1e-3,
  hidden_sizes=(64, 64),
  target_period=50,
  epsilon_end=0.02,
  epsilon_steps=4_000,
).for_small()
ENV = envs.Config("CartPole-v1")

# %% [markdown]
# A pipeline is a module, and its `Config` describes a whole run: the
# environment, the agent, and the settings of the pipeline's processes.
# `app.train` accepts any of them. It starts the processes, trains, and writes
# the same files as an experiment, by default into a new directory.

# %%
import time

from seedx import app, metrics

runs = {}


def train(name, config):
  """Trains with a config, and keeps the metrics under a name."""
  start = time.monotonic()
  run = app.train(config, quiet=True)
  runs[name] = metrics.read_lines(run.run_dir / "metrics.jsonl")
  last = run.metrics
  print(
    f"{name:<12} return {last['episode_return']:>5.1f} after"
    f" {last['env_steps']:>7,} env steps, {last['wall_seconds']:>4.1f} s"
    f" ({time.monotonic() - start:.0f} s with its processes' start)"
  )


problem = {"env": ENV, "seed": 0, "total_steps": 40_000, "log_seconds": 0.25}

# %% [markdown]
# **One machine.** `sync` acts, then learns, then acts again: experience is
# never old. In `a3c` each of four threads does this by itself, and none waits
# for another.

# %%
from seedx.acting import local_actor, protocol, thin_actor
from seedx.learning import learner

config = sync.Config(
  **problem,
  agent=VTRACE,
  num_envs=64,
  learner=learner.Config(unroll_length=16),
)
train("sync", config)

config = a3c.Config(
  **problem,
  agent=VTRACE,
  workers=local_actor.WorkersConfig(
    num_workers=4, envs_per_worker=16, unroll_length=16
  ),
)
train("a3c", config)

# %% [markdown]
# **Actors and a learner.** The same 64 environments run in 2 actor processes. The
# actors of `impala` compute their own actions, with a copy of the parameters
# that they fetch between unrolls. The actors of `seed` request every action. PPO
# runs in `seed` exactly as V-trace does.

# %%
config = impala.Config(
  **problem,
  agent=VTRACE,
  actors=protocol.Actors(num_actors=2, envs_per_actor=32),
  learner=learner.InboxConfig(unroll_length=16, batch_size=64),
)
train("impala", config)

for name, agent in {"seed": VTRACE, "seed-ppo": PPO}.items():
  config = seed.Config(
    **problem,
    agent=agent,
    actors=thin_actor.Config(num_actors=2, envs_per_actor=32),
    learner=learner.InboxConfig(unroll_length=16, batch_size=64),
  )
  train(name, config)

# %% [markdown]
# **Replays.** Each of Gorila's workers acts, replays and learns by itself; they
# share only two parameter servers, each of which holds half of the parameters.
# Ape-X's actors fill one replay, and compute the initial priorities of what
# they send. (In section 4.1 of the paper each actor has its own epsilon, here
# `epsilon_ladder=True`; in this comparison both pipelines have the same agent.)

# %%
problem["total_steps"] = 6_000
replayed = {
  "replay_capacity": 6_000,
  "replay_min_steps": 1_000,
  "replay_batch_size": 64,
  "replay_ratio": 4,
}

config = gorila.Config(
  **problem,
  agent=DQN,
  num_servers=2,
  workers=local_actor.WorkersConfig(
    num_workers=2, envs_per_worker=4, unroll_length=8
  ),
  replay=replay.Config(**replayed),
)
train("gorila", config)

config = apex.Config(
  **problem,
  agent=DQN,
  actors=protocol.Actors(num_actors=2, envs_per_actor=4),
  learner=learner.InboxConfig(unroll_length=8, batch_size=8),
  replay=replay.PrioritizedConfig(**replayed),
)
train("apex", config)

# %% [markdown]
# All of these ran on this machine, and communicated through Unix sockets.
# Between machines, a config has an `address`, and each process is started by
# its own command: `python -m seedx train seed_vtrace --role actor --address
# HOST:PORT` is an actor.

# %% [markdown]
# ## Returns
#
# Seconds count from the first update, so they exclude most of the time that JAX
# takes to compile the programs: in runs as short as these, compiling takes
# longer than the rest of the run.

# %%
import matplotlib.pyplot as plt
import numpy as np

STYLES = {
  "sync": ("#000000", "-", "o"),
  "a3c": ("#E69F00", "--", "s"),
  "impala": ("#0072B2", "-.", "^"),
  "seed": ("#D55E00", ":", "D"),
  "seed-ppo": ("#56B4E9", "-", "v"),
  "gorila": ("#009E73", "--", "P"),
  "apex": ("#CC79A7", "-.", "X"),
}
plt.rcParams.update(
  {
    "figure.dpi": 80,
    "figure.constrained_layout.use": True,
    "font.size": 17,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
  }
)

fig, axes = plt.subplots(1, 2, figsize=(12, 5.6), sharey=True)
for name, (colour, dashes, marker) in STYLES.items():
  lines = [x for x in runs[name] if x["learner_steps"] and x["episodes"]]
  steps = [line["env_steps"] / 1000 for line in lines]
  seconds = [line["wall_seconds"] - lines[0]["wall_seconds"] for line in lines]
  for ax, x in zip(axes, (steps, seconds), strict=True):
    ax.plot(
      x,
      [line["episode_return"] for line in lines],
      color=colour,
      linestyle=dashes,
      marker=marker,
      markevery=0.2,
      markersize=9,
      linewidth=2.5,
      label=name,
    )
axes[0].set(xlabel="env steps (thousands)", ylabel="episode return")
axes[1].set(xlabel="seconds")
for ax in axes:
  ax.grid(color="0.88")
  ax.set(xlim=(0, None), ylim=(0, None))
fig.legend(
  *axes[0].get_legend_handles_labels(),
  loc="outside lower center",
  ncols=4,
  handlelength=3,
)
plt.show()

# %% [markdown]
# ## Traffic, and the age of experience
#
# `wire_bytes` counts all bytes on the network. The *lag* is the number of
# updates between the parameters that acted and those that learned. For Gorila,
# whose workers learn by themselves, it is the number of updates by others while
# a gradient was computed. For Ape-X, most of the lag arises while experience is
# in the replay.

# %%
import jax


def typical(name, key):
  """The median of the lines that have it."""
  values = [x[key] for x in runs[name] if x.get(key) is not None]
  return float(np.median(values)) if values else 0.0


measured = {
  "wire bytes per env step": {
    name: runs[name][-1].get("wire_bytes", 0) / runs[name][-1]["env_steps"]
    for name in STYLES
  },
  "lag (updates)": {
    name: typical(
      name, "gradient_staleness" if name == "gorila" else "policy_lag"
    )
    for name in STYLES
  },
}
fig, axes = plt.subplots(1, 2, figsize=(12, 4.8), sharey=True)
for ax, (title, values) in zip(axes, measured.items(), strict=True):
  left = 1.0 if "bytes" in title else 0.1
  ax.set(xscale="log", xlim=(left, 10 * max(values.values())), title=title)
  ax.grid(color="0.88")
  for place, (name, value) in enumerate(values.items()):
    colour, _, marker = STYLES[name]
    end = max(value, left)  # A logarithmic axis has no 0.
    ax.plot(end, place, marker, color=colour, markersize=12, clip_on=False)
    text = f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"
    ax.annotate(
      text, (end, place), (12, 0), textcoords="offset points", va="center"
    )
axes[0].set_yticks(range(len(STYLES)), STYLES)
axes[0].tick_params(axis="y", pad=10)
axes[0].invert_yaxis()
plt.show()

spec = envs.spec(ENV)
for name, agent in {"actor-critic": VTRACE, "DQN": DQN}.items():
  params = jax.eval_shape(agent.make(spec).init, jax.random.key(0)).params
  size = sum(4 * x.size for x in jax.tree.leaves(params))
  print(f"parameters of the {name}: {size:,} bytes")
print(f"an observation: {4 * spec.observation.shape[0]} bytes")

# %% [markdown]
# This is the argument for SEED in a picture. Its traffic is proportional to the
# size of observations, and independent of the network; the traffic of the other
# pipelines grows with the network, which is tiny here. (In Atari an observation
# is 7 kB, which every learner must receive. SEED avoids the 7 MB of parameters
# that each actor of the other pipelines fetches again and again.)

# %% [markdown]
# ## What such short runs can show
#
# They show what depends only on the architecture: the traffic, the age of
# experience, and that every pipeline learns with the same agents.
#
# They do not show which pipeline is better. Each pipeline ran with one seed, on
# a problem whose observations are four numbers, on one small machine whose
# cores all processes share, and the runs are far too short. V-trace takes one
# step on each batch and PPO many, so PPO improves more per env step here; DQN
# had fewer env steps, and learned from each four times. `python -m seedx
# compare` runs experiments to the end, with several seeds and their presets;
# `docs/results.md` has its table. And one machine cannot show what each
# pipeline was made for: hundreds of actors, or an accelerator that needs large
# batches.
