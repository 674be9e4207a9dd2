# %% [markdown]
# # Quickstart
#
# Train a policy, read the run's metrics, watch an episode, resume the run, and
# export the policy as a function that needs only JAX. Each step is a shell
# command, in a line that begins with `!`.

# %% [markdown]
# ## Train
#
# `seed_vtrace` is the SEED architecture ([Espeholt et al.
# 2019](https://arxiv.org/abs/1910.06591)). Actor processes only step
# environments. They stream observations to one learner process, which computes
# the actions of all of them in large batches, assembles unrolls, and learns
# from these with V-trace. Here 2 actors with 128 CartPoles each run on the CPUs
# of this machine, for 400,000 env steps.

# %%
# !{sys.executable} -m seedx train seed_vtrace --env CartPole-v1 \
#   --total-steps 400000 --run-dir runs/cartpole

# %% [markdown]
# `python -m seedx train` lists the experiments. Every option has a line of help
# and a default that suits the kind of environment: `python -m seedx train
# seed_vtrace --env Pong-v5 --help`. A run writes everything into its directory.

# %%
# !ls -1 --ignore="events*" runs/cartpole

# %% [markdown]
# ## Read the metrics
#
# `metrics.jsonl` has one line for every half second.

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
# The policy lag is the number of updates between choosing an action and
# learning from its result. It is not zero, because actors do not wait for the
# learner; V-trace corrects for it.
#
# Which part should be made faster? Every wait is measured, as a share of the
# time since the previous line. A part that waits is faster than
# the part that it waits for.

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
# If the environments are the bottleneck, increase `--num-actors` or
# `--envs-per-actor`; for the learner, `--learner-devices` or `--batch-size`;
# for inference, `--inference-devices`.

# %% [markdown]
# ## Evaluate and watch
#
# The returns above are from training, where actions are sampled from the
# policy. `evaluate` loads the run's checkpoint, plays whole episodes from new
# initial states with the most likely action at each step, and records a video
# of one episode.

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
# ## Resume
#
# The checkpoint contains everything that changes during training: parameters,
# the optimizer's state, counters and random keys. `--resume` continues from the
# newest checkpoint, with the options of the run; `--total-steps` may be larger.
# The learning rate falls to 0 over the run, so it continues at the value that
# it would have in a run of the new length.

# %%
# !{sys.executable} -m seedx train seed_vtrace \
#   --resume runs/cartpole --total-steps 700000

# %% [markdown]
# ## Plot
#
# `plot` draws any number of runs, in groups. Runs that differ only in their
# seed become one line with its interval. (The line is flat against time while
# the resumed run compiles its programs.)

# %%
# !{sys.executable} -m seedx plot runs/cartpole --output plot.png

# %%
Image("plot.png", width=600)

# %% [markdown]
# ## Export the policy
#
# `export` writes the greedy policy with its parameters as
# [StableHLO](https://docs.jax.dev/en/latest/export/export.html): a file that
# runs without seedx and Flax, on CPU, GPU or TPU, in batches of any size. (In
# Python, with seedx, `app.load` returns the same policy; [bring your
# own](bring_your_own.ipynb) draws one.)

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
# The function takes a batch of time steps and the policy's memory, and returns
# actions and the next memory. Here it plays eight CartPoles of Gymnasium,
# without seedx.

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
# Next: [the losses](losses.ipynb), one by one; [the pipelines](pipelines.ipynb)
# and their history; [bring your own](bring_your_own.ipynb) environment, loss
# and network.
