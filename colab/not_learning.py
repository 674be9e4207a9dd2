# %% [markdown]
# # A run that does not learn
#
# The return stays flat, and nothing crashed. The loss is no help: in
# reinforcement learning it may fall while the policy gets worse. This notebook
# breaks CartPole in four ways that look the same from outside, and finds each
# cause in the metrics that every run writes.
#
# All runs below write `metrics.jsonl`; `app.train` returns its lines.

# %%
import dataclasses

from seedx import app, envs
from seedx.acting import protocol
from seedx.agents import a2c, ppo
from seedx.learning import learner
from seedx.pipelines import impala, sync

ENV = envs.Config("CartPole-v1")
runs = {}


def train(name, config):
  """Trains with a config, and keeps the metrics under a name."""
  run = app.train(config, quiet=True)
  # Before the first update there is nothing to see.
  runs[name] = [line for line in run.lines if line["learner_steps"]]
  print(f"{name:<20} return {run.metrics['episode_return']:>5.1f}")


def in_lock_step(**values):
  """PPO in one process, whose experience is never old."""
  few = ppo.Config(epochs=4, minibatches=4, entropy_cost=0.01).for_small()
  return sync.Config(
    env=ENV,
    agent=dataclasses.replace(few, **values),
    num_envs=32,
    learner=learner.Config(unroll_length=32),
    total_steps=60_000,
    log_seconds=0.0,  # A line for each step.
  )


# %% [markdown]
# First a run that learns, as a reference for the numbers. A random policy
# reaches about 22, the best one 500.

# %%
train("healthy", in_lock_step())

# %% [markdown]
# Next come three runs, each with one wrong number.

# %%
train("learning rate 0.1", in_lock_step(learning_rate=0.1))
train("entropy cost 3", in_lock_step(entropy_cost=3.0))
train("reward scale 100", in_lock_step(reward_scale=100.0))

# %% [markdown]
# In one more run, the architecture does not fit the loss. IMPALA's actors act
# with a copy of the parameters; small batches and a long queue make that copy
# old. A2C treats all experience as if the newest policy had acted.


# %%
def with_actors(envs_per_actor, batch_size, queue_capacity):
  """A2C with two actors; `queue_capacity` batches may wait for the learner."""
  return impala.Config(
    env=ENV,
    agent=a2c.Config(td_lambda=1.0).for_small(),
    actors=protocol.Actors(num_actors=2, envs_per_actor=envs_per_actor),
    learner=learner.InboxConfig(
      unroll_length=16, batch_size=batch_size, queue_capacity=queue_capacity
    ),
    total_steps=200_000,
    log_seconds=0.1,
  )


train("A2C on old data", with_actors(64, batch_size=8, queue_capacity=24))

# %% [markdown]
# ## The five numbers to look at
#
# | metric | question | a healthy run |
# |---|---|---|
# | `entropy` | does the policy still explore? | falls slowly from the logarithm of the number of actions, here 0.69 |
# | `approx_kl` | how far does an update move the policy? | 0.001 to 0.02 while the return rises |
# | `explained_variance` | do the values distinguish good states? | rises from 0 towards 1, until returns hardly vary |
# | `gradient_norm` | are all updates clipped? | within a few times `max_gradient_norm`, here 0.5 |
# | `policy_lag` | how old is the experience, in updates? | 0 in lock step, 1 or 2 with actors |

# %%
import matplotlib.pyplot as plt
import numpy as np

METRICS = {
  "episode_return": (0, 520),
  "entropy": (-0.02, 0.72),
  "approx_kl": (1e-5, 10),
  "explained_variance": (-1, 1.05),
  "gradient_norm": (1e-3, 1e4),
  "policy_lag": (-1, 60),
}
COLOURS = ["#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7"]
plt.rcParams.update(
  {
    "figure.dpi": 80,
    "figure.constrained_layout.use": True,
    "font.size": 15,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
  }
)


def draw(names):
  """Draws each metric of some runs against the share of the run."""
  fig, axes = plt.subplots(2, 3, figsize=(12, 7), sharex=True)
  for ax, (metric, limits) in zip(axes.flat, METRICS.items(), strict=True):
    for name, colour in zip(names, COLOURS, strict=False):
      lines = [x for x in runs[name] if x.get(metric) is not None]
      share = [x["env_steps"] / lines[-1]["env_steps"] for x in lines]
      values = [x[metric] for x in lines]
      ax.plot(share, values, color=colour, linewidth=2, label=name)
    scale = "log" if metric in ("approx_kl", "gradient_norm") else "linear"
    ax.set(title=metric, yscale=scale, ylim=limits, xlim=(0, 1))
    ax.grid(color="0.9")
  axes[1, 1].set_xlabel("share of the run")
  fig.legend(
    *axes[0, 0].get_legend_handles_labels(),
    loc="outside lower center",
    ncols=3,
  )
  plt.show()


draw(runs)

# %% [markdown]
# The same in numbers: medians over the first, the middle and the last tenth of
# each run.


# %%
def typical(metric, lines):
  """The median over some lines of a run, in words; "-" if not logged."""
  values = [line[metric] for line in lines if line.get(metric) is not None]
  value = np.median(values) if values else np.nan
  return "-" if np.isnan(value) else f"{value:.{0 if value > 9 else 3}f}"


def table(names):
  """Prints each metric at the start, in the middle and at the end of runs."""
  print(" " * 19, *(f"{metric:>19}" for metric in METRICS))
  for name in names:
    lines = runs[name]
    tenth = -(-len(lines) // 10)
    middle = (len(lines) - tenth) // 2
    parts = lines[:tenth], lines[middle : middle + tenth], lines[-tenth:]
    cells = (
      " ".join(typical(metric, part) for part in parts) for metric in METRICS
    )
    print(f"{name:<19}", *(f"{cell:>19}" for cell in cells))


table(runs)

# %% [markdown]
# ## Reading them
#
# **Learning rate 0.1.** `entropy` is 0 within the first updates: the policy
# always takes the same action, and no experience can improve it. A return of 9,
# *below* that of a random policy, is typical of this. The picture of
# `approx_kl` shows the cause: the first updates moved the policy far beyond
# PPO's clipping range, and nothing has moved since. The values, meanwhile, are
# excellent, because it is easy to predict that every episode is short. So a
# high `explained_variance` alone is not a good sign.
#
# **Entropy cost 3.** `entropy` stays at its initial value. This has two
# possible causes, and the other metrics distinguish them. Here the values do
# learn and `gradient_norm` is normal, so something is learned, but the bonus
# for random actions outweighs the advantages.
#
# **Reward scale 100.** `entropy` stays at its initial value, too, but
# `explained_variance` stays at 0 and `gradient_norm` is thousands of times the
# norm at which gradients are clipped. The values would have to reach 10,000.
# Each update is clipped to the same small length, nearly all of which changes
# the values; almost nothing is left for the policy.
#
# **A2C on old data.** This looks like the first run, down to the return of 9.
# But its learning rate is the default, and only `policy_lag` differs:
# experience is more than 30 updates old. A2C's gradient is correct only for
# actions of the newest policy.
#
# (Near its end, the healthy run's `explained_variance` falls as well: when most
# episodes are long, returns hardly vary, and there is little to explain. Its
# `approx_kl` falls to 0 with its learning rate.)

# %% [markdown]
# ## Repairing the last one
#
# Fewer environments, larger batches and a shorter queue make experience
# younger. The agent stays the same.

# %%
train("A2C on new data", with_actors(32, batch_size=32, queue_capacity=1))
draw(["A2C on old data", "A2C on new data"])
table(["A2C on old data", "A2C on new data"])

# %% [markdown]
# With actors, experience is always a little old. V-trace, the default of IMPALA
# and SEED, corrects for this: it reduces the weight of actions that have become
# unlikely. Its `effective_sample_size` is the share of a batch that remains. If
# experience is more than 30 updates old, this share is small, and V-trace may
# fail as A2C does.
#
# ## In this order
#
# 1. Is the *return* what you expect? `evaluate --video` shows an episode.
# 2. `policy_lag` above 5 without a replay: correct the architecture first.
# 3. `gradient_norm` and `explained_variance`: set `--reward-scale` so that
#    scaled returns are near 1 to 10.
# 4. `entropy` is soon 0: less `--learning-rate`, more `--entropy-cost`. It
#    stays at its initial value: less `--entropy-cost`, more `--learning-rate`.
# 5. `approx_kl` above 0.05: less `--learning-rate`, fewer `--epochs`.
# 6. Change one setting, run three seeds, and compare with the healthy run.
#
# `docs/trouble.md` has a table of symptoms, including those of DQN. TensorBoard
# groups the same numbers as `episode/`, `loss/`, `policy/`, `replay/`, `time/`
# and `run/`.
