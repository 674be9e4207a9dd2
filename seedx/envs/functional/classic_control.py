"""Gymnasium's environments of classic control as functions.

The functions use the equations of https://gymnasium.farama.org/environments, in
float32 instead of float64.
"""

import dm_env.specs
import jax
import jax.numpy as jnp
import numpy as np

from seedx.envs.functional.episodic import Episodic, Outcome


class CartPole(Episodic):
  """A pole on a cart, to be kept upright by pushes to the left or the right.

  The state and the observation are (position in m, velocity, angle in rad,
  angular velocity). The reward of each step is 1. Barto, Sutton and Anderson
  1983, https://doi.org/10.1109/TSMC.1983.6313077.
  """

  observation = dm_env.specs.Array((4,), np.float32, "observation")
  action = dm_env.specs.DiscreteArray(2, np.int32, "action")
  time_limit = 500

  def reset(self, rng_key: jax.Array) -> jax.Array:
    """See `Episodic`."""
    return jax.random.uniform(rng_key, (4,), minval=-0.05, maxval=0.05)

  def act(
    self, state: jax.Array, action: jax.Array, rng_key: jax.Array
  ) -> Outcome:
    """See `Episodic`."""
    del rng_key
    pole, total, half_length, seconds = 0.1, 1.1, 0.5, 0.02
    _, x_dot, theta, theta_dot = state
    force = jnp.where(action == 1, 10.0, -10.0)
    sin, cos = jnp.sin(theta), jnp.cos(theta)
    push = (force + pole * half_length * theta_dot**2 * sin) / total
    inertia = half_length * (4 / 3 - pole * cos**2 / total)
    theta_2dot = (9.8 * sin - cos * push) / inertia
    x_2dot = push - pole * half_length * theta_2dot * cos / total
    state = state + seconds * jnp.stack([x_dot, x_2dot, theta_dot, theta_2dot])
    fell = (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > jnp.pi / 15)
    return Outcome(state, jnp.float32(1), fell)

  def observe(self, state: jax.Array) -> jax.Array:
    """See `Episodic`."""
    return state


class Pendulum(Episodic):
  """A pendulum, to be swung up and held by a torque from -2 to 2.

  The state is (angle from upright in rad, angular velocity). The observation is
  (cosine, sine, angular velocity).
  """

  observation = dm_env.specs.Array((3,), np.float32, "observation")
  action = dm_env.specs.BoundedArray((1,), np.float32, -2.0, 2.0, "action")
  time_limit = 200

  def reset(self, rng_key: jax.Array) -> jax.Array:
    """See `Episodic`."""
    high = jnp.array([jnp.pi, 1.0])
    return jax.random.uniform(rng_key, (2,), minval=-high, maxval=high)

  def act(
    self, state: jax.Array, action: jax.Array, rng_key: jax.Array
  ) -> Outcome:
    """See `Episodic`."""
    del rng_key
    theta, theta_dot = state
    torque = action[0]
    angle = (theta + jnp.pi) % (2 * jnp.pi) - jnp.pi
    cost = angle**2 + 0.1 * theta_dot**2 + 0.001 * torque**2
    theta_dot += 0.05 * (15.0 * jnp.sin(theta) + 3.0 * torque)
    theta_dot = jnp.clip(theta_dot, -8.0, 8.0)
    return Outcome(
      jnp.stack([theta + 0.05 * theta_dot, theta_dot]), -cost, False
    )

  def observe(self, state: jax.Array) -> jax.Array:
    """See `Episodic`."""
    theta, theta_dot = state
    return jnp.stack([jnp.cos(theta), jnp.sin(theta), theta_dot])


class MountainCarContinuous(Episodic):
  """A car in a valley, too weak to drive up the right hill without a run-up.

  The state and the observation are (position, velocity). An action from -1 to 1
  is the engine's push to the right, and costs a tenth of its square. The goal,
  at position 0.45, gives 100. A car that never pushes has a return of 0. Moore
  1990, "Efficient Memory-based Learning for Robot Control".
  """

  observation = dm_env.specs.Array((2,), np.float32, "observation")
  action = dm_env.specs.BoundedArray((1,), np.float32, -1.0, 1.0, "action")
  time_limit = 999

  def reset(self, rng_key: jax.Array) -> jax.Array:
    """See `Episodic`."""
    position = jax.random.uniform(rng_key, minval=-0.6, maxval=-0.4)
    return jnp.stack([position, 0.0])

  def act(
    self, state: jax.Array, action: jax.Array, rng_key: jax.Array
  ) -> Outcome:
    """See `Episodic`."""
    del rng_key
    position, velocity = state
    push = action[0]
    velocity += 0.0015 * push - 0.0025 * jnp.cos(3 * position)
    velocity = jnp.clip(velocity, -0.07, 0.07)
    position = jnp.clip(position + velocity, -1.2, 0.6)
    # A wall on the left stops the car.
    velocity = jnp.where((position == -1.2) & (velocity < 0), 0.0, velocity)
    arrived = (position >= 0.45) & (velocity >= 0)
    reward = jnp.where(arrived, 100.0, 0.0) - 0.1 * push**2
    return Outcome(jnp.stack([position, velocity]), reward, arrived)

  def observe(self, state: jax.Array) -> jax.Array:
    """See `Episodic`."""
    return state


class Acrobot(Episodic):
  """Two links, to be swung up by a torque of -1, 0 or 1 between them.

  The state is (angle of the first link from hanging down, angle between the
  links, their velocities). The observation has the cosine and the sine of each
  angle, and the velocities. Each step costs 1, until the free end is one link's
  length above the pivot. Equations of Sutton and Barto 1998, "Reinforcement
  Learning", section 11.3.
  """

  observation = dm_env.specs.Array((6,), np.float32, "observation")
  action = dm_env.specs.DiscreteArray(3, np.int32, "action")
  time_limit = 500

  def reset(self, rng_key: jax.Array) -> jax.Array:
    """See `Episodic`."""
    return jax.random.uniform(rng_key, (4,), minval=-0.1, maxval=0.1)

  def act(
    self, state: jax.Array, action: jax.Array, rng_key: jax.Array
  ) -> Outcome:
    """See `Episodic`."""
    del rng_key
    torque = action.astype(jnp.float32) - 1.0
    theta_1, theta_2, dtheta_1, dtheta_2 = _runge_kutta(state, torque, 0.2)
    angles = (jnp.stack([theta_1, theta_2]) + jnp.pi) % (2 * jnp.pi) - jnp.pi
    state = jnp.stack(
      [
        *angles,
        jnp.clip(dtheta_1, -4 * jnp.pi, 4 * jnp.pi),
        jnp.clip(dtheta_2, -9 * jnp.pi, 9 * jnp.pi),
      ]
    )
    up = -jnp.cos(angles[0]) - jnp.cos(angles[0] + angles[1]) > 1.0
    return Outcome(state, jnp.where(up, 0.0, -1.0), up)

  def observe(self, state: jax.Array) -> jax.Array:
    """See `Episodic`."""
    cos, sin = jnp.cos(state[:2]), jnp.sin(state[:2])
    return jnp.stack([cos[0], sin[0], cos[1], sin[1], state[2], state[3]])


def _runge_kutta(
  state: jax.Array, torque: jax.Array, seconds: float
) -> jax.Array:
  """Integrates Acrobot's state by one Runge-Kutta step of fourth order."""
  first = _velocity(state, torque)
  second = _velocity(state + seconds / 2 * first, torque)
  third = _velocity(state + seconds / 2 * second, torque)
  fourth = _velocity(state + seconds * third, torque)
  return state + seconds / 6 * (first + 2 * second + 2 * third + fourth)


def _velocity(state: jax.Array, torque: jax.Array) -> jax.Array:
  """Returns the derivative of Acrobot's state, whose links are equal."""
  mass, length, centre, inertia, gravity = 1.0, 1.0, 0.5, 1.0, 9.8
  theta_1, theta_2, dtheta_1, dtheta_2 = state
  sin, cos = jnp.sin(theta_2), jnp.cos(theta_2)
  d_1 = (
    mass * centre**2
    + mass * (length**2 + centre**2 + 2 * length * centre * cos)
    + 2 * inertia
  )
  d_2 = mass * (centre**2 + length * centre * cos) + inertia
  # Gymnasium writes this sine as cos(theta_1 + theta_2 - pi / 2).
  phi_2 = mass * centre * gravity * jnp.sin(theta_1 + theta_2)
  phi_1 = (
    -mass * length * centre * dtheta_2**2 * sin
    - 2 * mass * length * centre * dtheta_2 * dtheta_1 * sin
    + mass * (centre + length) * gravity * jnp.sin(theta_1)
    + phi_2
  )
  pull = mass * length * centre * dtheta_1**2 * sin
  ddtheta_2 = (torque + d_2 / d_1 * phi_1 - pull - phi_2) / (
    mass * centre**2 + inertia - d_2**2 / d_1
  )
  ddtheta_1 = -(d_2 * ddtheta_2 + phi_1) / d_1
  return jnp.stack([dtheta_1, dtheta_2, ddtheta_1, ddtheta_2])
