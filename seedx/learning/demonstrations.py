"""Recordings as experience that an agent learns from."""

import dm_env
import jax
import numpy as np

from seedx import recordings, types
from seedx.agents import base
from seedx.envs import spaces
from seedx.runtime import memory

# Copies in memory: episodes as read, joined, and on a device.
_COPIES = 3
_FIRST = int(dm_env.StepType.FIRST)


def unroll_of(
  path: str, agent: base.Agent, spec: types.EnvironmentSpec
) -> types.Share:
  """Reads a recording as one unroll of all its episodes, `[L, 1, ...]`.

  No return crosses the end of an episode. An agent with a memory begins with
  its initial state. All windows have the priority 1.

  Args:
    path: directory of a recording.
    agent: the agent that learns from it.
    spec: spec of the run's environment.

  Raises:
    types.ConfigError: the recording cannot be read, does not fit into memory,
      is of other observations or actions, or has no whole window; or the agent
      learns from more than observations, actions and rewards.
  """
  check_agent(agent)
  needs, window = agent.needs, agent.needs.window
  assert window is not None
  recording = recordings.opened(path)
  where = f"the recording {path!r}"
  for name, own, other in spaces.differences(spec, recording.description.spec):
    raise types.ConfigError(
      f"expected {where} to have {own} as {name}, like the environment, found"
      f" {other}"
    )
  episodes, num_bytes, free = [], 0, memory.free_bytes_of_machine()
  for episode in recording.episodes():
    episodes.append((*episode[:4], episode.step_type))
    num_bytes += sum(x.nbytes for x in jax.tree.leaves(episodes[-1]))
    if free is not None and _COPIES * num_bytes > free:
      raise types.ConfigError(
        f"expected a recording that fits into memory, of which"
        f" {free / 2**30:.2f} GiB are free, found that {where} needs more;"
        " record fewer episodes"
      )
  if not episodes:
    raise types.ConfigError(f"expected episodes in {where}, found none")
  observation, action, reward, discount, step_type = jax.tree.map(
    lambda *x: np.concatenate(x)[:, None], *episodes
  )
  length = len(reward)
  if length < window:
    raise types.ConfigError(
      f"expected at least {window} time steps, a window of this agent, in"
      f" {where}, found {length}"
    )
  first = (step_type == _FIRST).reshape(length, *[1] * (action.ndim - 1))
  before = np.concatenate([np.zeros_like(action[:1]), action[:-1]])
  unroll = types.Unroll(
    types.Inputs(
      dm_env.TimeStep(step_type, reward, discount, observation),
      np.where(first, np.zeros_like(before), before),
      np.zeros((length, 1), np.float32),
    ),
    action,
    extras=(),
    version=np.full((length, 1), base.UNKNOWN_VERSION, np.int32),
    core_state=jax.tree.map(np.asarray, agent.initial_core_state(1)),
  )
  priorities: types.Tree = ()
  if agent.priorities is not None:
    priorities = np.ones((1, length - window + 1), np.float32)
  return types.Share(needs.stored(unroll), priorities)


def check_agent(agent: base.Agent) -> None:
  """Raises types.ConfigError if the agent needs actions of its own."""
  if agent.needs.extras or agent.needs.window is None:
    raise types.ConfigError(
      "expected an agent that can learn from the actions of others, such as"
      " DQN, R2D2 or SAC, found one that cannot"
    )
