"""PPO's clipping of values, compared with worked examples."""

import jax
import numpy as np

from seedx import losses

ARGUMENTS = (
  "values",
  "log_prob",
  "behaviour_log_prob",
  "entropy",
  "advantage",
  "target",
  "weight",
)


@jax.jit
def losses_and_gradients(arguments):

  def total(learned):
    loss = losses.ppo(**arguments | learned, clip_epsilon=0.25)
    return loss.policy_gradient.sum() + loss.value.sum(), loss

  learned = {name: arguments[name] for name in ("log_prob", "values")}
  gradients, loss = jax.grad(total, has_aux=True)(learned)
  return loss, gradients


def evaluate(**columns):
  """Evaluates steps with ratio 1 and error 0, except for the given columns."""
  steps = len(next(iter(columns.values())))
  arguments = dict.fromkeys(ARGUMENTS, np.zeros(steps))
  arguments |= {"weight": np.ones(steps)} | columns
  arguments = {k: np.asarray(v, np.float32) for k, v in arguments.items()}
  return losses_and_gradients(arguments)


def test_a_value_is_clipped_if_it_moved_far_towards_its_target():
  values, target, square, expected_gradient = np.transpose(
    [
      # V' = 1 before the update. V is clipped if it moved by more than 0.25
      # towards the target, but not if it moved away from the target.
      (1.5, 3.0, 1.75**2, 0.0),  # max((3 - 1.5)^2, (3 - 1.25)^2)
      (0.5, 3.0, 2.5**2, -2.5),  # max((3 - 0.5)^2, (3 - 0.75)^2)
      (0.5, -1.0, 1.75**2, 0.0),  # max((-1 - 0.5)^2, (-1 - 0.75)^2)
      (1.5, -1.0, 2.5**2, 2.5),  # max((-1 - 1.5)^2, (-1 - 1.25)^2)
      (1.125, 3.0, 1.875**2, -1.875),
      (1.0, 3.0, 2.0**2, -2.0),
    ]
  )
  old = np.ones(6)
  loss, gradients = evaluate(values=values, target=target, behaviour_values=old)
  np.testing.assert_allclose(loss.value, 0.5 * square, rtol=1e-6)
  np.testing.assert_allclose(gradients["values"], expected_gradient, rtol=1e-6)
  loss, gradients = evaluate(values=values, target=target)
  error = values - target
  np.testing.assert_allclose(loss.value, 0.5 * error**2, rtol=1e-6)
  np.testing.assert_allclose(gradients["values"], error, rtol=1e-6)
