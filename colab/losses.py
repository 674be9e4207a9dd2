# %% [markdown]
# # The losses
#
# `seedx.losses` needs only JAX, RLax, chex and dm_env. A loss is a pure function
# of **one stream** of `[T + 1]` time steps, and returns the contribution of each
# of its T transitions; `jax.vmap` extends it to a batch. This tour applies each
# loss to hand-made streams, and draws the result.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import rlax
from cycler import cycler

from seedx import losses

# Okabe and Ito's colours, each with its own dash and marker for grey prints.
BLUE, RED, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
np.set_printoptions(precision=2, suppress=True)
plt.rcParams.update(
  {
    "figure.figsize": (12, 4.6),
    "figure.dpi": 80,
    "figure.constrained_layout.use": True,
    "font.size": 17,
    "lines.linewidth": 2.5,
    "lines.markersize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.88",
    "legend.frameon": False,
    "axes.prop_cycle": cycler(color=[BLUE, RED, GREEN, PINK])
    + cycler(linestyle=["-", "--", "-.", ":"])
    + cycler(marker=["o", "s", "^", "D"]),
  }
)

# %% [markdown]
# ## Streams, and the episodes in them
#
# A time step is a `dm_env.TimeStep`: its `reward` and `discount` arrived *with*
# its observation. The discount is 0 where an episode **terminates**, because
# nothing follows, and keeps its value where it is **truncated**, because
# something would have followed.
#
# A stream contains several episodes. The transition from the LAST step of one
# to the FIRST step of the next episode is not experience: no action caused it.
# Masking it is not enough, because a return that bootstraps across it would use
# the next episode's value. `losses.transitions` therefore gives it the reward
# V(LAST) and the discount 0, so that its TD error is exactly 0 and no trace
# passes it.

# %%
FIRST, MID, LAST = 0, 1, 2
AGENT_DISCOUNT = 0.9

step_type = jnp.array([FIRST, MID, MID, LAST, FIRST, MID, MID, MID])
reward = jnp.array([0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
values = jnp.array([8.0, 8.0, 8.0, 8.0, 2.0, 2.0, 2.0, 2.0])


def discounts(at_last):
  """The environment's discounts times the agent's own."""
  return AGENT_DISCOUNT * jnp.where(step_type == LAST, at_last, 1.0)


truncated, terminated = discounts(1.0), discounts(0.0)
for name, discount in {
  "truncated": truncated,
  "terminated": terminated,
}.items():
  steps = losses.transitions(step_type, reward, discount, values)
  print(name)
  for field in steps._fields:
    print(f"  {field:<10}", getattr(steps, field))

# %% [markdown]
# Below, V is 8 in the first episode and 2 in the second. If the first episode
# is truncated, its last step is worth 1 + 0.9 * 8 = 8.2; if it terminates, 1.
# If nothing cut the stream between the episodes, the return of that step would
# reach into the second one. The circle marks the transition that is not
# experience: its weight is 0.

# %%
uncut = rlax.lambda_returns(reward[1:], truncated[1:], values[1:], 1.0)
fig, ax = plt.subplots()
t = np.arange(len(reward) - 1)
for name, returns in {
  "truncated": losses.lambda_returns(values, step_type, reward, truncated),
  "terminated": losses.lambda_returns(values, step_type, reward, terminated),
  "truncated, but not cut": uncut,
}.items():
  ax.plot(t, returns, label=name)
  print(f"{name:<23}", returns)
ax.plot(3, 8.0, "o", ms=20, mfc="none", mec="0.3", mew=2)
ax.set(xlabel="step", ylabel="return", ylim=(0, 9.3))
ax.set_xticks(t, ["FIRST", "MID", "MID", "LAST", "FIRST", "MID", "MID"])
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# So the loss of a step is the same, whether it is computed in the whole stream
# or in one of the halves:


# %%
def a2c(part):
  """The loss of a part of the stream."""
  ones = jnp.ones(len(step_type[part]) - 1)
  return losses.a2c(
    values[part], -ones, ones, step_type[part], reward[part], truncated[part]
  )


whole, first, second = map(a2c, (slice(0, 8), slice(0, 4), slice(4, 8)))
print("whole: ", whole.value)
print("weight:", whole.weight)
print("halves:", first.value, second.value)

# %% [markdown]
# ## Environments that reset themselves
#
# gymnax, the vector environments of Gym and Gymnasium's mode `SAME_STEP` reset
# in the step in which an episode ends: the last reward arrives with the first
# observation of the *next* episode, and the last observation is not in the
# stream. `done` alone cannot cut such a stream rightly. Where the episode
# terminated, the return is the last reward; where it was truncated, the value
# of its own last observation follows (Gymnasium's `final_obs`; the next
# observation belongs to the next episode). `losses.from_same_step` makes a
# stream from these arrays, which has no steps between episodes. This is
# PureJaxRL's `_calculate_gae`:


# %%
def calculate_gae(traj_batch, last_val):
  """Returns advantages and the targets of V, `[T, B]`."""

  def of_stream(reward, done, value, last):
    stream = losses.from_same_step(reward, done, gamma=AGENT_DISCOUNT)
    advantage = losses.gae(jnp.append(value, last), *stream, lambda_=0.95)
    return advantage, advantage + value

  batched = jax.vmap(of_stream, in_axes=(1, 1, 1, 0), out_axes=1)
  return batched(*traj_batch, last_val)


# %% [markdown]
# Three steps with reward 1 and V 0. The second step ends an episode, once by
# termination and once by truncation, with 8 as the value of its last
# observation.

# %%
ones, ends = jnp.ones((3, 1)), jnp.array([[False], [True], [False]])
advantage, _ = calculate_gae((ones, ends, 0 * ones), jnp.zeros(1))
print("terminated:", advantage[:, 0])
no_end, no_values = jnp.zeros(3, bool), jnp.zeros(4)
cut = losses.from_same_step(
  ones[:, 0], no_end, ends[:, 0], 8 * ones[:, 0], gamma=AGENT_DISCOUNT
)
print("truncated: ", losses.gae(no_values, *cut))

# %% [markdown]
# Gymnasium's default is `NEXT_STEP`: the last observation arrives like any
# other, and the environment ignores the next action, whose "transition" leads
# to the next episode. `losses.from_next_step` makes a stream with LAST and
# FIRST steps of it, as at the beginning of this tour. A rollout of CleanRL may
# begin where an episode has just ended (`next_done`), which is the argument
# `ended`. The ignored actions have weight 0:

# %%
stream = losses.from_next_step(
  reward=jnp.array([1.0, 1.0, 0.0, 1.0]),
  terminated=jnp.array([False, True, False, False]),
  truncated=jnp.array([False, False, False, False]),
  gamma=AGENT_DISCOUNT,
  ended=False,  # CleanRL's next_done before the rollout.
)
print("step types:", stream.step_type)
print("weights:   ", losses.transitions(*stream, jnp.zeros(5)).weight)

# %% [markdown]
# ## n-step and lambda-returns
#
# How far does one reward reach? Here the only reward is at step 30 of 40, and V
# is 0 everywhere. An n-step return contains the reward if it is at most n steps
# ahead. A lambda-return is the exponentially weighted mean of all n-step
# returns, in which the reward fades with its distance. With lambda 1 it is the
# longest return of the stream.

# %%
T = 40
no_values = jnp.zeros(T + 1)
middle = jnp.full(T + 1, MID)
one_reward = jnp.zeros(T + 1).at[30].set(1.0)
steady = jnp.full(T + 1, 0.97)
stream = (no_values, middle, one_reward, steady)

fig, axes = plt.subplots(1, 2, sharey=True)
for n in (1, 5, 20):
  returns = losses.n_step_returns(*stream, n=n)
  axes[0].plot(returns, label=f"n = {n}", markevery=6)
for lambda_ in (0.5, 0.9, 1.0):
  returns = losses.lambda_returns(*stream, lambda_=lambda_)
  axes[1].plot(returns, label=f"$\\lambda$ = {lambda_}", markevery=6)
axes[0].set(title="n-step returns", xlabel="step", ylabel="return")
axes[1].set(title="lambda-returns", xlabel="step")
for ax in axes:
  ax.legend(loc="upper left")
plt.show()

# %% [markdown]
# ## Generalized advantage estimation
#
# Why not always use the longest return? Because every reward adds its noise. In
# this example rewards are noise of mean 0, so that every true value and every
# advantage is 0. The estimate of V is right up to step 10, and too high after
# it. What is the advantage at step 10 in 4,096 such streams?
#
# With lambda 0 the advantage is the one-step TD error: little noise, but all of
# the estimate's error (*bias*). With lambda 1 it is the longest return minus V:
# none of the estimate's error, but the noise of all rewards (*variance*). The
# sum of both is smallest in between ([Schulman et al.
# 2015](https://arxiv.org/abs/1506.02438)).

# %%
STREAMS = 4096
noise = 0.3 * jax.random.normal(jax.random.key(0), (T + 1, STREAMS))
after = jnp.arange(T + 1) - 11
wrong = jnp.where(after >= 0, jnp.exp(-after / 4), 0.0)


def advantages(lambda_):
  """`[T, STREAMS]`."""

  def estimate(reward):
    return losses.gae(wrong, middle, reward, steady, lambda_=lambda_)

  return jax.vmap(estimate, in_axes=1, out_axes=1)(noise)


fig, axes = plt.subplots(1, 2)
for lambda_ in (0.0, 0.9, 1.0):
  axes[0].plot(
    advantages(lambda_)[:, 0], label=f"$\\lambda$ = {lambda_}", markevery=6
  )
axes[0].axhline(0, color="0.3", lw=1)
axes[0].set(title="advantages in one stream", xlabel="step", ylim=(-1.5, 4.5))
axes[0].legend(loc="upper left")

grid = np.linspace(0, 1, 11)
judged = jnp.stack([advantages(lambda_)[10] for lambda_ in grid])
bias, variance = judged.mean(axis=1) ** 2, judged.var(axis=1)
axes[1].plot(grid, bias, label="bias²")
axes[1].plot(grid, variance, label="variance")
axes[1].plot(grid, bias + variance, label="both")
axes[1].set(title="error at step 10", xlabel="$\\lambda$", ylim=(0, None))
axes[1].legend()
plt.show()
print(f"least error at lambda {grid[np.argmin(bias + variance)]:.1f}")

# %% [markdown]
# ## V-trace
#
# In a distributed system the policy mu that acted is some updates older than
# the policy pi that learns. Weighting each step by the ratio rho = pi(a) /
# mu(a) corrects for this, but a product of many ratios can be huge. V-trace
# ([Espeholt et al. 2018](https://arxiv.org/abs/1802.01561)) clips twice,
#
# $$\delta_t = \min(\bar\rho, \rho_t)\,(r_{t+1} + \gamma V_{t+1} - V_t),
# \qquad v_t = V_t + \delta_t + \gamma \min(1, \rho_t)\,(v_{t+1} - V_{t+1}),$$
#
# and the two have different effects: $\bar\rho$ decides *which policy's* value
# is learned (with infinity that of pi, with 1 that of a policy between mu and
# pi), while clipping the trace at 1 decides how fast it is learned, and keeps
# the products small.
#
# An example: one state and two actions, one of which has reward 1. mu takes
# this action half of the time, pi with the probability on the horizontal axis.
# Streams have 20 steps, and bootstrap from V after the last one. The targets v
# are constants in the loss, so that the gradient of the value loss with respect
# to V is V - v; `jax.grad` thus returns the targets. V is set to the mean of
# its targets again and again, until it converges. The left panel shows the V
# that is learned, the right one the standard deviation of a target between
# streams.

# %%
LENGTH, GAMMA, SAMPLES = 20, 0.9, 2048
all_mid = jnp.full(LENGTH + 1, MID)
discount = jnp.full(LENGTH + 1, GAMMA)
# Actions of mu: `[SAMPLES, LENGTH]`, 1 for the rewarded action.
action = jax.random.bernoulli(jax.random.key(1), 0.5, (SAMPLES, LENGTH))
action = action.astype(jnp.float32)
log_mu = jnp.full(LENGTH, jnp.log(0.5))


def log_pi(action, p):
  """Log-probabilities of actions if the rewarded one has probability p."""
  return jnp.log(jnp.where(action == 1, p, 1 - p))


def vtrace_target(value, action, p, rho_bar):
  """The target of a stream's first step, for a V that is constant."""

  def value_loss(values):
    steps = losses.vtrace(
      values,
      log_pi(action, p),
      log_mu,
      jnp.zeros(LENGTH),  # The entropy, not used here.
      all_mid,
      jnp.append(0.0, action),
      discount,
      clip_rho_threshold=rho_bar,
    )
    return steps.value.sum()

  values = jnp.full(LENGTH + 1, value)
  return value - jax.grad(value_loss)(values)[0]


def unclipped_target(value, action, p):
  """The same target with unclipped importance weights."""
  rho = jnp.exp(log_pi(action, p) - log_mu)

  def step(later, now):
    ratio, reward = now
    return ratio * (reward + GAMMA * later), None

  return jax.lax.scan(step, value, (rho, action), reverse=True)[0]


def learned(target, p):
  """The V that is learned, and the standard deviation of its targets."""
  of_streams = jax.vmap(target, in_axes=(None, 0, None))
  value = jax.lax.fori_loop(
    0, 60, lambda _, v: of_streams(v, action, p).mean(), jnp.float32(0.0)
  )
  return value, of_streams(value, action, p).std()


ps = np.linspace(0.5, 0.95, 10, dtype=np.float32)
fig, axes = plt.subplots(1, 2)
for name, target in {
  "clipping nothing": unclipped_target,
  "clipping the trace": lambda *args: vtrace_target(*args, jnp.inf),
  "rho as well: V-trace": lambda *args: vtrace_target(*args, 1.0),
}.items():
  over_ps = jax.jit(jax.vmap(lambda p, target=target: learned(target, p)))
  value, deviation = over_ps(ps)
  axes[0].plot(ps, value, markevery=2)
  axes[1].plot(ps, deviation, markevery=2, label=name)
axes[0].plot(
  ps, ps / (1 - GAMMA), color="0.7", lw=7, ls="-", marker="", zorder=0
)
axes[0].annotate("value of pi", (0.56, 7.5), color="0.4")
axes[0].axhline(
  0.5 / (1 - GAMMA), color="0.7", lw=4, ls="-", marker="", zorder=0
)
axes[0].annotate("value of mu", (0.73, 5.15), color="0.4")
axes[0].set(title="V that is learned", xlabel="pi of the rewarded action")
axes[1].set(title="deviation of a target", xlabel="pi of the rewarded action")
axes[1].set_yscale("log")
fig.legend(loc="outside lower center", ncols=3, handlelength=3)
plt.show()

# %% [markdown]
# Without clipping, targets are right on average, but vary so much that 2,048
# streams do not suffice if the policies differ much. If only the trace is
# clipped, V becomes the value of pi. If rho is clipped as well, V becomes a
# value between those of mu and pi: the price of V-trace's low variance is a
# bias towards mu.
#
# If pi equals mu, nothing is clipped, and V-trace is the plain n-step return:

# %%
entropy = log_prob = jnp.full(T, -0.7)
on_policy = losses.vtrace(wrong, log_prob, log_prob, entropy, *stream[1:])
plain = losses.a2c(wrong, log_prob, entropy, *stream[1:])
print("largest difference:", np.abs(on_policy.value - plain.value).max())

# %% [markdown]
# ## PPO
#
# PPO ([Schulman et al. 2017](https://arxiv.org/abs/1707.06347)) takes many
# steps on the same batch. It forbids no step, but removes the incentive for
# large ones. If the action was better than expected (A > 0), raising the ratio
# reduces the loss until the ratio is 1 + epsilon; if it was worse, lowering the
# ratio does so, until it is 1 - epsilon. Beyond these limits, the gradient is
# 0, but only in the direction that would reduce the loss: a ratio on the wrong
# side is always pulled back.

# %%
ratios = jnp.linspace(0.4, 1.6, 120)


def policy_loss(ratio, advantage):
  """PPO's policy loss of a single step."""
  zero = jnp.zeros(1)
  steps = losses.ppo(
    values=zero,
    log_prob=jnp.log(ratio)[None],
    behaviour_log_prob=zero,
    entropy=zero,
    advantage=advantage[None],
    target=zero,
    weight=jnp.ones(1),
    clip_epsilon=0.2,
  )
  return steps.policy_gradient[0]


curves = jax.vmap(jax.value_and_grad(policy_loss), in_axes=(0, None))
fig, axes = plt.subplots(1, 2)
for advantage in (1.0, -1.0):
  loss, gradient = curves(ratios, jnp.float32(advantage))
  label = f"A = {advantage:+.0f}"
  axes[0].plot(ratios, loss, label=label, markevery=15)
  axes[1].plot(ratios, gradient, label=label, markevery=15)
for ax, title in zip(axes, ("loss", "its gradient"), strict=True):
  ax.axvspan(0.8, 1.2, color="0.93", zorder=0)
  ax.set(title=title, xlabel="ratio pi / mu")
axes[0].legend(loc="center left")
plt.show()

# %% [markdown]
# ## Q-learning
#
# **Double.** The maximum of several noisy estimates is too large. Below, all
# actions are worth 0, and the estimates of Q and Q' have independent noise of
# standard deviation 1. In plain Q-learning Q' both chooses the action and
# evaluates it, which overestimates the more, the more actions there are. In
# double Q-learning ([van Hasselt et al.
# 2016](https://arxiv.org/abs/1509.06461)) Q chooses and Q' evaluates, and their
# errors do not add up.
#
# **n steps.** A corridor has a reward at its end, and nothing has been learned
# yet: one update with n-step targets changes the values of the last n steps.

# %%
pair = (jnp.array([FIRST, MID]), jnp.zeros(2), jnp.ones(2))


def mean_target(num_actions, double):
  """The mean target over many random Q-values of the next step."""
  q, other = jax.random.normal(jax.random.key(2), (2, 4096, 2, num_actions))

  def target(q, other):
    steps = losses.q_learning(
      q.at[0].set(0.0), other, jnp.array([0]), *pair, double=double
    )
    return steps.td_error[0]  # Q of the first step is 0.

  return jax.vmap(target)(q, other).mean()


fig, axes = plt.subplots(1, 2)
counts = (2, 4, 8, 16, 32)
for double in (False, True):
  label = "double" if double else "plain"
  means = [mean_target(count, double) for count in counts]
  axes[0].plot(counts, means, label=label)
axes[0].set_xscale("log", base=2)
axes[0].set_xticks(counts, counts)
axes[0].set(title="mean target (truth: 0)", xlabel="actions")
axes[0].legend()

corridor = jnp.full(13, MID)
at_the_end = jnp.zeros(13).at[-1].set(1.0)
ends = jnp.full(13, 0.97).at[-1].set(0.0)
for n in (1, 3, 10):
  nothing_known = jnp.zeros((13, 2))
  steps = losses.q_learning(
    nothing_known,
    nothing_known,
    jnp.zeros(12, int),
    corridor,
    at_the_end,
    ends,
    n=n,
  )
  axes[1].plot(steps.td_error, label=f"n = {n}")
axes[1].set(title="TD errors in a corridor", xlabel="step")
axes[1].legend(loc="center", bbox_to_anchor=(0.45, 0.4))
plt.show()

# %% [markdown]
# **Huber.** A single large TD error would dominate a step of the optimizer.
# Beyond `huber_delta` the loss grows linearly, so that its gradient is clipped
# ([Mnih et al. 2015](https://doi.org/10.1038/nature14236)). **Rescaling** with
# h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x ([Pohlen et al.
# 2018](https://arxiv.org/abs/1805.11593)) learns h(Q) instead of Q, which
# brings returns of different sizes to one scale without clipping rewards.

# %%


def one_loss(q, target, **options):
  """The loss of a step with a value of q and a target."""
  steps = losses.q_learning(
    jnp.stack([q, 0.0])[:, None],
    jnp.zeros((2, 1)),
    jnp.array([0]),
    jnp.array([FIRST, MID]),
    jnp.stack([0.0, target]),
    jnp.zeros(2),
    **options,
  )
  return steps.loss[0]


fig, axes = plt.subplots(1, 2)
errors = jnp.linspace(-4.0, 4.0, 81)
for delta in (None, 1.0):
  gradient = jax.vmap(
    jax.grad(lambda q, delta=delta: one_loss(q, 0.0, huber_delta=delta))
  )
  label = "squared" if delta is None else "Huber, delta 1"
  axes[0].plot(errors, gradient(errors), label=label, markevery=10)
axes[0].set(title="gradient by Q", xlabel="Q less its target")
axes[0].legend()

sizes = jnp.logspace(0, 4, 41)
for rescale in (False, True):
  gradient = jax.vmap(
    jax.grad(lambda q, t, rescale=rescale: one_loss(q, t, rescale=rescale)),
    in_axes=(None, 0),
  )
  label = "rescaled" if rescale else "not rescaled"
  axes[1].plot(sizes, -gradient(0.0, sizes), label=label, markevery=8)
axes[1].loglog()
axes[1].set(title="pull on a Q of 0", xlabel="return")
axes[1].legend()
plt.show()

# %% [markdown]
# ## Batches, gradients, compilation
#
# Nothing above used batches. `jax.vmap` adds the batch axis, here after time as
# in the pipelines, `jax.grad` differentiates the weighted mean of all steps,
# and `jax.jit` compiles the result. Only this mean turns per-step losses into a
# number: `losses.mean_share` divides by the weights of all cores.

# %%
import time

UNROLL, ROWS = 20, 256
keys = jax.random.split(jax.random.key(3), 3)
batch = {
  "log_prob": -jax.random.uniform(keys[0], (UNROLL, ROWS)),
  "entropy": jnp.full((UNROLL, ROWS), 0.7),
  "step_type": jax.random.randint(keys[1], (UNROLL + 1, ROWS), 0, 2),
  "reward": jax.random.normal(keys[2], (UNROLL + 1, ROWS)),
  "discount": jnp.full((UNROLL + 1, ROWS), 0.99),
}


def total(values, batch):
  """The value loss of a batch: a number."""
  names = ("log_prob", "entropy", "step_type", "reward", "discount")
  steps = jax.vmap(losses.a2c, in_axes=1, out_axes=1)(
    values, *(batch[name] for name in names)
  )
  return losses.mean_share(steps.value, steps.weight)


values = jnp.zeros((UNROLL + 1, ROWS))
gradient = jax.jit(jax.grad(total))
print("gradient:", jax.block_until_ready(gradient(values, batch)).shape)


def milliseconds(function):
  """The median time of a call."""
  times = []
  for _ in range(20):
    start = time.perf_counter()
    jax.block_until_ready(function())
    times.append(1e3 * (time.perf_counter() - start))
  return np.median(times)


one = jax.tree.map(lambda x: x[:, :1], (values, batch))
print(f"1 stream, compiled:     {milliseconds(lambda: gradient(*one)):.2f} ms")
all_of_them = milliseconds(lambda: gradient(values, batch))
print(f"{ROWS} streams, compiled: {all_of_them:.2f} ms")

# %% [markdown]
# With this gradient alone, V learns the returns of these streams: a loss is a
# function, and needs no agent.

# %%
history = []
for _ in range(60):
  values -= 300.0 * gradient(values, batch)
  history.append(total(values, batch))
fig, ax = plt.subplots(figsize=(8, 3.6))
ax.plot(history, markevery=10)
ax.set(xlabel="gradient steps", ylabel="value loss", yscale="log")
plt.show()
