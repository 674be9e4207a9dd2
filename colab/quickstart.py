# %% [markdown]
# # Quickstart
#
# Train a policy, read what the run measured, watch it play, resume the run, and
# take the policy away as a function that JAX alone can call. Everything is a
# command that you could type into a shell; a line that begins with `!` is one.

# %% [markdown]
# ## Train
#
# `seed_vtrace` is the SEED architecture
# ([Espeholt et al. 2019](https://arxiv.org/abs/1910.06591)): actor processes
# step environments and nothing else. They stream observations to one learner
# process, which acts for all of them in large batches, assembles unrolls and
# learns from these by V-trace. Here 2 actors with 128 CartPoles each run on
# the CPUs of this machine, for 400,000 env steps.

# %%
# !{sys.executable} -m seedx train seed_vtrace --env CartPole-v1 \
#   --total-steps 400000 --run-dir runs/cartpole

# %% [markdown]
# `python -m seedx train` lists the experiments. Every option has a default that
# suits the kind of environment, and a line of help:
# `python -m seedx train seed_vtrace --env Pong-v5 --help`. A run leaves
# everything in its directory.

# %%
# !ls -1 --ignore="events*" runs/cartpole

# %% [markdown]
# ## Read what it measured
#
# `metrics.jsonl` has a line every half second.

# %%
from seedx import metrics

lines = metrics.read_lines("runs/cartpole/metrics.jsonl")
print("  seconds  env steps  return  env steps/s  policy lag")
for line in lines:
  if line["episode_return"] and line["policy_lag"]:
    print(
      f"{line['wall_seconds']:>9.1f}"
      f"{line['env_steps']:>11,}"
      f"{line['episode_return']:>8.1f}"
      f"{line['steps_per_second']:>13,.0f}"
      f"{line['policy_lag']:>12.1f}"
    )

# %% [markdown]
# The policy lag says how many updates old the acting parameters were when what
# is learned from was acted: not zero, for nobody waits here, and V-trace
# corrects for it.
#
# Which side should be made faster? Every wait is timed, as a share of the time
# since the line before, and whoever waits, waits for somebody slower.

# %%
fastest = max(lines, key=lambda line: line["steps_per_second"])
for name, meaning in {
  "acting_wait_environments": "inference waits for observations",
  "acting_wait_learner": "inference waits: the queue of unrolls is full",
  "acting_wait_device": "inference waits for the device to act",
  "learning_wait_experience": "the learner waits for unrolls",
}.items():
  print(f"{fastest[name]:>5.0%}  {meaning}")
print(f"bottleneck: {metrics.bottleneck(fastest)}")
observed = fastest["wire_bytes"] / fastest["env_steps"]
print(f"{observed:.1f} bytes crossed the network per env step")

# %% [markdown]
# If the environments were the bottleneck, `--num-actors` or `--envs-per-actor`
# would help; if it were the learner, `--learner-devices` or a larger
# `--batch-size`; and for inference, `--inference-devices`.

# %% [markdown]
# ## Evaluate and watch
#
# The returns above are those of training, where actions are drawn at random
# from the policy. `evaluate` loads the run's checkpoint, plays whole episodes
# with the best action of each step, from starts that were not trained on, and
# films one.

# %%
# !{sys.executable} -m seedx evaluate runs/cartpole \
#   --episodes 16 --video cartpole.gif

# %%
from IPython.display import Image
from PIL import Image as Pillow

with Pillow.open("cartpole.gif") as film:  # Every fourth frame, half the size.
  frames = []
  for i in range(0, min(film.n_frames, 240), 4):
    film.seek(i)
    frames.append(film.convert("P").resize((film.width // 2, film.height // 2)))
frames[0].save(
  "small.gif", save_all=True, append_images=frames[1:], duration=120, loop=0
)
Image("small.gif")

# %% [markdown]
# ## Go on
#
# The checkpoint holds all that evolves: parameters, the optimizer's state,
# counters and random keys. `--resume` goes on from the newest one, with the
# options that the run began with; `--total-steps` may be larger. The learning
# rate falls to 0 over the run, so it goes on from where a run of the new length
# would have it.

# %%
# !{sys.executable} -m seedx train seed_vtrace \
#   --resume runs/cartpole --total-steps 700000

# %% [markdown]
# ## Plot
#
# `plot` draws any number of runs, grouped by what sets them apart. Runs that
# differ in their seed alone become one line with its interval. (Where the line
# is flat against time, the resumed run was compiling its programs.)

# %%
# !{sys.executable} -m seedx plot runs/cartpole --output plot.png

# %%
Image("plot.png", width=600)

# %% [markdown]
# ## Take the policy away
#
# `export` writes the greedy policy as
# [StableHLO](https://docs.jax.dev/en/latest/export/export.html), parameters
# included: a file that needs neither seedx nor Flax to run, on CPU, GPU or TPU
# and in batches of any size. (In Python, with seedx, `app.load` gives the same
# policy; [bring your own](bring_your_own.ipynb) draws one.)

# %%
# !{sys.executable} -m seedx export runs/cartpole --output policy

# %%
import json
import pathlib

import jax.export
import numpy as np

policy = jax.export.deserialize(
  bytearray(pathlib.Path("policy.stablehlo").read_bytes())
)
takes = json.loads(pathlib.Path("policy.json").read_text())
print("takes observations", takes["timestep"]["observation"])
print("gives actions", takes["action"])

# %% [markdown]
# It maps a batch of time steps, and what it remembers, to actions and what it
# then remembers. Here it plays eight CartPoles of Gymnasium, none of which
# seedx knows of.

# %%
import gymnasium

BATCH = 8
games = gymnasium.make_vec("CartPole-v1", BATCH)
observation, _ = games.reset(seed=0)
reward = np.zeros(BATCH, np.float32)
alive = np.ones(BATCH, bool)
step_type = np.zeros(BATCH, np.uint8)  # 0: the first step of an episode.
memory = [np.zeros((BATCH, *x["shape"]), x["dtype"]) for x in takes["memory"]]
total = np.zeros(BATCH)
while alive.any():
  timestep = {
    "observation": observation,
    "reward": reward,
    "discount": np.ones(BATCH, np.float32),
    "step_type": step_type,
  }
  action, memory = policy.call(timestep, memory)
  observation, reward, terminated, truncated, _ = games.step(np.asarray(action))
  reward = reward.astype(np.float32)
  step_type = np.ones(BATCH, np.uint8)  # 1: a step in the middle.
  total += reward * alive
  alive &= ~(terminated | truncated)
print("returns:", total.tolist())

# %% [markdown]
# Next: [the losses](losses.ipynb), one by one;
# [the pipelines](pipelines.ipynb), and how the field came to them;
# [bring your own](bring_your_own.ipynb) environment, loss and network.
