# %% [markdown]
# # A population on one core
#
# Which learning rate is right? In population-based training ([Jaderberg et al.
# 2017](https://arxiv.org/abs/1711.09846)) eight agents learn at once, each with
# a rate of its own. From time to time the worst copy one of the best and change
# their rate. If the environment is a JAX function, the whole population is one
# program: the pipeline `anakin` with `--members`.

# %% [markdown]
# ## Eight members, one command
#
# A2C plays Catch: a paddle catches a falling ball, for a return of 1 or -1. The
# rates are drawn from 1e-5 to 1e-1, uniformly in their logarithm.

# %%
import time

start = time.monotonic()
# !{sys.executable} -m seedx train anakin_ppo --agent a2c --env seedx:Catch \
#   --members 8 --vary "learning_rate=log:1e-5..1e-1" --ready-steps 25600 \
#   --num-envs 16 --unroll-length 20 --updates-per-call 10 \
#   --learning-rate-end 1 --log-seconds 0.05 --total-steps 300000 \
#   --run-dir runs/population --quiet
print(f"eight members in {time.monotonic() - start:.0f} seconds")

# %% [markdown]
# Each line of `metrics.jsonl` has the return and the rate of each member, and
# its parent: the member that had its parameters at the line before.

# %%
from seedx import metrics

lines = metrics.read_lines("runs/population/metrics.jsonl")
print("member  first rate  last rate  return")
for k in range(8):
  rate = f"{metrics.OF_MEMBER}{k}_learning_rate"
  print(
    f"{k:>6}{lines[0][rate]:>12.1e}{lines[-1][rate]:>11.1e}"
    f"{lines[-1][f'{metrics.OF_SEED}{k}']:>8.2f}"
  )

# %%
for line in lines:
  for k in range(8):
    parent = line[f"{metrics.OF_MEMBER}{k}_parent"]
    if parent != k:
      print(f"{line['env_steps']:>7} env steps: member {k} copied {parent}")

# %% [markdown]
# ## Lineage and schedules
#
# A colour stands for the member whose first parameters others have inherited. A
# line between two members is a copy.

# %%
# !{sys.executable} -m seedx plot runs/population --lineage \
#   --output population.png

# %%
from IPython.display import Image

Image("population.png", width=700)

# %% [markdown]
# ## Beside random search
#
# With `exploit="none"` the members keep their rates. This is random search with
# the same first draws and the same number of env steps.

# %%
import matplotlib.pyplot as plt
import numpy as np

from seedx import app, envs
from seedx.agents import a2c
from seedx.learning import learner
from seedx.pipelines import anakin
from seedx.pipelines.anakin import population


def train(exploit):
  """Trains a population; returns the last return of each member."""
  config = anakin.Config(
    env=envs.Config("seedx:Catch"),
    agent=a2c.Config(reward_scale=1.0, learning_rate_end=1.0),
    num_envs=16,
    seed=16,
    total_steps=300_000,
    updates_per_call=10,
    learner=learner.Config(unroll_length=20),
    population=population.Config(
      members=8,
      vary={"learning_rate": "log:1e-5..1e-1"},
      ready_steps=25_600,
      exploit=exploit,
    ),
  )
  last = app.train(config, quiet=True).metrics
  return sorted(last[f"{metrics.OF_SEED}{k}"] for k in range(16, 24))


returns_of = {
  "population": train("truncation"),
  "random search": train("none"),
}
for name, returns in returns_of.items():
  print(f"{name}: median {np.median(returns):.2f}, best {max(returns):.2f}")

# %%
plt.rcParams.update({"figure.dpi": 80, "font.size": 17})
fig, ax = plt.subplots(figsize=(8, 4.2), layout="constrained")
for marker, (name, returns) in zip("os", returns_of.items(), strict=True):
  ax.plot(range(1, 9), returns, marker=marker, label=name)
ax.set(xlabel="members, the worst first", ylabel="episode return")
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# `python -m seedx population EXPERIMENT` does the same with runs of any
# experiment, on this machine or on a cluster: [populations](../docs/populations.md).
