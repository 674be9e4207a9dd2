# %% [markdown]
# # A run that does not learn
#
# The return stays flat. Nothing crashed, and the loss says little: in
# reinforcement learning it may fall while the policy gets worse. This notebook
# breaks CartPole in four ways, each of which looks the same from outside, and
# finds each cause in the metrics that every run writes.
#
# All runs below write `metrics.jsonl`; `app.train` returns its lines.

# %%
from seedx import app, envs
from seedx.acting import protocol
from seedx.agents import a2c, ppo
from seedx.learning import learner
from seedx.pipelines import impala, sync

ENV = envs.Config("CartPole-v1")
runs = {}


def train(name, config):
  """Trains what a config says, and keeps its metrics under a name."""
  run = app.train(config, quiet=True)
  # Before the first update there is nothing to see.
  runs[name] = [line for line in run.lines if line["learner_steps"]]
  print(f"{name:<20} return {run.metrics['episode_return']:>5.1f}")


def in_lock_step(**values):
  """PPO in one process, whose experience is never old."""
  few = {"epochs": 4, "minibatches": 4, "entropy_cost": 0.01}
  return sync.Config(
    env=ENV,
    agent=ppo.Config(**few | values),
    num_envs=32,
    learner=learner.Config(unroll_length=32),
    total_steps=60_000,
    log_seconds=0.0,  # A line for each step.
  )


# %% [markdown]
# First one that does learn: without it, nobody knows what a number should be.
# A policy that acts at random reaches about 22, the best one 500.

# %%
train("healthy", in_lock_step())

# %% [markdown]
# Then three with one number wrong.

# %%
train("learning rate 0.1", in_lock_step(learning_rate=0.1))
train("entropy cost 3", in_lock_step(entropy_cost=3.0))
train("reward scale 100", in_lock_step(reward_scale=100.0))

# %% [markdown]
# And one whose wiring is wrong for its loss. IMPALA's actors act with a copy of
# the parameters; small batches and a long queue make that copy old. A2C takes
# all experience for its own.


# %%
def with_actors(envs_per_actor, batch_size, queue_capacity):
  """A2C by two actors; so many batches may wait for the learner."""
  return impala.Config(
    env=ENV,
    agent=a2c.Config(td_lambda=1.0),
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
# | metric | asks | a healthy run |
# |---|---|---|
# | `entropy` | does the policy still try things? | falls slowly from the logarithm of the number of actions, here 0.69 |
# | `approx_kl` | how far does an update move the policy? | 0.001 to 0.02 while the return rises |
# | `explained_variance` | do the values know which states are good? | rises from 0 towards 1, until returns hardly vary |
# | `gradient_norm` | are all updates clipped? | within a few times `max_gradient_norm`, here 0.5 |
# | `policy_lag` | how many updates old is the experience? | 0 in lock step, 1 or 2 with actors |

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
# The same as numbers: medians over the first, the middle and the last tenth of
# each run.


# %%
def typical(metric, lines):
  """The median over some lines of a run, in words; "-" if not logged."""
  values = [line[metric] for line in lines if line.get(metric) is not None]
  value = np.median(values) if values else np.nan
  return "-" if np.isnan(value) else f"{value:.{0 if value > 9 else 3}f}"


def table(names):
  """Prints how each metric began, was in the middle, and ended."""
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
# always does the same, and no experience can ever tell it better. The return of
# 9 is *below* that of a random policy, which is the mark of it. `approx_kl` says
# who did it, in the picture: the very first updates moved the policy far beyond
# PPO's clipping range, and since then nothing moves. The values, meanwhile, are excellent: to predict
# that every episode is short is easy. A high `explained_variance` alone is no
# good sign.
#
# **Entropy cost 3.** `entropy` stays where it began. There are two causes of
# that, and the others tell them apart: here the values do learn, and
# `gradient_norm` is as usual, so that something is learned, but the bonus for
# acting at random outweighs the advantages.
#
# **Reward scale 100.** `entropy` stays where it began, too, but
# `explained_variance` stays at 0 and `gradient_norm` is thousands of times the
# norm at which gradients are clipped. The values would have to reach 10,000;
# each update is clipped to the same small length, nearly all of it for the
# values, and the policy gets what is left: nothing.
#
# **A2C on old data.** It looks like the first, down to the return of 9. But its
# learning rate is the default, and `policy_lag` is the only number that
# differs: experience is more than 30 updates old. A2C's gradient is only right for
# what the newest policy did.
#
# (Near its end, the healthy run's `explained_variance` falls as well: when most
# episodes are long, returns hardly vary, and there is little to explain. Its
# `approx_kl` goes to 0 since its learning rate does.)

# %% [markdown]
# ## Mending the last one
#
# Fewer environments, larger batches and a shorter queue make experience younger.
# The agent stays as it was.

# %%
train("A2C on new data", with_actors(32, batch_size=32, queue_capacity=1))
draw(["A2C on old data", "A2C on new data"])
table(["A2C on old data", "A2C on new data"])

# %% [markdown]
# Some age is left with any actors. V-trace corrects for it, and is the default
# of IMPALA and SEED: it weighs down what has become unlikely. Its
# `effective_sample_size` is the share of a batch that is left. At more than 30
# updates that is little, and it may fail as A2C does.
#
# ## In this order
#
# 1. Is the *return* what you think? `evaluate --video` shows what it does.
# 2. `policy_lag`: above 5 without a replay, mend the wiring first.
# 3. `gradient_norm` and `explained_variance`: set `--reward-scale` so that
#    scaled returns are near 1 to 10.
# 4. `entropy` at once 0: less `--learning-rate`, more `--entropy-cost`. At its
#    start for long: less `--entropy-cost`, more `--learning-rate`.
# 5. `approx_kl` above 0.05: less `--learning-rate`, fewer `--epochs`.
# 6. Change one thing, run three seeds, and look at the healthy run again.
#
# `docs/trouble.md` has a table of symptoms, with DQN's. In TensorBoard the same
# numbers are grouped as `episode/`, `loss/`, `policy/`, `replay/`, `time/` and
# `run/`.
