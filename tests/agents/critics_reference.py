"""DDPG, TD3 and SAC in plain NumPy, in float64, with gradients by hand.

Nothing here uses seedx: layers, backward passes, Adam, Polyak averages and
returns are written out. Batches are `[B, ...]`.
"""

import dataclasses

import numpy as np

FIRST, LAST = 0, 2
LOW, HIGH = -5.0, 2.0


def layers_of(params, count=None, start=0):
  """Returns the weights and biases of `Dense_0`, `Dense_1`, ... as float64."""
  count = len(params) if count is None else count
  layers = [params[f"Dense_{start + i}"] for i in range(count)]
  return [
    [np.array(x["kernel"], float), np.array(x["bias"], float)] for x in layers
  ]


def groups_of(params, num_critics=1):
  """Returns the layers of the groups "actor", "critic" and "temperature"."""
  groups = {}
  if "actor" in params:
    actor = params["actor"]["params"]
    hidden = layers_of(actor["Torso_0"]["MLP_0"])
    groups["actor"] = hidden + layers_of(actor["head"])
  if "critic" in params:
    head = params["critic"]["params"]["head"]
    depth = len(head) // num_critics
    groups["critic"] = [
      layers_of(head, depth, c * depth) for c in range(num_critics)
    ]
  if "temperature" in params:
    groups["temperature"] = [np.array(params["temperature"], float)]
  return groups


def arrays(nest):
  """Returns the arrays of nested lists, in order."""
  if isinstance(nest, list):
    return [x for part in nest for x in arrays(part)]
  return [nest]


def forward(layers, x, activation="relu"):
  """Returns outputs of an MLP, and the inputs of each layer."""
  inputs = []
  for i, (weight, bias) in enumerate(layers):
    inputs.append(x)
    x = x @ weight + bias
    if i < len(layers) - 1:
      x = np.maximum(x, 0.0) if activation == "relu" else np.tanh(x)
  return x, inputs


def backward(layers, inputs, gradient, activation="relu"):
  """Returns the gradients of the layers and of the MLP's inputs."""
  gradients = []
  for i in reversed(range(len(layers))):
    gradients.insert(0, [inputs[i].T @ gradient, gradient.sum(axis=0)])
    gradient = gradient @ layers[i][0].T
    if i and activation == "relu":
      gradient = gradient * (inputs[i] > 0)
    elif i:
      gradient = gradient * (1 - inputs[i] ** 2)
  return gradients, gradient


class Adam:
  """Adam of a list of arrays (Kingma and Ba 2015, algorithm 1)."""

  def __init__(self, params, epsilon):
    self.epsilon, self.steps = epsilon, 0
    self.mean = [np.zeros_like(x) for x in params]
    self.square = [np.zeros_like(x) for x in params]

  def step(self, params, gradients, rate):
    self.steps += 1
    for i, (x, g) in enumerate(zip(params, gradients, strict=True)):
      self.mean[i] = 0.9 * self.mean[i] + 0.1 * g
      self.square[i] = 0.999 * self.square[i] + 0.001 * g**2
      mean = self.mean[i] / (1 - 0.9**self.steps)
      square = self.square[i] / (1 - 0.999**self.steps)
      x -= rate * mean / (np.sqrt(square) + self.epsilon)


def returns(step_type, reward, discount, gamma, n):
  """Returns n-step rewards, discounts, last steps and weights of each row."""
  rows = step_type.shape[1]
  total, product, weight = np.zeros(rows), np.ones(rows), np.ones(rows)
  last = np.zeros(rows, int)
  for b in range(rows):
    if step_type[1, b] == FIRST:
      weight[b] = 0.0
      continue
    for k in range(1, n + 1):
      total[b] += product[b] * reward[k, b]
      product[b] *= gamma * discount[k, b]
      last[b] = k
      if step_type[k, b] == LAST:
        break
  return total, product, last, weight


@dataclasses.dataclass
class Batch:
  """A batch of n-step transitions; actions are between -1 and 1."""

  observation: np.ndarray
  action: np.ndarray
  reward: np.ndarray
  discount: np.ndarray
  later: np.ndarray
  weight: np.ndarray
  importance: np.ndarray


class Learner:
  """Parameters, optimizers and targets; subclasses have the policy."""

  period = 1
  targets = ("actor", "critic")

  def __init__(self, params, target_params, config):
    self.config, self.updates = config, 0
    self.params = groups_of(params, config.num_critics)
    self.target = groups_of(target_params, config.num_critics)
    self.optimizers = {
      key: Adam(arrays(group), config.adam_epsilon)
      for key, group in self.params.items()
    }
    names = {"actor": "", "critic": "critic_", "temperature": "temperature_"}
    self.rates = {
      key: getattr(config, f"{names[key]}learning_rate") for key in self.params
    }

  def forward(self, layers, *joined):
    return forward(layers, np.hstack(joined), self.config.activation)

  def backward(self, layers, inputs, gradient):
    return backward(layers, inputs, gradient, self.config.activation)

  def update(self, batch, target_noise, actor_noise):
    """Takes one update; returns the absolute TD errors `[B]`."""
    scale = batch.weight / batch.weight.sum()
    gradients = self.actor_gradients(batch, actor_noise, scale)
    gradients["critic"], errors = self.critic_gradient(
      batch, target_noise, batch.importance * scale
    )
    self.updates += 1
    for key, gradient in gradients.items():
      if key == "critic" or self.updates % self.period == 0:
        self.optimizers[key].step(
          arrays(self.params[key]), arrays(gradient), self.rates[key]
        )
    if self.updates % self.config.target_period == 0:
      tau = self.config.target_rate
      for key in self.targets:
        for x, new in zip(
          arrays(self.target[key]), arrays(self.params[key]), strict=True
        ):
          x += tau * (new - x)
    return errors

  def critic_gradient(self, batch, noise, scale):
    action, bonus = self.target_action(batch.later, noise)
    values = [
      self.forward(critic, batch.later, action)[0][:, 0]
      for critic in self.target["critic"]
    ]
    value = np.min(values, axis=0) + bonus
    goal = batch.reward + batch.discount * value
    gradients, errors = [], []
    for critic in self.params["critic"]:
      q, inputs = self.forward(critic, batch.observation, batch.action)
      error = (goal - q[:, 0]) * batch.weight
      gradients.append(
        self.backward(critic, inputs, -(error * scale)[:, None])[0]
      )
      errors.append(np.abs(error))
    return gradients, np.mean(errors, axis=0)

  def q_and_slope(self, critic, observation, action):
    """Returns Q `[B]` and dQ/da `[B, A]`."""
    q, inputs = self.forward(critic, observation, action)
    _, slope = self.backward(critic, inputs, np.ones_like(q))
    return q[:, 0], slope[:, observation.shape[1] :]


class DDPG(Learner):
  """DDPG, and TD3 by its config."""

  def __init__(self, params, target_params, config):
    super().__init__(params, target_params, config)
    self.period = config.actor_period
    self.clipped_noise = self.clipped_actions = self.clipped_slopes = 0

  def target_action(self, observation, noise):
    action = np.tanh(self.forward(self.target["actor"], observation)[0])
    limit = 0.5
    noise = self.config.target_noise * noise
    self.clipped_noise += np.sum(np.abs(noise) > limit)
    action = action + np.minimum(np.maximum(noise, -limit), limit)
    self.clipped_actions += np.sum(np.abs(action) > 1)
    return np.minimum(np.maximum(action, -1), 1), 0.0

  def actor_gradients(self, batch, noise, scale):
    del noise
    outputs, inputs = self.forward(self.params["actor"], batch.observation)
    action = np.tanh(outputs)
    first = self.params["critic"][0]
    _, slope = self.q_and_slope(first, batch.observation, action)
    limit = self.config.action_gradient_clip
    if limit:
      self.clipped_slopes += np.sum(np.abs(slope) > limit)
      slope = np.minimum(np.maximum(slope, -limit), limit)
    gradient = -slope * (1 - action**2) * scale[:, None]
    return {"actor": self.backward(self.params["actor"], inputs, gradient)[0]}


class SAC(Learner):
  """SAC with a learned temperature."""

  targets = ("critic",)

  @property
  def alpha(self):
    return float(np.exp(self.params["temperature"][0]))

  def drawn(self, observation, noise):
    outputs, inputs = self.forward(self.params["actor"], observation)
    mean, raw = np.split(outputs, 2, axis=1)
    log_scale = LOW + (HIGH - LOW) / 2 * (np.tanh(raw) + 1)
    action = np.tanh(mean + np.exp(log_scale) * noise)
    normal = -0.5 * noise**2 - log_scale - 0.5 * np.log(2 * np.pi)
    log_prob = np.sum(normal - np.log(1 - action**2), axis=1)
    return action, log_prob, (inputs, raw, np.exp(log_scale))

  def target_action(self, observation, noise):
    action, log_prob, _ = self.drawn(observation, noise)
    return action, -self.alpha * log_prob

  def actor_gradients(self, batch, noise, scale):
    action, log_prob, (inputs, raw, sigma) = self.drawn(
      batch.observation, noise
    )
    pairs = [
      self.q_and_slope(critic, batch.observation, action)
      for critic in self.params["critic"]
    ]
    q_values, slopes = map(np.array, zip(*pairs, strict=True))
    smallest = np.argmin(q_values, axis=0)
    slope = slopes[smallest, np.arange(len(action))]
    # d log_prob / d mean = 2 a; the density of the noise does not change.
    by_mean = -slope * (1 - action**2) + self.alpha * 2 * action
    by_log_scale = by_mean * sigma * noise - self.alpha
    by_raw = by_log_scale * (HIGH - LOW) / 2 * (1 - np.tanh(raw) ** 2)
    gradient = np.hstack([by_mean, by_raw]) * scale[:, None]
    target = self.config.target_entropy * action.shape[1]
    return {
      "actor": self.backward(self.params["actor"], inputs, gradient)[0],
      "temperature": [
        np.array(-self.alpha * np.sum((log_prob + target) * scale))
      ],
    }
