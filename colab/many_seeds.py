# %% [markdown]
# # Ten seeds in a minute
#
# One run is weak evidence: with another seed, the same settings may need twice
# the time, or fail. If the environment is a JAX function, one program can train
# many times at once. This is the pipeline `anakin` ([Hessel et al.
# 2021](https://arxiv.org/abs/2104.06272)): environments, acting and learning
# run together on the device, and `--num-seeds` maps the program over seeds ([Lu
# et al. 2022](https://arxiv.org/abs/2210.05639)).

# %% [markdown]
# ## Ten trainings, one command
#
# PPO on CartPole, ten seeds, 300,000 env steps each. The time includes JAX's
# start and the compilation.

# %%
import time

start = time.monotonic()
# !{sys.executable} -m seedx train anakin_ppo --env seedx:CartPole-v1 \
#   --num-seeds 10 --total-steps 300000 --run-dir runs/ten --quiet
print(f"ten seeds in {time.monotonic() - start:.0f} seconds")

# %% [markdown]
# All ten are in one run directory. Each line of `metrics.jsonl` has the return
# of each seed and their mean.

# %%
from seedx import metrics

lines = metrics.read_lines("runs/ten/metrics.jsonl")
for key, value in lines[-1].items():
  if key.startswith("episode_return"):
    print(f"{key:<24}{value:>7.1f}")

# %% [markdown]
# `plot` draws each seed as a faint line, their interquartile mean, and its 95%
# bootstrap interval, as [rliable](https://arxiv.org/abs/2108.13264) does.

# %%
# !{sys.executable} -m seedx plot runs/ten --output ten.png

# %%
from IPython.display import Image

Image("ten.png", width=600)

# %% [markdown]
# ## A study of a hyper-parameter
#
# Five values of GAE's lambda with eight seeds each, from Python: forty
# trainings. `app.train` accepts the config of any pipeline.

# %%
from seedx import app, envs
from seedx.agents import ppo
from seedx.learning import learner
from seedx.pipelines import anakin

SEEDS = 8


def train(td_lambda):
  """Trains with all seeds; returns the return of each."""
  config = anakin.Config(
    env=envs.Config("seedx:CartPole-v1"),
    agent=ppo.Config(td_lambda=td_lambda, epochs=4, minibatches=4).for_small(),
    num_envs=64,
    num_seeds=SEEDS,
    total_steps=100_000,
    learner=learner.Config(unroll_length=32),
  )
  last = app.train(config, quiet=True).metrics
  return [last[f"{metrics.OF_SEED}{k}"] for k in range(SEEDS)]


start = time.monotonic()
returns_of = {value: train(value) for value in (0.0, 0.5, 0.9, 0.95, 1.0)}
print(
  f"{SEEDS * len(returns_of)} seeds in {time.monotonic() - start:.0f} seconds"
)

# %% [markdown]
# The interval shows which differences are more than chance.

# %%
import numpy as np

from seedx.app.runs import statistics

print("lambda  interquartile mean  95% interval    worst seed")
for value, returns in returns_of.items():
  summary = statistics.summary(np.array(returns))
  print(
    f"{value:>6}{summary['iqm']:>20.1f}  {summary['iqm_low']:>5.1f} to"
    f" {summary['iqm_high']:>5.1f}{min(returns):>12.1f}"
  )

# %%
import matplotlib.pyplot as plt

plt.rcParams.update({"figure.dpi": 80, "font.size": 17})
fig, ax = plt.subplots(figsize=(8, 4.8), layout="constrained")
for place, returns in enumerate(returns_of.values()):
  ax.plot([place] * SEEDS, returns, "o", color="#0072B2", alpha=0.4)
  mean, low, high = (
    statistics.summary(np.array(returns))[x]
    for x in ("iqm", "iqm_low", "iqm_high")
  )
  ax.errorbar(
    place + 0.15, mean, [[mean - low], [high - mean]], color="#D55E00", fmt="D"
  )
ax.set_xticks(range(len(returns_of)), returns_of)
ax.set(xlabel="lambda of GAE", ylabel="episode return after 100,000 env steps")
ax.spines[["top", "right"]].set_visible(False)
ax.set_ylim(0, None)
plt.show()

# %% [markdown]
# Each training computes what it would compute alone: seed 3 of ten is the run
# of `--seed 3`, up to rounding. An accelerator has room for more trainings; on
# two CPU cores, 16 trainings cost 12 times as much as one. To search over many
# settings, `python -m seedx sweep` accepts any experiment.
