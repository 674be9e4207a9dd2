"""Models: the parts of an observation that they see, and actions for heads."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import networks, types
from seedx.agents import acting_step, models
from tests import conftest

VECTOR = specs.Array((3,), np.float32)
SPEC = types.EnvironmentSpec(
  observation={
    "board": VECTOR,
    "legal": specs.Array((4,), np.float32),
    "state": {"clock": specs.Array((), np.int32), "seed": VECTOR},
  },
  action=specs.DiscreteArray(4),
  action_mask="legal",
)
CONFIG = models.Config(hidden_sizes=(8,), normalize_observations=True)
ROWS = 5, 3


def inputs_of(spec, seed):
  rng = np.random.default_rng(seed)
  zeros = acting_step.zero_inputs(spec, 1)
  inputs = jax.tree.map(lambda x: np.zeros(ROWS + x.shape[1:], x.dtype), zeros)
  observation = jax.tree.map(
    lambda x: conftest.random_values(rng, x, ROWS), spec.observation
  )
  timestep = inputs.timestep._replace(observation=observation)
  return inputs._replace(timestep=timestep)


def test_a_model_sees_only_the_keys_of_its_spec():
  visible = SPEC.without("state")
  q_model = models.Model.make(visible, CONFIG, networks.QHead(4))
  variables = jax.jit(q_model.init)(jax.random.key(0))
  unroll, moments_of = jax.jit(q_model.unroll), jax.jit(q_model.moments)
  inputs, other = inputs_of(SPEC, 0), inputs_of(SPEC, 1)
  hidden = inputs.timestep.observation | {
    "state": other.timestep.observation["state"]
  }
  other = inputs._replace(timestep=inputs.timestep._replace(observation=hidden))
  visible_only = {key: hidden[key] for key in visible.observation}
  visible_only = inputs._replace(
    timestep=inputs.timestep._replace(observation=visible_only)
  )
  outputs = [
    unroll(variables, x, q_model.initial_core_state(ROWS[1]))
    for x in (inputs, other, visible_only)
  ]
  statistics = variables.statistics
  moments = [moments_of(statistics, x, None) for x in (inputs, visible_only)]
  for actual, expected in (
    (outputs[:2], outputs[2]),
    (moments[:1], moments[1]),
  ):
    for x in actual:
      jax.tree.map(np.testing.assert_array_equal, x, expected)
  np.testing.assert_array_equal(outputs[0].action_mask, hidden["legal"])


def test_a_spec_without_its_mask_key_has_no_mask():
  assert SPEC.without("state").action_mask == "legal"
  assert SPEC.without("state", "legal").action_mask is None
  assert [*SPEC.without("state", "legal").observation] == ["board"]


def test_a_network_that_is_too_large_is_refused_before_it_is_made():
  large, wide = (
    models.Model.make(SPEC, models.Config(hidden_sizes=x), networks.QHead(4))
    for x in ((2**20, 2**20), (2**20,))
  )
  with pytest.raises(types.ConfigError, match="parameters, found 1,099,5"):
    jax.jit(large.init)(jax.random.key(0))
  assert jax.eval_shape(wide.init, jax.random.key(0)).params


def test_a_number_of_layers_that_would_be_traced_for_minutes_is_refused():
  deep, deeper = (models.Config(hidden_sizes=(8,) * x) for x in (32, 33))
  assert models.Model.make(SPEC, deep, networks.QHead(4))
  with pytest.raises(types.ConfigError, match="most 32 layers, found 33"):
    models.Model.make(SPEC, deeper, networks.QHead(4))


class Critic(nn.Module):
  """A critic that adds the sum of an action to its value."""

  @nn.compact
  def __call__(self, features, action):
    return nn.Dense(1)(features)[..., 0] + jnp.sum(action, axis=-1)


def test_an_action_reaches_the_head():
  spec = types.EnvironmentSpec(
    VECTOR, specs.BoundedArray((2,), np.float32, -1.0, 1.0)
  )

  class Critics(nn.Module):
    """A critic for each tower."""

    @nn.compact
    def __call__(self, *features, action):
      return jnp.stack([Critic()(x, action) for x in features])

  critic = models.Model.make(
    spec, models.Config(hidden_sizes=(8,)), Critics(), towers=2
  )
  variables = jax.jit(critic.init)(jax.random.key(0), np.zeros((1, 1, 2)))
  unroll = jax.jit(critic.unroll)
  inputs = inputs_of(spec, 0)
  action = np.random.default_rng(0).normal(size=(*ROWS, 2)).astype(np.float32)
  values = [
    unroll(variables, inputs, critic.initial_core_state(3), action=x).head
    for x in (action, np.zeros_like(action))
  ]
  assert values[0].shape == (2, *ROWS)
  np.testing.assert_allclose(
    values[0] - values[1],
    np.broadcast_to(action.sum(-1), values[0].shape),
    rtol=1e-5,
    atol=1e-6,
  )


def test_initial_parameters_are_drawn_without_a_loop():
  """JAX's own random keys draw in loops, which take long to compile."""
  q_model = models.Model.make(SPEC, CONFIG, networks.QHead(4))
  program = jax.jit(q_model.init).lower(jax.random.key(0))
  assert "while" not in program.as_text()
