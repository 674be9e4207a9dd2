"""The papers' formulas in NumPy, for one episode at a time.

A loss takes two streams, and reads the arguments that have a gradient from the
first, and constants from the second. The streams differ only when finite
differences are computed.
"""

import numpy as np

from seedx import losses
from tests.losses import streams


def per_episode(of_one, stream, at_reset):
  """Evaluates `of_one` at each step of each episode of a stream, `[T]`.

  Args:
    of_one: function `(s, v, r, d) -> number` of step s of an episode, or
      `(s, v, r, d, log_ratio)` for a stream with log-probabilities.
    stream: stream with `values`.
    at_reset: `[T]`, results at resets.
  """
  result = np.array(at_reset, np.float64)
  for start, stop in streams.spans(stream):
    episode = streams.cut(stream, start, stop)
    episode = {k: np.asarray(v, np.float64) for k, v in episode.items()}
    arrays = [episode["values"], episode["reward"], episode["discount"]]
    if "log_prob" in episode:
      arrays.append(episode["log_prob"] - episode["behaviour_log_prob"])
    for s in range(stop - start - 1):
      result[start + s] = of_one(s, *arrays)
  return result


def return_inputs(stream, values=None):
  """Selects the arrays from which returns are computed."""
  names = "values", "reward", "discount", "step_type"
  stream = {name: stream[name] for name in names}
  return stream if values is None else stream | {"values": values}


def weights(stream):
  return per_episode(
    lambda *_: 1.0, return_inputs(stream), stream["values"][:-1] * 0
  )


# Returns


def n_step_return(s, v, r, d, n):
  """Computes equation 7.1 of Sutton and Barto 2018, with varying discounts."""
  n = min(n, len(v) - 1 - s)
  total = np.prod(d[s + 1 : s + n + 1]) * v[s + n]
  for k in range(1, n + 1):
    total += np.prod(d[s + 1 : s + k]) * r[s + k]
  return total


def lambda_return(s, v, r, d, lambda_):
  """Computes equation 12.3 of Sutton and Barto 2018."""
  longest = len(v) - 1 - s
  total = lambda_ ** (longest - 1) * n_step_return(s, v, r, d, longest)
  for n in range(1, longest):
    weight = (1 - lambda_) * lambda_ ** (n - 1)
    total += weight * n_step_return(s, v, r, d, n)
  return total


def advantage_estimate(s, v, r, d, lambda_):
  """Computes equation 16 of Schulman et al. 2015."""
  total = 0.0
  for t in range(s, len(v) - 1):
    delta = r[t + 1] + d[t + 1] * v[t + 1] - v[t]
    total += np.prod(lambda_ * d[s + 1 : t + 1]) * delta
  return total


def n_step_returns(stream, _, n):
  return per_episode(
    lambda *x: n_step_return(*x, n),
    return_inputs(stream),
    stream["values"][:-1],
  )


def lambda_returns(stream, _, lambda_=1.0):
  return per_episode(
    lambda *x: lambda_return(*x, lambda_),
    return_inputs(stream),
    stream["values"][:-1],
  )


def q_lambda_returns(stream, _, lambda_=1.0):
  best = np.array([max(values) for values in stream["q_values"]])
  return lambda_returns(stream | {"values": best}, None, lambda_)


def gae(stream, _, lambda_=0.95):
  return per_episode(
    lambda *x: advantage_estimate(*x, lambda_),
    return_inputs(stream),
    np.zeros(len(stream["values"]) - 1),
  )


# Losses


def actor_critic(stream, constant, advantage, target, **others):
  weight = weights(constant)
  return losses.ActorCriticLoss(
    policy_gradient=-advantage * stream["log_prob"] * weight,
    value=0.5 * (target - stream["values"][:-1]) ** 2 * weight,
    entropy=-stream["entropy"] * weight,
    weight=weight,
    diagnostics=diagnostics(constant, advantage, target, **others),
  )


def diagnostics(constant, advantage, target, **others):
  """Returns the diagnostics of `ActorCriticLoss`, 0 at resets."""
  unweighted = {
    "advantage": advantage,
    "value_target": target,
    "value_error": target - constant["values"][:-1],
    **others,
  }
  return {name: x * weights(constant) for name, x in unweighted.items()}


def ratios(constant):
  """Returns pi(a) / mu(a)."""
  return np.exp(constant["log_prob"] - constant["behaviour_log_prob"])


def approx_kl(constant):
  """Computes estimator 3 of Schulman 2020, joschu.net/blog/kl-approx.html."""
  return ratios(constant) - 1 - np.log(ratios(constant))


def a2c(stream, constant, lambda_=1.0):
  target = lambda_returns(constant, None, lambda_)
  advantage = target - constant["values"][:-1]
  return actor_critic(stream, constant, advantage, target)


def vtrace(
  stream,
  constant,
  lambda_=1.0,
  clip_rho_threshold=1.0,
  clip_pg_rho_threshold=1.0,
):
  """Computes equation 1 of Espeholt et al. 2018, term by term.

  v_s = V(x_s) + sum_{t=s}^{s+n-1} gamma^{t-s} (prod_{i=s}^{t-1} c_i)
        rho_t (r_t + gamma V(x_{t+1}) - V(x_t))
  """

  def target(s, v, r, d, log_ratio):
    ratio = np.exp(log_ratio)
    c = lambda_ * np.minimum(1.0, ratio)
    total = v[s]
    for t in range(s, len(v) - 1):
      gammas = np.prod(d[s + 1 : t + 1])
      rho = min(clip_rho_threshold, ratio[t])
      delta = rho * (r[t + 1] + d[t + 1] * v[t + 1] - v[t])
      total += gammas * np.prod(c[s:t]) * delta
    return total

  def advantage(s, v, r, d, log_ratio):
    # The paper has no lambda here; `after` mixes the target and V by lambda.
    after = lambda_ * target(s + 1, v, r, d, log_ratio)
    after += (1 - lambda_) * v[s + 1]
    rho = min(clip_pg_rho_threshold, np.exp(log_ratio[s]))
    return rho * (r[s + 1] + d[s + 1] * after - v[s])

  zeros = np.zeros(len(constant["log_prob"]))
  return actor_critic(
    stream,
    constant,
    per_episode(advantage, constant, zeros),
    per_episode(target, constant, constant["values"][:-1]),
    approx_kl=approx_kl(constant),
    importance_weight=ratios(constant),
    importance_square=ratios(constant) ** 2,
    clip_mass=np.maximum(ratios(constant) - clip_rho_threshold, 0),
    clip_fraction=ratios(constant) > 1.001 * clip_rho_threshold,
  )


def ppo(stream, constant, lambda_=0.95, clip_epsilon=0.2, clip_values=False):
  """Computes equation 7 of Schulman et al. 2017, case by case.

  Advantages and targets are computed from the values before the update.
  """
  old = constant["behaviour_values"]
  acted = constant | {"values": old}
  advantage = gae(acted, None, lambda_)
  weight = weights(constant)
  parts = [], []
  for t, a in enumerate(advantage):
    ratio = np.exp(stream["log_prob"][t] - constant["behaviour_log_prob"][t])
    # The bound is 1 + epsilon for good actions, 1 - epsilon for bad ones.
    bound = min if a > 0 else max
    surrogate = a * bound(ratio, 1 + np.sign(a) * clip_epsilon)
    error = a + old[t] - stream["values"][t]
    square = error**2
    if clip_values:
      low, high = old[t] - clip_epsilon, old[t] + clip_epsilon
      near = min(max(stream["values"][t], low), high)
      square = max(square, (a + old[t] - near) ** 2)
    parts[0].append(-surrogate * weight[t])
    parts[1].append(0.5 * square * weight[t])
  return losses.ActorCriticLoss(
    *map(np.array, parts),
    entropy=-stream["entropy"] * weight,
    weight=weight,
    diagnostics=diagnostics(
      constant,
      advantage,
      advantage + old[:-1],
      approx_kl=approx_kl(constant),
      clip_fraction=np.abs(ratios(constant) - 1) > clip_epsilon,
    ),
  )


def rescaled(x):
  """Computes h of Pohlen et al. 2018, section 3.1."""
  return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def unrescaled(x):
  """Computes the inverse of h, proposition A.2 of Pohlen et al. 2018."""
  root = np.sqrt(1 + 4e-3 * (np.abs(x) + 1 + 1e-3))
  return np.sign(x) * (((root - 1) / 2e-3) ** 2 - 1)


def alphazero(stream, constant, lambda_=1.0):
  """Computes equation 1 of Silver et al. 2018, without its regularization."""
  weight = weights(constant)
  target = lambda_returns(constant, None, lambda_) * weight
  cross_entropy = -np.einsum(
    "ta,ta->t", constant["search_policy"], stream["log_policy"]
  )
  error = (target - stream["values"][:-1]) * weight
  return losses.AlphaZeroLoss(cross_entropy * weight, error**2, weight, target)


def q_learning(
  stream, constant, n=1, double=True, huber_delta=None, rescale=False
):
  def identity(x):
    return x

  h, inverse = (rescaled, unrescaled) if rescale else (identity, identity)
  values = []
  for q, target_q in zip(
    constant["q_values"], constant["target_q_values"], strict=True
  ):
    best = max(range(len(q)), key=(q if double else target_q).__getitem__)
    values.append(inverse(np.float64(target_q[best])))
  steps = range(len(values) - 1)
  targets = per_episode(
    lambda *x: h(n_step_return(*x, n)),
    return_inputs(constant, np.array(values)),
    np.zeros(len(steps)),
  )
  weight = weights(constant)

  def td_error(stream):
    taken = [stream["q_values"][t, constant["action"][t]] for t in steps]
    return (targets - np.array(taken)) * weight

  td = td_error(stream)
  loss = 0.5 * td**2
  if huber_delta is not None:
    line = huber_delta * (np.abs(td) - 0.5 * huber_delta)
    loss = np.where(np.abs(td) <= huber_delta, loss, line)
  return losses.QLearningLoss(
    loss * constant["importance_weight"], td_error(constant), weight
  )


def categorical_q_learning(stream, constant, atoms=None, n=1, double=True):
  """Computes algorithm 1 of Bellemare et al. 2017, episode by episode."""
  atoms = np.linspace(-20, 20, streams.ATOMS) if atoms is None else atoms

  def bootstrapped(step):
    by = constant["q_values" if double else "target_q_values"][step]
    return probabilities(constant["target_logits"][step][by.argmax()])

  loss = np.zeros(len(constant["action"]))
  targets = distribution_targets(constant, bootstrapped, atoms, n)
  for t, target in targets.items():
    loss[t] = divergence(target, stream["logits"][t, constant["action"][t]])
  return losses.QLearningLoss(loss, loss, weights(constant))


def distribution_targets(constant, bootstrapped, atoms, n):
  """Returns the projected n-step returns, by step; resets have none.

  Args:
    constant: stream.
    bootstrapped: function from a step to the probabilities `[Z]` of its value.
    atoms: `[Z]`.
    n: number of steps before bootstrapping.
  """
  targets = {}
  for start, stop in streams.spans(constant):
    for t in range(start, stop - 1):
      end = min(t + n, stop - 1)
      reward, discount = 0.0, 1.0
      for k in range(t + 1, end + 1):
        reward += discount * constant["reward"][k]
        discount *= np.float64(constant["discount"][k])
      returns = reward + discount * atoms
      targets[t] = projected(returns, bootstrapped(end), atoms)
  return targets


def divergence(target, logits):
  """Returns KL(target || softmax(logits))."""
  positive = target > 0
  ratio = target[positive] / probabilities(logits)[positive]
  return np.sum(target[positive] * np.log(ratio))


def probabilities(logits):
  power = np.exp(np.float64(logits) - np.max(logits))
  return power / power.sum()


def projected(returns, mass, atoms):
  """Divides each return's mass between the two atoms next to it."""
  result, gap = np.zeros(len(atoms)), atoms[1] - atoms[0]
  for value, part in zip(returns, mass, strict=True):
    place = (np.clip(value, atoms[0], atoms[-1]) - atoms[0]) / gap
    low, high = int(np.floor(place)), int(np.ceil(place))
    result[low] += part * (1.0 if low == high else high - place)
    result[high] += 0.0 if low == high else part * (place - low)
  return result


# Continuous actions


def clipped_targets(constant, n=1, soft=True):
  """Computes equation 10 of Fujimoto et al. 2018 for n steps; 0 at resets.

  Soft values are those of equation 3 of Haarnoja et al. 2018.
  """
  values = np.array([min(q) for q in constant["critics.target_q_values"]])
  values = values.astype(np.float64) + soft * constant["entropy_bonus"]
  return per_episode(
    lambda *x: n_step_return(*x, n),
    return_inputs(constant, values),
    np.zeros(len(values) - 1),
  )


def clipped_double_q_learning(stream, constant, **setting):
  targets, weight = clipped_targets(constant, **setting), weights(constant)

  def td_errors(stream):
    errors = targets[:, None] - stream["critics.q_values"]
    return weight[:, None] * errors

  return losses.QLearningLoss(
    0.5 * np.sum(td_errors(stream) ** 2, axis=1),
    np.mean(np.abs(td_errors(constant)), axis=1),
    weight,
  )


def categorical_critic_targets(constant, atoms=None, n=1):
  """Returns the targets of D4PG's critics, by step; resets have none.

  Barth-Maron et al. 2018, algorithm 1; of several critics, the one with the
  smallest mean.
  """
  atoms = np.linspace(-20, 20, streams.ATOMS) if atoms is None else atoms

  def bootstrapped(step):
    each = map(probabilities, constant["critics.target_logits"][step])
    return min(each, key=lambda mass: np.sum(mass * atoms))

  return distribution_targets(constant, bootstrapped, atoms, n)


def categorical_clipped_double_q_learning(stream, constant, **setting):
  per_critic = np.zeros(stream["critics.logits"].shape[:2])
  targets = categorical_critic_targets(constant, **setting)
  for t, target in targets.items():
    for critic, logits in enumerate(stream["critics.logits"][t]):
      per_critic[t, critic] = divergence(target, logits)
  return losses.QLearningLoss(
    per_critic.sum(axis=1), per_critic.mean(axis=1), weights(constant)
  )


def deterministic_policy_gradient(stream, constant, gradient_clip=np.inf):
  """Computes the loss whose gradient is equation 9 of Silver et al. 2014."""
  loss, weight = [], weights(constant)
  for a, gradient, a_now, w in zip(
    np.float64(constant["actor.action"]),
    np.float64(constant["actor.action_gradient"]),
    np.float64(stream["actor.action"]),
    weight,
    strict=True,
  ):
    better = [
      x + max(-gradient_clip, min(g, gradient_clip))
      for x, g in zip(a, gradient, strict=True)
    ]
    loss.append(w * 0.5 * np.sum((np.array(better) - a_now) ** 2))
  return losses.ActorLoss(np.array(loss), weight)


def soft_policy(stream, constant, temperature=0.5):
  """Computes equation 9 of Haarnoja et al. 2018, with the twins' minimum."""
  weight = weights(constant)
  smallest = np.array([min(q) for q in stream["critics.q_values"]])
  loss = temperature * np.float64(stream["log_prob"]) - smallest
  return losses.ActorLoss(loss * weight, weight)


def temperature(stream, constant, target_entropy=-2.0):
  """Computes equation 18 of Haarnoja et al. 2018."""
  weight = weights(constant)
  alpha = np.exp(np.float64(stream["log_temperature"]))
  log_prob = np.float64(constant["log_prob"])
  loss = -alpha * log_prob - alpha * target_entropy
  return losses.ActorLoss(loss * weight, weight)


def expectile_value(stream, constant, expectile=0.8):
  """Computes equation 5 of Kostrikov et al. 2021, with the twins' minimum."""
  weight, loss = weights(constant), []
  for value, q in zip(
    np.float64(stream["implicit.values"]),
    constant["critics.q_values"],
    strict=True,
  ):
    error = min(map(float, q)) - value
    loss.append(abs(expectile - float(error < 0)) * error**2)
  return losses.ActorLoss(np.array(loss) * weight, weight)


def advantage_weighted_policy(
  stream, constant, inverse_temperature=2.0, max_weight=100.0
):
  """Computes equation 8 of Peng et al. 2019, with the limit of weights."""
  weight = weights(constant)
  advantage = np.float64(constant["implicit.advantage"])
  scale = np.minimum(np.exp(inverse_temperature * advantage), max_weight)
  loss = -scale * np.float64(stream["log_prob"])
  return losses.ActorLoss(loss * weight, weight)
