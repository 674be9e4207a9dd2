# %% [markdown]
# # The pipelines
#
# Five years of distributed reinforcement learning, as programs: where inference
# ran, what crossed the network, and how gradients reached the parameters. In
# seedx the agents, losses and environments stay the same, and each architecture
# is one short file that wires up the same parts. This notebook tells what they
# were, runs each on the same small problem, and compares what can be compared.
#
# | | when | who | what crossed the network |
# |---|---|---|---|
# | [Gorila](https://arxiv.org/abs/1507.04296) | July 2015 | Nair et al., Google DeepMind | gradients to sharded parameter servers, parameters back, as in [DistBelief](https://research.google/pubs/large-scale-distributed-deep-networks/) (Dean et al. 2012) |
# | [A3C](https://arxiv.org/abs/1602.01783) | February 2016 | Mnih et al., Google DeepMind | nothing: threads of one machine share the parameters |
# | [A2C](https://arxiv.org/abs/1708.05144) | August 2017 | Wu et al.; OpenAI Baselines | nothing: one process, in lock step and in one batch |
# | [IMPALA](https://arxiv.org/abs/1802.01561) | February 2018 | Espeholt et al., DeepMind | unrolls to the learner, parameters back |
# | [Ape-X](https://arxiv.org/abs/1803.00933) | March 2018 | Horgan et al., DeepMind | transitions with priorities to one replay, parameters back |
# | [SEED](https://arxiv.org/abs/1910.06591) | October 2019 | Espeholt et al., Google Research | observations to the learner, actions back |
# | PPO at scale: [DD-PPO](https://arxiv.org/abs/1911.00357), [OpenAI Five](https://arxiv.org/abs/1912.06680) | November, December 2019 | Wijmans et al., Berner et al. | gradients between learners, all-reduced in lock step; at OpenAI also experience and parameters |
#
# Two lines run through it. *Who computes the gradient* moved from the workers
# (Gorila, A3C) to one learner with accelerators (all that came later). And
# *what is sent* became less and less bound to the network's size: gradients and
# parameters, then only parameters, then, with SEED, neither. Each file opens
# with the drawing of its paper.

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
# `seed`: the same network, and V-trace, which is A2C's loss where nothing is
# old, and corrects where something is. PPO goes through `seed` too. DQN, with
# its replay, is what Gorila and Ape-X were made for.

# %%
import tempfile
import time

import matplotlib.pyplot as plt
import numpy as np

from seedx import envs, launch
from seedx.agents import base, dqn, ppo, vtrace
from seedx.runtime import feeds

ENV = envs.Config("CartPole-v1")
STEPS = {"actor-critic": 120_000, "dqn": 20_000}
common = {"learning_rate": 2e-3, "reward_scale": 0.1}
make_vtrace = base.Maker(vtrace.make, vtrace.Config(**common, lambda_=0.95))
make_ppo = base.Maker(ppo.make, ppo.Config(**common, entropy_cost=0.005))
make_dqn = base.Maker(
  dqn.make,
  dqn.Config(
    learning_rate=1e-3,
    reward_scale=0.1,
    max_gradient_norm=10.0,
    n_step=3,
    target_period=50,
    epsilon_end=0.02,
    epsilon_decay_updates=200,
  ),
)

# %% [markdown]
# A run is a config; nodes, which are launched as processes beside this one; and
# the part that learns or counts, whose `run` blocks until it is done and gives
# lines of metrics to what it was handed. That is all that an experiment does.

# %%
runs = {}


class Lines(list):
  """Keeps the lines of metrics."""

  write = list.append

  def close(self):
    """Has nothing to close."""


def run(name, main, config, nodes=()):
  """Runs a pipeline, and keeps its metrics under a name."""
  start, lines = time.monotonic(), Lines()
  processes = launch.Processes(list(nodes))  # They wait for the main one.
  try:
    own = main(config, [lines])
    last = own.run(processes.check)
  finally:
    processes.stop()
  runs[name] = lines
  print(
    f"{name:<12} return {last['episode_return']:>5.1f} after"
    f" {last['env_steps']:>7,} env steps, {last['wall_seconds']:>4.1f} s"
    f" ({time.monotonic() - start:.0f} s with its processes' start)"
  )


sockets = tempfile.TemporaryDirectory()


def address(name):
  """A Unix socket; between machines it would be HOST:PORT."""
  return f"unix:{sockets.name}/{name}"


problem = {
  "env": ENV,
  "seed": 0,
  "total_steps": STEPS["actor-critic"],
  "log_seconds": 0.25,
}

# %% [markdown]
# **One machine.** `sync` acts, then learns, then acts: nothing is ever old. In
# `a3c` four threads do that each for themselves, and none waits for another.

# %%
run(
  "sync",
  sync.Trainer,
  sync.Config(**problem, make_agent=make_vtrace, num_envs=64, unroll_length=16),
)
run(
  "a3c",
  a3c.Trainer,
  a3c.Config(
    **problem,
    make_agent=make_vtrace,
    num_workers=4,
    envs_per_worker=16,
    unroll_length=16,
  ),
)

# %% [markdown]
# **Actors and a learner.** The same 64 environments in 2 actor processes. Those
# of `impala` act by themselves, with a copy of the parameters that they fetch
# between unrolls; those of `seed` ask for every action. PPO goes through the
# second as V-trace does.

# %%
actors = problem | {"num_actors": 2, "envs_per_actor": 32, "batch_size": 64}

config = impala.Config(
  **actors,
  make_agent=make_vtrace,
  address=address("impala"),
  unroll_length=16,
)
run("impala", impala.Learner, config, [impala.actors(config)])

for name, make_agent in {"seed": make_vtrace, "seed-ppo": make_ppo}.items():
  config = seed.Config(
    **actors,
    make_agent=make_agent,
    address=address(name),
    actor_batch_size=32,
    unroll_length=16,
  )
  run(name, seed.Learner, config, [seed.actors(config)])

# %% [markdown]
# **Replays.** Gorila's workers act, replay and learn each for themselves, and
# meet only at two parameter servers, each of which holds half of the
# parameters. Ape-X's actors fill one replay, and say what in it is worth
# learning from. (There each actor has its own share of random actions, which
# would be `epsilon_ladder=True`; here both pipelines get the same agent.)

# %%
problem["total_steps"] = STEPS["dqn"]
replay = {"capacity": 20_000, "min_steps": 1_000, "batch_size": 64, "ratio": 4}

config = gorila.Config(
  **problem,
  make_agent=make_dqn,
  address=address("gorila"),
  server_addresses=[address("server-0"), address("server-1")],
  num_workers=2,
  envs_per_worker=4,
  unroll_length=8,
  replay=feeds.ReplayConfig(**replay),
  max_gradient_norm=10.0,
)
nodes = [*gorila.servers(config), gorila.workers(config)]
run("gorila", gorila.Coordinator, config, nodes)

config = apex.Config(
  **problem,
  make_agent=make_dqn,
  address=address("apex"),
  num_actors=2,
  envs_per_actor=4,
  unroll_length=8,
  batch_size=8,
  replay=feeds.PrioritizedConfig(**replay),
)
run("apex", apex.Learner, config, [apex.actors(config)])

# %% [markdown]
# ## What they reached
#
# Seconds count from the first observation, and include the time that JAX takes
# to compile the program: in runs as short as these, a good part of them.

# %%
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
  known = [x for x in runs[name] if x["episode_return"] is not None]
  returns = [x["episode_return"] for x in known]
  for ax, key, unit in zip(
    axes, ("env_steps", "wall_seconds"), (1000, 1), strict=True
  ):
    ax.plot(
      [x[key] / unit for x in known],
      returns,
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
# ## What crossed the network, and how old things were
#
# `wire_bytes` is all that crossed. The *lag* is how many updates older the
# parameters that acted were than those that learned; with Gorila, whose workers
# learn by themselves, how many updates others made while a gradient was
# computed; with Ape-X, most of it is the time that experience lies in the
# replay.

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
  for place, (name, value) in enumerate(values.items()):
    ax.barh(place, value, color=STYLES[name][0])
    text = f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"
    end = (max(value, left), place)
    ax.annotate(text, end, (6, 0), textcoords="offset points", va="center")
axes[0].set_yticks(range(len(STYLES)), STYLES)
axes[0].invert_yaxis()
plt.show()

spec = envs.spec(ENV)
for name, maker in {"actor-critic": make_vtrace, "DQN": make_dqn}.items():
  params = jax.eval_shape(maker(spec, None).init, jax.random.key(0)).params
  size = sum(4 * x.size for x in jax.tree.leaves(params))
  print(f"parameters of the {name}: {size:,} bytes")
print(f"an observation: {4 * spec.observation.shape[0]} bytes")

# %% [markdown]
# That is the argument for SEED in a picture. Its bytes are those of the
# observations, whatever the size of the network; those of the others grow with
# the network, which is tiny here. (In Atari an observation is 7 kB, which every
# learner needs to be sent; what SEED saves is the 7 MB of parameters that each
# actor of the others fetches, again and again.)

# %% [markdown]
# ## What such short runs can show, and what not
#
# They do show what depends on the wiring alone: what crosses the network, how
# old experience is, that every pipeline learns with the same agents.
#
# They do not show which is better. This is one seed each, on a problem of four
# numbers, on one small machine whose cores all the processes share, and stopped
# long before the end. V-trace takes one step on each batch and PPO many, so PPO
# gets further per env step here; DQN had fewer env steps, and learned from each
# four times. `python -m experiments.compare` runs experiments to the end, with
# several seeds and each with its presets; the README has its table. And on one
# machine no pipeline can show what it was made for: hundreds of actors, or an
# accelerator that waits for its batches.
