"""Policies loaded from the checkpoints of runs."""

import dataclasses
import functools
import importlib
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from seedx import checkpoint, envs, files, replay, types
from seedx.agents import acting_step, base
from seedx.app import devices, requests
from seedx.app.runs import (
  checkpointer,
  foreign_code,
  records,
  saved_agents,
)
from seedx.app.settings import configs, experiments, opponents
from seedx.envs import actions as actions_lib
from seedx.envs import spaces
from seedx.runtime import process


@dataclasses.dataclass(frozen=True)
class Policy:
  """The policy of a run.

  Attributes:
    directory: directory of the run's checkpoints.
    name: name of the run's experiment or script, such as `ppo`.
    seed: seed of the training.
    env_steps: env steps of the run at the checkpoint.
    env: config of the environment at the checkpoint, see `envs.at`; a process
      that plays in it loads the runs that are its opponents.
    spec: spec of the environment.
    agent: the agent, without a mesh axis.
    acting: acting parameters, `agent.acting(state)`.
    has_memory: whether the network has a memory.
  """

  directory: files.Folder
  name: str
  seed: int
  env_steps: int
  env: envs.Config
  spec: types.EnvironmentSpec
  agent: base.Agent
  acting: types.Tree
  has_memory: bool = False

  def initial_state(self, batch_size: int) -> acting_step.ActingState:
    """Returns the state for the first call of `act` with `batch_size` rows."""
    return acting_step.initial_state(self.agent, self.spec, batch_size)

  def on(self, env: envs.Config) -> "Policy":
    """Returns the policy for another environment, or for other options.

    Raises:
      types.ConfigError: the environment does not exist, or its observations or
        actions differ from those of the training.
    """
    env = opponents.resolved(env)
    spec = envs.spec(env)
    spaces.check_same(self.spec, spec, env.env)
    return dataclasses.replace(self, env=env, spec=spec)

  def without_search(self) -> "Policy":
    """Returns the policy of a search's network alone.

    Raises:
      types.ConfigError: the agent does not search.
    """
    if self.agent.without_search is None:
      raise types.ConfigError(
        "expected an agent that searches, such as AlphaZero, found that of"
        f" {self.name}, which needs no --without-search"
      )
    agent = dataclasses.replace(
      self.agent, greedy=self.agent.without_search, without_search=None
    )
    return dataclasses.replace(self, agent=agent)

  def act(
    self,
    timestep: dm_env.TimeStep,
    state: acting_step.ActingState,
    rng_key: jax.Array | None = None,
  ) -> tuple[types.Tree, acting_step.ActingState]:
    """Takes greedy or sampled actions. This function can be jitted.

    Args:
      timestep: `[B, ...]`.
      state: the state that the last call returned. Rows whose `step_type` is
        FIRST ignore it.
      rng_key: random key with which actions are sampled as in training, with an
        epsilon of 0; None for greedy actions.

    Returns:
      The environment's actions, a nest of `[B, ...]` with 32 bits, and the
      state for the next call.

    Raises:
      types.ConfigError: the agent has no `greedy` step.
    """
    action, state = self._take(timestep, state, rng_key)
    return self.actions(action, jnp), state

  def _take(
    self,
    timestep: dm_env.TimeStep,
    state: acting_step.ActingState,
    rng_key: jax.Array | None,
  ) -> tuple[jax.Array, acting_step.ActingState]:
    """Does as `act`, but returns the agent's own array of actions."""
    agent = self.agent
    if rng_key is None:
      if agent.greedy is None:
        raise types.ConfigError(
          "expected an agent with a `greedy` step, found one without"
        )
      agent = dataclasses.replace(agent, step=agent.greedy)
      rng_key = jax.random.key(0)  # A greedy step samples nothing.
    taken = acting_step.take(
      agent,
      self.acting,
      rng_key,
      timestep,
      state,
      exploration=jnp.zeros(timestep.reward.shape, jnp.float32),
    )
    return taken.output.action, taken.acting_state

  def predict(
    self,
    observation: types.Tree,
    state: acting_step.ActingState | None = None,
    episode_start: types.Array | None = None,
    deterministic: bool = True,
    *,
    reward: types.Array | None = None,
  ) -> tuple[types.Tree, acting_step.ActingState]:
    """Returns the action for an observation, both in NumPy.

    The action is what the environment's `step` takes: in its bounds, with its
    dtype, from its smallest integer, and a dict or a tuple if it takes these.
    The arguments are those of `predict` in Stable-Baselines3, and the reward,
    which an LSTM may have as an input.

    Args:
      observation: an observation as in `spec.observation`, or a batch of them,
        `[B, ...]`; images may have their channels last.
      state: the state that the last call returned; None before the first. An
        agent without a memory or a frame stack needs no state.
      episode_start: `[]` or `[B]` bool, whether the observation is the first of
        an episode, which resets the state. None means all rows if `state` is
        None, and no row otherwise.
      deterministic: whether to take the greedy action. Otherwise it is sampled,
        see `act`; `np.random.seed` makes this reproducible.
      reward: `[]` or `[B]`, the reward of the last action; None for 0.

    Returns:
      The action, or `[B, ...]` actions; and the state for the next call.

    Raises:
      types.ConfigError: a shape or dtype is wrong, or the agent has no `greedy`
        step.
    """
    observation, rows = _rows(self.spec.observation, observation)
    size = 1 if rows is None else rows
    if state is not None and len(state.action) != size:
      raise types.ConfigError(
        f"expected a state of {size} rows, as the observation has, found"
        f" {len(state.action)}"
      )
    start = state is None if episode_start is None else episode_start
    first = _of_rows("episode_start", start, size)
    rewards = _of_rows("reward", 0.0 if reward is None else reward, size)
    kinds = dm_env.StepType
    timestep = dm_env.TimeStep(
      step_type=np.where(first, kinds.FIRST, kinds.MID).astype(np.uint8),
      reward=np.where(first, 0.0, rewards).astype(np.float32),
      discount=np.ones(size, np.float32),
      observation=observation,
    )
    if state is None:
      state = self.initial_state(size)
    rng_key = None
    if not deterministic:
      rng_key = jax.random.key(np.random.randint(2**31))
    taken, state = self._jitted(self.acting, timestep, state, rng_key)
    action = np.asarray(taken)
    if rows is None:
      return self.actions.rows(action)[0], state
    return self.actions(action), state

  @functools.cached_property
  def actions(self) -> actions_lib.Actions:
    """The conversion from the agent's actions to the environment's."""
    native = self.spec.native_action
    return actions_lib.Actions(
      self.env.env, self.spec.action if native is None else native
    )

  @functools.cached_property
  def _jitted(
    self,
  ) -> Callable[..., tuple[jax.Array, acting_step.ActingState]]:
    """The compiled `_take`, which takes the parameters as an argument."""
    return jax.jit(
      lambda acting, *args: dataclasses.replace(self, acting=acting)._take(
        *args
      )
    )


def load(
  run_dir: str | os.PathLike[str],
  which: str | int = "latest",
  config: process.Config | None = None,
  *,
  trust: bool = False,
  options: Mapping[str, Any] | None = None,
  opponent: str = "",
  seed_index: int = 0,
) -> Policy:
  """Loads the policy of a run, which may still be training.

  Args:
    run_dir: directory of the run.
    which: "latest", "best", or the env steps of a checkpoint. If the latest or
      the best is damaged, a message is printed, and the next one is loaded.
    config: config of the pipeline, for a run of a script whose pipeline, agent
      or network is not part of seedx; `config.json` does not hold these. If
      given, the code that the directory names is trusted.
    trust: whether to run the code that the directory names, such as a custom
      environment or experiment. Anyone may have written these names.
    options: values of settings of acting, such as `num_simulations`, that
      replace those of the training.
    opponent: opponent in place of that of the run's game, which then is not
      loaded; empty for the same one.
    seed_index: index of the training in a run with several seeds.

  Raises:
    types.ConfigError: there is no such run, checkpoint or training, this
      version of seedx cannot read it, or it names code that is not trusted; or
      a value is out of its range.
  """
  trust = trust or config is not None
  saved = foreign_code.trusted(run_dir, trust, opponent)
  devices.check()
  directory = checkpointer.directory(run_dir)
  checkpoints = checkpoint.Checkpoints(directory)
  config = config or _config(saved)
  if options:
    config = configs.replaced(config, options)
  checkpointer.newest_first(checkpoints)  # Fails early without checkpoints.
  env = opponents.resolved(opponents.against(config.env, opponent), trust)
  spec = envs.spec(env)
  agent = config.agent.make(spec)
  like = jax.eval_shape(
    lambda key: agent.acting(agent.init(key)), jax.random.key(0)
  )
  num_seeds: int = getattr(config, "trainings", 1)
  if not 0 <= seed_index < num_seeds:
    raise types.ConfigError(
      f"expected a seed_index of 0 to {num_seeds - 1}, since this run has"
      f" {num_seeds} {'seed' if num_seeds == 1 else 'seeds'}, found"
      f" {seed_index}"
    )

  def read(step: int) -> types.Tree:
    if not seed_index:
      return checkpoints.restore(step, checkpointer.ACTING, like)
    of_run: Any = config  # Only some pipelines have several seeds.
    scheduled = of_run.plan.agent(of_run.agent, spec)
    state = saved_agents.restored(
      checkpoints, step, scheduled, num_seeds, seed_index
    )
    return scheduled.acting(state)

  env_steps, acting = checkpointer.first_whole(
    checkpoints, lambda: checkpointer.chosen(checkpoints, str(which)), read
  )
  return Policy(
    directory=directory,
    name=saved.name,
    seed=config.seed + seed_index,
    env_steps=env_steps,
    env=envs.at(env, env_steps),
    spec=spec,
    agent=agent,
    acting=jax.device_put(acting),
    has_memory=getattr(config.agent, "memory", None) is not None,
  )


def _config(saved: records.Record) -> process.Config:
  if saved.experiment is None:
    if saved.beyond:
      raise types.ConfigError(
        "expected the config of this run, because config.json cannot hold its"
        f" {', '.join(map(str, saved.beyond))}; use app.load(run_dir,"
        " config=...)"
      )
    try:
      agent = _class(saved.agent, "agents")()
      config = _class(saved.pipeline, "pipelines")(agent=agent)
      assert callable(agent.make)
    except (ImportError, AttributeError, TypeError) as error:
      raise types.ConfigError(
        f"expected configs that this version of seedx has, found {saved.agent}"
        f" in {saved.pipeline} ({error})"
      ) from error
    # Without a replay, a config would lack the replay's settings.
    has_replay = "replay_capacity" in saved.options
    if has_replay and getattr(config, "replay", ...) is None:
      config = dataclasses.replace(config, replay=replay.Config())
    settings = configs.settings(config)
    options = {k: v for k, v in saved.options.items() if k in settings}
    return records.replaced(config, options)
  experiment = experiments.load(saved.experiment)
  name = str(saved.options.get("agent", ""))
  return records.restored(requests.of(experiment, name), saved).run


def _class(name: str, package: str) -> type:
  if not re.fullmatch(rf"seedx\.{package}\.\w+(\.\w+)?:Config", name):
    raise types.ConfigError(
      f"expected the config of this run, because its {name} is not part of"
      " seedx; use app.load(run_dir, config=...)"
    )
  return importlib.import_module(name.partition(":")[0]).Config


def _rows(
  specs: types.Tree, observation: types.Tree
) -> tuple[types.Tree, int | None]:
  """Returns a batch; and its number of rows, or None for one observation."""
  structure: Any = jax.tree.structure(specs)  # JAX's stubs lack a method.
  try:
    plain = _plain(observation)
    leaves = [np.asarray(x) for x in structure.flatten_up_to(plain)]
  except ValueError as error:  # The nest differs, or a list is ragged.
    raise types.ConfigError(
      f"expected an observation of {jax.tree.map(_in_words, specs)},"
      f" found another nest: {' '.join(str(error).split())}"
    ) from error
  rows = set()
  for i, (path, spec) in enumerate(jax.tree.leaves_with_path(specs)):
    leaf = leaves[i] = _channels_first(spec, leaves[i])
    part = f" in its part {jax.tree_util.keystr(path)}" if path else ""
    shape = leaf.shape[max(leaf.ndim - len(spec.shape), 0) :]
    extra = leaf.ndim - len(spec.shape)
    fits = np.can_cast(leaf.dtype, spec.dtype, "same_kind")
    if extra not in (0, 1) or shape != spec.shape or not fits:
      raise types.ConfigError(
        f"expected an observation of {_in_words(spec)}{part}, or a batch of"
        f" these, found {_in_words(leaf)}"
      )
    rows.add(len(leaf) if extra else None)
  if len(rows) != 1:
    raise types.ConfigError(
      "expected one observation or a batch, whose parts have the same number"
      f" of rows, found {' and '.join(sorted(map(str, rows)))}"
    )
  (size,) = rows
  batch = [
    (x if size is not None else x[None]).astype(spec.dtype)
    for spec, x in zip(jax.tree.leaves(specs), leaves, strict=True)
  ]
  return jax.tree.unflatten(structure, batch), size


def _channels_first(spec: dm_env.specs.Array, leaf: np.ndarray) -> np.ndarray:
  """Moves the channels of an image from the last axis, if they are there."""
  last, shape = (*spec.shape[1:], *spec.shape[:1]), leaf.shape[-3:]
  is_last = types.is_image(spec) and shape == last != spec.shape
  return np.moveaxis(leaf, -1, -3) if is_last else leaf


def _plain(nest: types.Tree) -> types.Tree:
  """Replaces mappings by dictionaries without texts, as specs have them."""
  if isinstance(nest, Mapping):
    return {k: _plain(x) for k, x in nest.items() if not isinstance(x, str)}
  return nest


def _in_words(array: types.Array) -> str:
  return f"{array.dtype} {array.shape}"


def _of_rows(name: str, value: types.Array, size: int) -> np.ndarray:
  """Broadcasts a value to all rows; types.ConfigError if its shape is wrong."""
  array = np.asarray(value)
  if array.shape not in ((), (size,)):
    raise types.ConfigError(
      f"expected {name} of shape () or ({size},), found {array.shape}"
    )
  return np.broadcast_to(array, (size,))
