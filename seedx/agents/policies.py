"""Policies of agents with a critic of (state, action), and their noise."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

import dm_env
import jax
import jax.numpy as jnp

from seedx import losses, types

# Maps actions `[T, B, A]` of a batch to Q-values `[T, B, C]` of the critics.
QFunction = Callable[[jax.Array], jax.Array]


class Proposal(NamedTuple):
  """Actions of a policy, as learning evaluates them.

  Attributes:
    action: `[..., A]`, actions; or probabilities of discrete actions.
    log_prob: `[...]`, log pi(a | s), or its mean over discrete actions; 0 for a
      deterministic policy.
    entropy_bonus: `[...]`, -alpha log pi(a | s), added to the state's value.
  """

  action: jax.Array
  log_prob: jax.Array
  entropy_bonus: jax.Array


class Policy(Protocol):
  """The functions and numbers in which agents with critics differ.

  Parameters are in groups, "actor", "critic" and perhaps others. Outputs of the
  actor are `[..., P]`. Noise is `[..., A]`, normal of mean 0 and variance 1.

  Attributes:
    num_parameters: P.
    rates: name of each group's learning rate, see `optimizers.Optimizer.make`.
    target_groups: groups with target parameters.
    actor_period: updates between two updates of all groups but the critics.
  """

  num_parameters: int
  rates: ClassVar[Mapping[str, str]] = {
    "actor": "learning_rate",
    "critic": "critic_learning_rate",
  }
  target_groups: ClassVar[Sequence[str]] = ("critic",)
  actor_period: int = 1

  def others(self) -> dict[str, types.Tree]:
    """Returns initial parameters of the other groups."""
    return {}

  def explore(
    self,
    outputs: jax.Array,
    noise: jax.Array,
    exploration: jax.Array,
    hyperparameters: Mapping[str, jax.Array],
  ) -> jax.Array:
    """Returns actions to take, `[B, A]`.

    `exploration` is `[B]`, see `types.Inputs`; `hyperparameters` are those of
    the `AgentState`.
    """

  def greedy(self, outputs: jax.Array) -> jax.Array:
    """Returns actions without noise, `[B, A]`."""

  def propose(
    self,
    params: types.Tree,
    outputs: jax.Array,
    noise: jax.Array,
    *,
    smooth: bool = False,
  ) -> Proposal:
    """Returns the policy's actions; `smooth` for those of a target."""

  def losses(
    self,
    params: types.Tree,
    proposal: Proposal,
    q_function: QFunction,
    step_type: jax.Array,
  ) -> tuple[dict[str, losses.ActorLoss], dict[str, jax.Array]]:
    """Returns losses and diagnostics, `[T, B]` each, by name.

    There is a loss for each group but the critics. The proposal is `[T, B]`.
    """


def noise(
  rng_key: jax.Array,
  timestep: dm_env.TimeStep,
  past: jax.Array,
  correlation: float,
) -> jax.Array:
  """Returns the noise of a step, `[B, A]`, of mean 0 and variance 1.

  A first-order autoregressive process, that is a discrete Ornstein-Uhlenbeck
  process, as in Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971,
  section 3; but in its stationary state from an episode's first step.

  Args:
    rng_key: random key.
    timestep: `[B]`, the environments' time steps.
    past: `[B, A]`, noise of the step before.
    correlation: correlation of consecutive steps of an episode.
  """
  fresh = jax.random.normal(rng_key, past.shape)
  if not correlation:
    return fresh
  first = timestep.step_type == int(dm_env.StepType.FIRST)
  later = correlation * past + (1 - correlation**2) ** 0.5 * fresh
  return jnp.where(first[:, None], fresh, later)
