"""Agents that look at what they learn from, for `tests.chaos`.

A violation is a line on stderr that begins with `VIOLATION`.
"""

import collections
import dataclasses
import sys
import threading
import time
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from seedx import types
from seedx.agents import a2c, base, dqn, ppo, vtrace

VIOLATION = "VIOLATION"
AUDITED = "audited"
_SAY_SECONDS = 2.0


def of(config: base.Config) -> base.Config:
  """The audited form of an agent's config, with the same values."""
  for kind in (A2C, DQN, PPO, VTRACE):
    if type(config) is kind.__base__:
      values = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(kind)
        if field.init
      }
      return kind(**values)
  raise types.ConfigError(f"expected an agent of seedx's own, found {config}")


def audited(agent: base.Agent) -> base.Agent:
  """An agent of `state` alone, which looks at the leases it learns from."""
  audit = Audit(once=agent.needs.window is None)

  def look(state: base.AgentState, batch: types.Tree) -> None:
    unroll = batch.unroll if isinstance(batch, types.Sample) else batch
    timestep = unroll.inputs.timestep
    finite = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(state.params)]
    jax.debug.callback(
      audit,
      timestep.observation["lease"],
      timestep.step_type,
      timestep.reward,
      timestep.discount,
      jnp.all(jnp.stack(finite)),
    )

  def step(acting: Any, rng_key: Any, inputs: Any, core_state: Any) -> Any:
    return agent.step(acting, rng_key, _state_of(inputs), core_state)

  def gradients(state: Any, rng_key: Any, batch: Any) -> Any:
    look(state, batch)
    return agent.gradients(state, rng_key, _batch_of(batch))

  def update(state: Any, rng_key: Any, batch: Any) -> Any:
    look(state, batch)
    return agent.update(state, rng_key, _batch_of(batch))

  def priorities(acting: Any, unroll: Any) -> Any:
    assert agent.priorities is not None
    return agent.priorities(acting, _batch_of(unroll))

  return dataclasses.replace(
    agent,
    step=step,
    gradients=gradients,
    update=update,
    priorities=priorities if agent.priorities is not None else None,
    greedy=None,
  )


class Audit:
  """Checks every batch that a process learns from."""

  def __init__(self, once: bool) -> None:
    """Has seen nothing; `once`: no step may be learned from twice."""
    self._once = once
    self._ends: dict[int, int] = collections.defaultdict(int)
    self._seen = 0
    self._said_seconds = time.monotonic()
    self._lock = threading.Lock()

  def __call__(
    self,
    lease: np.ndarray,
    step_type: np.ndarray,
    reward: np.ndarray,
    discount: np.ndarray,
    params_are_finite: np.ndarray,
  ) -> None:
    """Looks at a batch of windows `[L, B]`, its leases `[L, B, 2]`."""
    lease, count = np.moveaxis(np.asarray(lease), -1, 0)
    step_type, reward, discount = map(np.asarray, (step_type, reward, discount))
    # A program is compiled with zeros.
    real = (lease != 0).any(0)
    lease, count = lease[:, real], count[:, real]
    step_type, reward = step_type[:, real], reward[:, real]
    discount = discount[:, real]
    with self._lock:
      self._expect(bool(params_are_finite), "parameters are not finite")
      self._expect((lease == lease[:1]).all(), "windows of several leases")
      self._expect(
        (np.diff(count, axis=0) == 1).all(), "windows that are not consecutive"
      )
      self._expect(np.isfinite(reward).all(), "rewards that are not finite")
      self._expect((step_type <= 2).all(), "step types above 2")
      ends = step_type == dm_env.StepType.LAST
      starts = step_type == dm_env.StepType.FIRST
      self._expect((starts[1:] == ends[:-1]).all(), "a FIRST not after a LAST")
      inside = np.where(ends, np.isin(discount, (0.0, 1.0)), discount == 1.0)
      self._expect(inside.all(), "discounts that no environment says")
      if self._once and len(lease):
        self._look_for_twice(lease[0], count[0], len(lease) - 1)
      self._seen += lease.shape[1]
      if time.monotonic() - self._said_seconds > _SAY_SECONDS:
        self._said_seconds = time.monotonic()
        _say(f"{AUDITED} {self._seen}")

  def _look_for_twice(
    self, lease: np.ndarray, first: np.ndarray, transitions: int
  ) -> None:
    for k in np.argsort(first):
      begins, before = int(first[k]), self._ends[int(lease[k])]
      self._expect(begins >= before, "steps that were learned from before")
      self._ends[int(lease[k])] = begins + transitions

  def _expect(self, holds: Any, violation: str) -> None:
    if not holds:
      _say(f"{VIOLATION} learned from {violation}")


def _say(words: str) -> None:
  # In one write: other processes have the same stderr.
  sys.stderr.write(words + "\n")
  sys.stderr.flush()


def _without_lease(spec: types.EnvironmentSpec) -> types.EnvironmentSpec:
  return dataclasses.replace(spec, observation=spec.observation["state"])


def _state_of(inputs: types.Inputs) -> types.Inputs:
  timestep = inputs.timestep
  state = timestep.observation["state"]
  return inputs._replace(timestep=timestep._replace(observation=state))


def _batch_of(batch: types.Tree) -> types.Tree:
  if isinstance(batch, types.Sample):
    return batch._replace(unroll=_batch_of(batch.unroll))
  return batch._replace(inputs=_state_of(batch.inputs))


def _kind(name: str, base_kind: Any) -> Any:
  """A class of configs whose agents are audited."""

  def make(
    self: Any,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    """See `base.Config`."""
    agent = base_kind.make(self, _without_lease(spec), axis_name, horizon)
    return audited(agent)

  kind = dataclasses.make_dataclass(
    name, [], bases=(base_kind,), namespace={"make": make}, frozen=True
  )
  kind.__module__ = __name__  # Other processes find it by its name.
  return kind


A2C = _kind("A2C", a2c.Config)
DQN = _kind("DQN", dqn.Config)
PPO = _kind("PPO", ppo.Config)
VTRACE = _kind("VTRACE", vtrace.Config)
