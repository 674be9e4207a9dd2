"""Agents that check the experience they learn from.

They print violations as lines on stderr that begin with `VIOLATION`.
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
from seedx.agents import a2c, base, dqn, evolution, ppo, qt_opt, vtrace

VIOLATION = "VIOLATION"
AUDITED = "audited"
_PRINT_SECONDS = 2.0


def of(config: base.Config) -> base.Config:
  """Returns the audited agent's config, with the values of `config`."""
  for kind in (A2C, DQN, ES, PPO, QTOPT, VTRACE):
    if type(config) is kind.__base__:
      values = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(kind)
        if field.init
      }
      return kind(**values)
  raise types.ConfigError(f"expected an agent of seedx, found {config}")


def audited(agent: base.Agent) -> base.Agent:
  """Makes an agent audit its batches, and see only `state` of observations."""
  audit = Audit(once=agent.needs.window is None)

  def look(state: base.AgentState, batch: types.Tree) -> None:
    finite = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(state.params)]
    if isinstance(batch, evolution.Fitness):
      is_finite = jnp.all(jnp.stack(finite))
      jax.debug.callback(audit.pairs, batch.pair, batch.returns, is_finite)
      return
    unroll = batch.unroll if isinstance(batch, types.Sample) else batch
    timestep = unroll.inputs.timestep
    jax.debug.callback(
      audit,
      timestep.observation["origin"],
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

  def label(targets: Any, rng_key: Any, batch: Any) -> Any:
    assert agent.label is not None
    return agent.label(targets, rng_key, _batch_of(batch))

  return dataclasses.replace(
    agent,
    step=step,
    gradients=gradients,
    update=update,
    priorities=priorities if agent.priorities is not None else None,
    label=label if agent.label is not None else None,
    greedy=None,
  )


class Audit:
  """A check of every batch that a process learns from."""

  def __init__(self, once: bool) -> None:
    """Makes an audit; `once` forbids learning twice from a step."""
    self._once = once
    self._ends: dict[int, int] = collections.defaultdict(int)
    self._audited = 0
    self._printed_seconds = time.monotonic()
    self._lock = threading.Lock()

  def __call__(
    self,
    origin: np.ndarray,
    step_type: np.ndarray,
    reward: np.ndarray,
    discount: np.ndarray,
    params_are_finite: np.ndarray,
  ) -> None:
    """Checks a batch of windows `[L, B]` with their origins `[L, B, 2]`."""
    origin, count = np.moveaxis(np.asarray(origin), -1, 0)
    step_type, reward, discount = map(np.asarray, (step_type, reward, discount))
    # Programs warm up with zeros, whose origin is 0.
    real = (origin != 0).any(0)
    origin, count = origin[:, real], count[:, real]
    step_type, reward = step_type[:, real], reward[:, real]
    discount = discount[:, real]
    with self._lock:
      self._expect(bool(params_are_finite), "parameters that are not finite")
      self._expect((origin == origin[:1]).all(), "windows of several origins")
      self._expect(
        (np.diff(count, axis=0) == 1).all(), "windows that are not consecutive"
      )
      self._expect(np.isfinite(reward).all(), "rewards that are not finite")
      self._expect((step_type <= 2).all(), "step types above 2")
      ends = step_type == dm_env.StepType.LAST
      starts = step_type == dm_env.StepType.FIRST
      self._expect((starts[1:] == ends[:-1]).all(), "a FIRST not after a LAST")
      inside = np.where(ends, np.isin(discount, (0.0, 1.0)), discount == 1.0)
      self._expect(inside.all(), "discounts that no environment returns")
      if self._once and len(origin):
        self._check_once(origin[0], count[0], len(origin) - 1)
      self._count(origin.shape[1])

  def pairs(
    self, pair: np.ndarray, returns: np.ndarray, params_are_finite: np.ndarray
  ) -> None:
    """Checks pairs `[P]` and their returns `[P, 2]`."""
    pair = np.asarray(pair)
    with self._lock:
      self._expect(bool(params_are_finite), "parameters that are not finite")
      self._expect(np.isfinite(returns).all(), "returns that are not finite")
      self._expect((np.diff(pair) == 1).all(), "pairs of two iterations")
      self._expect(
        pair[0] >= self._ends[0], "pairs from which it has learned before"
      )
      self._ends[0] = int(pair[-1]) + 1
      self._count(len(pair))

  def _check_once(
    self, origin: np.ndarray, first: np.ndarray, transitions: int
  ) -> None:
    for k in np.argsort(first):
      start, last_end = int(first[k]), self._ends[int(origin[k])]
      self._expect(start >= last_end, "steps from which it has learned before")
      self._ends[int(origin[k])] = start + transitions

  def _count(self, audited: int) -> None:
    self._audited += audited
    if time.monotonic() - self._printed_seconds > _PRINT_SECONDS:
      self._printed_seconds = time.monotonic()
      _print_line(f"{AUDITED} {self._audited}")

  def _expect(self, holds: Any, violation: str) -> None:
    if not holds:
      _print_line(f"{VIOLATION} learned from {violation}")


def _print_line(line: str) -> None:
  # One write of the whole line, since other processes share this stderr.
  sys.stderr.write(line + "\n")
  sys.stderr.flush()


def _without_origin(spec: types.EnvironmentSpec) -> types.EnvironmentSpec:
  return dataclasses.replace(spec, observation=spec.observation["state"])


def _state_of(inputs: types.Inputs) -> types.Inputs:
  timestep = inputs.timestep
  state = timestep.observation["state"]
  return inputs._replace(timestep=timestep._replace(observation=state))


def _batch_of(batch: types.Tree) -> types.Tree:
  if isinstance(batch, evolution.Fitness):
    return batch
  if isinstance(batch, types.Sample):
    return batch._replace(unroll=_batch_of(batch.unroll))
  return batch._replace(inputs=_state_of(batch.inputs))


def _kind(name: str, base_kind: Any) -> Any:
  """Makes a class of configs with audited agents."""

  def make(
    self: Any,
    spec: types.EnvironmentSpec,
    axis_name: str | None = None,
    horizon: base.Horizon | None = None,
  ) -> base.Agent:
    agent = base_kind.make(self, _without_origin(spec), axis_name, horizon)
    return audited(agent)

  kind = dataclasses.make_dataclass(
    name, [], bases=(base_kind,), namespace={"make": make}, frozen=True
  )
  kind.__module__ = __name__  # Other processes unpickle the class by name.
  return kind


A2C = _kind("A2C", a2c.Config)
DQN = _kind("DQN", dqn.Config)
ES = _kind("ES", evolution.Config)
PPO = _kind("PPO", ppo.Config)
QTOPT = _kind("QTOPT", qt_opt.Config)
VTRACE = _kind("VTRACE", vtrace.Config)
