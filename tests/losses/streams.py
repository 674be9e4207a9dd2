"""Random streams of episodes, for the tests of every loss."""

import itertools

import dm_env
import numpy as np

FIRST, MID, LAST = (int(step_type) for step_type in dm_env.StepType)
ACTIONS, ATOMS = 3, 5
CRITICS, DIMENSIONS = 3, 3
# Arguments with an entry for each transition, not for each time step.
PER_TRANSITION = {
  "log_prob",
  "behaviour_log_prob",
  "entropy",
  "action",
  "log_policy",
  "search_policy",
  "critics.q_values",
  "critics.logits",
  "actor.action",
  "actor.action_gradient",
  "implicit.values",
  "implicit.advantage",
}

# Three resets: after an episode of 2 steps, after a termination, and near the
# end of the stream.
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
  """Returns random events, as many as `THREE_RESETS` has."""
  rng = np.random.default_rng(seed)
  ends = rng.choice(["terminate", "truncate"], len(THREE_RESETS))
  return np.where(rng.random(len(ends)) < 0.6, "step", ends).tolist()


def episodes(events, start):
  """Returns step types and discounts of a stream, as actors send them.

  Args:
    events: T + 1 of "step", "terminate", "truncate"; an event after the end of
      an episode is replaced by a reset.
    start: whether the first time step is a reset.
  """
  step_type, discount, reset = [], [], start
  for event in events:
    kind = LAST if event != "step" else MID
    step_type.append(FIRST if reset else kind)
    discount.append(0.0 if event == "terminate" and not reset else 1.0)
    reset = step_type[-1] == LAST
  return np.array(step_type, np.uint8), np.array(discount, np.float32)


def random_stream(events, seed, start=False, gamma=0.9):
  """Returns all arguments of all losses, by name.

  What stands before a dot distinguishes arguments of the same name.
  """
  rng = np.random.default_rng(seed)
  step_type, discount = episodes(events, start)
  steps = len(events) - 1
  values = 3 * rng.normal(size=steps + 1)
  # The reward of a FIRST step must be ignored, so it is an outlier.
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
  policies = {
    "log_policy": -rng.uniform(0.1, 2.0, (steps, ACTIONS)),
    "search_policy": rng.dirichlet(np.ones(ACTIONS), steps),
  }
  policies = {k: v.astype(np.float32) for k, v in policies.items()}
  arrays = stream | logits | policies | continuous(rng, steps)
  return arrays | {"step_type": step_type, "action": action}


def continuous(rng, steps):
  """Returns arguments of the losses of continuous actions, by name."""
  whole, learned = (steps + 1, CRITICS), (steps, CRITICS)
  stream = {
    "critics.q_values": 3 * rng.normal(size=learned),
    "critics.target_q_values": 3 * rng.normal(size=whole),
    "critics.logits": 2 * rng.normal(size=(*learned, ATOMS)),
    "critics.target_logits": 2 * rng.normal(size=(*whole, ATOMS)),
    "entropy_bonus": rng.normal(size=steps + 1),
    "actor.action": rng.uniform(-1.0, 1.0, (steps, DIMENSIONS)),
    "actor.action_gradient": 2 * rng.normal(size=(steps, DIMENSIONS)),
    "log_temperature": rng.normal(),
    "implicit.values": 3 * rng.normal(size=steps),
    "implicit.advantage": rng.normal(size=steps),
  }
  return {k: np.asarray(v, np.float32) for k, v in stream.items()}


def resets(stream):
  """Returns the indices of the transitions from a LAST to a FIRST step."""
  return np.flatnonzero(stream["step_type"][1:] == FIRST)


def spans(stream):
  """Returns each episode's first time step, and the step after its last one."""
  ends = [0, *(resets(stream) + 1), len(stream["step_type"])]
  return itertools.pairwise(ends)


def cut(stream, start, stop):
  """Returns the time steps from `start` to the one before `stop`."""
  return {
    k: v[start : stop - (k in PER_TRANSITION)] if np.ndim(v) else v
    for k, v in stream.items()
  }
