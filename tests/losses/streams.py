"""Random streams of episodes, for the tests of every loss."""

import itertools

import dm_env
import numpy as np

FIRST, MID, LAST = (int(step_type) for step_type in dm_env.StepType)
ACTIONS, ATOMS = 3, 5
# What has an entry for each transition; the rest has one for each time step.
PER_TRANSITION = {"log_prob", "behaviour_log_prob", "entropy", "action"}

# Resets within an episode of 2, after a termination, and near the end.
THREE_RESETS = (
  "step",
  "truncate",
  "step",
  "step",
  "terminate",
  "step",
  "truncate",
  "step",
  "step",
  "step",
)


def random_events(seed):
  """One event for each time step of `THREE_RESETS`."""
  rng = np.random.default_rng(seed)
  ends = rng.choice(["terminate", "truncate"], len(THREE_RESETS))
  return np.where(rng.random(len(ends)) < 0.6, "step", ends).tolist()


def episodes(events, start):
  """Step types and discounts of a stream.

  Args:
    events: T + 1 of "step", "terminate", "truncate"; an event right after the
      end of an episode is a reset, whatever it says.
    start: whether the first time step is a reset.
  """
  step_type, discount, reset = [], [], start
  for event in events:
    kind = LAST if event != "step" else MID
    step_type.append(FIRST if reset else kind)
    discount.append(0.0 if event == "terminate" and not reset else 1.0)
    reset = step_type[-1] == LAST
  # As actors send them.
  return np.array(step_type, np.uint8), np.array(discount, np.float32)


def random_stream(events, seed, start=False, gamma=0.9):
  """Every argument that a loss may take, by name."""
  rng = np.random.default_rng(seed)
  step_type, discount = episodes(events, start)
  steps = len(events) - 1
  values = 3 * rng.normal(size=steps + 1)
  # What a FIRST step carries must not matter: poison it.
  reward = np.where(step_type == FIRST, 50.0, rng.normal(size=steps + 1))
  stream = {
    "values": values,
    "behaviour_values": values + 0.3 * rng.normal(size=steps + 1),
    "q_values": 3 * rng.normal(size=(steps + 1, ACTIONS)),
    "target_q_values": 3 * rng.normal(size=(steps + 1, ACTIONS)),
    "log_prob": -rng.uniform(0.1, 2.0, steps),
    "behaviour_log_prob": -rng.uniform(0.1, 2.0, steps),
    "entropy": rng.uniform(0.1, 1.0, steps),
    "reward": reward,
    "discount": gamma * discount,
    "importance_weight": rng.uniform(0.5, 2.0, ()),
  }
  stream = {k: np.asarray(v, np.float32) for k, v in stream.items()}
  action = rng.integers(0, ACTIONS, steps).astype(np.int32)
  logits = {
    name: 2 * rng.normal(size=(steps + 1, ACTIONS, ATOMS)).astype(np.float32)
    for name in ("logits", "target_logits")
  }
  return stream | logits | {"step_type": step_type, "action": action}


def resets(stream):
  """The transitions from a LAST to a FIRST."""
  return np.flatnonzero(stream["step_type"][1:] == FIRST)


def spans(stream):
  """The first time step of each episode, and the one after its last."""
  ends = [0, *(resets(stream) + 1), len(stream["step_type"])]
  return itertools.pairwise(ends)


def cut(stream, start, stop):
  """The stream of the time steps from `start` to before `stop`."""
  return {
    k: v[start : stop - (k in PER_TRANSITION)] if np.ndim(v) else v
    for k, v in stream.items()
  }
