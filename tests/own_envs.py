"""Environments as users would write them, working and failing ones."""

import functools
import os
import pathlib
import random
import signal
import sys
import time
import uuid

import dm_env
import gymnasium
import numpy as np
import tree
from gymnasium import spaces


def cartpole(**options):
  return gymnasium.make("CartPole-v1", **options)


class Inside(gymnasium.Env):
  """Plays in an environment, or in a vector of one, that is an attribute."""

  observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
  action_space = spaces.Discrete(2)

  def __init__(self, inner):
    self._inner, self._itself = inner, self

  def reset(self, *, seed=None, options=None):
    return np.zeros(4, np.float32), {}


def normalized(how):
  """Returns a CartPole that wrappers of Gymnasium's normalize, or do not."""
  wrappers, env = gymnasium.wrappers, cartpole()
  match how:
    case "none":
      return Inside(wrappers.TimeLimit(env, 9))
    case "both":
      return wrappers.NormalizeReward(wrappers.NormalizeObservation(env))
    case "of a vector":
      vector = gymnasium.vector.SyncVectorEnv([lambda: env])
      return Inside(wrappers.vector.NormalizeObservation(vector))
  made = functools.partial(wrappers.NormalizeReward, env)
  return Inside(gymnasium.vector.SyncVectorEnv([made]))


class Counting(gymnasium.Env):
  """Counts its steps; the observation is (seed, episode, step, last action).

  Episode e has 2 + e % 3 steps, terminates if e is even, and is truncated if e
  is odd; if e % 4 == 2, both are reported. The reward is step + action.
  """

  def __init__(self, log=""):
    self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
    self.action_space = spaces.Discrete(3, start=-1)
    self._seed, self._episode, self._log = -1, -1, log

  def reset(self, *, seed=None, options=None):
    if seed is not None:
      self._seed = seed
    self._episode, self._step = self._episode + 1, 0
    self._action = 0
    return self._observe(), {}

  def step(self, action):
    assert self.action_space.contains(action), action
    self._step, self._action = self._step + 1, action
    ends = self._step == 2 + self._episode % 3
    assert self._step <= 2 + self._episode % 3
    return (
      self._observe(),
      self._step + float(action),
      ends and self._episode % 2 == 0,
      ends and self._episode % 4 != 0,
      {},
    )

  def close(self):
    if self._log:
      pathlib.Path(self._log).write_text("closed")

  def _observe(self):
    values = [self._seed, self._episode, self._step, self._action]
    return np.array(values, np.float64)


class Informing(gymnasium.Env):
  """Ends episodes of one step with the given `info`; the last one repeats."""

  observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
  action_space = spaces.Discrete(2)

  def __init__(self, infos):
    self._infos = list(infos)

  def reset(self, *, seed=None, options=None):
    return np.zeros(1, np.float32), {}

  def step(self, action):
    info = self._infos[0]
    self._infos = self._infos[1:] or self._infos
    return np.zeros(1, np.float32), 1.0, True, False, info

  def render(self):
    return np.full((4, 6, 3), 200, np.uint8)


class Ageing(Informing):
  """Shows the env steps of the run after which it was made."""

  def __init__(self, env_steps):
    super().__init__([{}])
    self._env_steps = env_steps

  def render(self):
    return np.full((4, 6, 3), self._env_steps, np.uint8)


class Logged(gymnasium.Env):
  """Appends a line to the file `<seed>.<id>` at each reset and step.

  A line is `reset`, `step`, or `end RETURN LENGTH`. Episodes have 1 to 5 steps,
  depending on the seed. The reward is step + action.
  """

  observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
  action_space = spaces.Discrete(3)

  def __init__(self, log):
    self._log, self._episode = pathlib.Path(log), 0

  def reset(self, *, seed=None, options=None):
    if seed is not None:
      self._seed, self._path = seed, self._log / f"{seed}.{uuid.uuid4()}"
    self._episode += 1
    self._step, self._return = 0, 0.0
    self._append("reset")
    return self._observe(), {}

  def step(self, action):
    self._step += 1
    reward = float(self._step + action)
    self._return += reward
    ends = self._step == 1 + (self._seed + self._episode**2) % 5
    self._append(f"end {self._return} {self._step}" if ends else "step")
    return self._observe(), reward, ends, False, {}

  def _append(self, line):
    with self._path.open("a") as file:
      file.write(f"{line}\n")

  def _observe(self):
    return np.array([self._step, self._episode % 5], np.float32)


class CountingDm(dm_env.Environment):
  """`Counting` as dm_env, with discount 0.5 while an episode continues."""

  def __init__(self, seed):
    self._env, self._first_seed = Counting(), seed

  def reset(self):
    observation, _ = self._env.reset(seed=self._first_seed)
    self._first_seed = None
    return dm_env.restart(observation)

  def step(self, action):
    assert action.dtype == np.int64
    observation, reward, terminated, truncated, _ = self._env.step(action - 1)
    if terminated:
      return dm_env.termination(reward, observation)
    if truncated:
      return dm_env.truncation(reward, observation, discount=0.75)
    return dm_env.transition(reward, observation, discount=0.5)

  def observation_spec(self):
    return dm_env.specs.Array((4,), np.float64)

  def action_spec(self):
    return dm_env.specs.DiscreteArray(3, np.int64)


def discounting(seed, discount):
  env = CountingDm(seed)
  env.step = lambda action: dm_env.transition(0.0, np.zeros(4), discount)
  return env


class Long(gymnasium.Env):
  """Observes a 64-bit integer: `first` after a reset, `then` later."""

  def __init__(self, first, then=0):
    space = spaces.Box(-(2**62), 2**62, (2,), np.int64)
    self.observation_space = spaces.Dict({"long": space})
    self.action_space = spaces.Discrete(2)
    self._first, self._then = first, then

  def reset(self, *, seed=None, options=None):
    return {"long": np.array([self._first, -1])}, {}

  def step(self, action):
    return {"long": np.array([self._then, -1])}, 0.0, False, False, {}


def counting_dm(seed, shift=0):
  return CountingDm(seed + shift)


def unseeded_dm(speed=1):
  return CountingDm(speed)


class Masked(gymnasium.Env):
  """Observes all kinds of spaces; action t % 3 is illegal at step t."""

  def __init__(self, none_legal_at=None):
    image = spaces.Box(0, 255, (2, 3), np.uint8)
    inner = {"image": image, "level": spaces.Discrete(5, start=3)}
    self.observation_space = spaces.Dict(
      {
        "inner": spaces.Dict(inner),
        "choices": spaces.MultiDiscrete([2, 4], start=[0, 10]),
        "bits": spaces.MultiBinary(3),
        "long": spaces.Box(-(2**62), 2**62, (2,), np.int64),
        "number": spaces.Box(-1.0, 1.0, (), np.float32),
      }
    )
    self.action_space = spaces.Discrete(3)
    self._none_legal_at = none_legal_at

  def reset(self, *, seed=None, options=None):
    self._t = 0
    return self._observe(), self._info()

  def step(self, action):
    legal = self._info()["legal"]
    assert self._t == 5 or legal[action], (self._t, action)
    self._t += 1
    return self._observe(), 0.0, self._t == 5, False, self._info()

  def _observe(self):
    t = self._t
    return {
      "inner": {"image": np.full((2, 3), 40 * t, np.uint8), "level": 3 + t % 5},
      "choices": np.array([t % 2, 10 + t % 4]),
      "bits": np.array([t & 1, t >> 1 & 1, t >> 2 & 1], np.int8),
      "long": np.array([t, -t]),
      "number": np.float32(t / 10),
    }

  def _info(self):
    legal = np.arange(3) != self._t % 3
    if self._t == 5 or self._t == self._none_legal_at:
      legal[:] = False
    return {"legal": legal, "age": self._t, "words": "none"}


def vector():
  return gymnasium.make_vec("CartPole-v1", num_envs=2)


class InfoMasked(gymnasium.Env):
  """Has an `action_mask` of a size in `info`, as Gymnasium's Taxi does."""

  observation_space = spaces.Discrete(4)
  action_space = spaces.Discrete(3)

  def __init__(self, size=3, at_each_step=True):
    self._mask = np.arange(size) == 1
    self._at_each_step = at_each_step

  def reset(self, *, seed=None, options=None):
    return 0, {"action_mask": self._mask}

  def step(self, action):
    info = {"action_mask": self._mask} if self._at_each_step else {"prob": 1.0}
    return 0, 0.0, False, False, info


class Continuous(gymnasium.Env):
  """Observes the last action."""

  def __init__(self):
    self.observation_space = spaces.Box(-9, 9, (2,), np.float64)
    self.action_space = spaces.Box(
      np.array([-1.0, 0.0]), np.array([0.1, 2.0]), dtype=np.float64
    )

  def reset(self, *, seed=None, options=None):
    return np.zeros(2), {}

  def step(self, action):
    assert action.dtype == np.float64
    assert self.action_space.contains(action), action
    return action, 0.0, False, False, {}


class Aim(gymnasium.Env):
  """Pays 1 less the squared distance of the only action from what it shows."""

  observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
  action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self.target = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
    return self.target, {}

  def step(self, action):
    reward = 1.0 - float((action[0] - self.target[0]) ** 2) / 4
    return self.target, reward, True, False, {}


class Acting(gymnasium.Env):
  """Has the given spaces; observes samples, or always `shows`."""

  def __init__(self, action=None, observation=None, shows=None):
    self.action_space = action or spaces.Discrete(2)
    if observation is None:
      observation = spaces.Box(-1, 1, (3,))
    self.observation_space = observation
    self._shows = shows

  def reset(self, *, seed=None, options=None):
    if self._shows is not None:
      return self._shows, {}
    return self.observation_space.sample(), {}

  def step(self, action):
    reward = sum(float(np.sum(x)) for x in tree.flatten(action))
    return (*self.reset()[:1], reward, False, False, {})


def picture(shape):
  shows = np.arange(np.prod(shape)).astype(np.uint8).reshape(shape)
  return Acting(observation=spaces.Box(0, 255, shape, np.uint8), shows=shows)


def masked_choices(values, shape):
  """Returns an environment in whose mask only the last entry is legal."""
  mask = np.zeros(shape, np.int8)
  mask.flat[-1] = 1
  space = spaces.Dict({"action_mask": spaces.MultiBinary(shape)})
  return Acting(spaces.MultiDiscrete(values), space, {"action_mask": mask})


def masked_hybrid(shape):
  """Has two choices, of 3 and 4 values, and a number; without shape, a nest."""
  choices = spaces.MultiDiscrete([3, 4])
  action = spaces.Dict(choices=choices, number=spaces.Box(-1, 1, ()))
  mask = spaces.MultiBinary(shape or 4)
  if not shape:
    mask = spaces.Dict(choices=mask)
  space = spaces.Dict({"action_mask": mask, "some": spaces.Discrete(2)})
  return Acting(action, space)


def bounded_hybrid():
  number = spaces.Box(-1, 2, (1,))
  return Acting(spaces.Dict(choice=spaces.Discrete(3), number=number))


def masked_tuple():
  action = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(4)))
  space = spaces.Dict({"action_mask": spaces.MultiBinary(12)})
  return Acting(action, space, {"action_mask": np.ones(12, np.int8)})


class Nested(gymnasium.Env):
  """Observes tuples in dicts and dicts in tuples; shows its step."""

  def __init__(self):
    self.action_space = spaces.Discrete(2)
    inner = spaces.Dict(level=spaces.Discrete(5, start=-2))
    self.observation_space = spaces.Dict(
      pair=spaces.Tuple((spaces.Box(-9, 9, (2,)), inner, spaces.Discrete(9))),
      rooms=spaces.MultiDiscrete([[3, 2]], start=[[4, 0]]),
    )

  def reset(self, *, seed=None, options=None):
    self._t = 0
    return self._observe(), {}

  def step(self, action):
    self._t += 1
    return self._observe(), 0.0, False, False, {}

  def _observe(self):
    t = self._t
    inner = {"level": np.int64(t - 2)}
    pair = (np.full(2, t, np.float32), inner, np.int64(t))
    return {"pair": pair, "rooms": np.array([[4 + t, t % 2]])}


class DmNested(CountingDm):
  """Observes a list in a dict."""

  def observation_spec(self):
    return {"values": [super().observation_spec(), dm_env.specs.Array((), int)]}

  def reset(self):
    return self._changed(super().reset())

  def step(self, action):
    return self._changed(super().step(action))

  def _changed(self, timestep):
    values = [timestep.observation, int(timestep.observation[2])]
    return timestep._replace(observation={"values": values})


class TooShort(Nested):
  """Returns a tuple without its last entry."""

  def _observe(self):
    observation = super()._observe()
    return observation | {"pair": observation["pair"][:-1]}


def _acting(*arguments):
  return functools.partial(Acting, *arguments)


no_observation = _acting(None, spaces.Box(-1, 1, (0,)))
text_in_tuple = _acting(None, spaces.Tuple((spaces.Text(5),)))
sequence_in_dict = _acting(
  None, spaces.Dict(a=spaces.Sequence(spaces.Discrete(2)))
)
nothing_observed = _acting(None, spaces.Dict())
sequence_action = _acting(spaces.Dict(a=spaces.Sequence(spaces.Discrete(2))))

# Unsupported spaces, and observations that do not match their space.
_COUNT = spaces.Dict({"count": spaces.Box(0, 9, (2,), np.int32)})
no_action = _acting(spaces.Box(-1, 1, (0,)))
text_observation = _acting(None, spaces.Dict({"text": spaces.Text(5)}))
wrong_shape = _acting(None, None, np.zeros(2, np.float32))
wrong_dtype = _acting(None, _COUNT, {"count": np.zeros(2)})
wrong_key = _acting(None, _COUNT, {"counts": np.zeros(2, np.int32)})


class Hybrid(gymnasium.Env):
  """Takes a nest of spaces; observes the numbers of the last action."""

  def __init__(self):
    self.observation_space = spaces.Dict(taken=spaces.Box(-99, 99, (6,)))
    self.action_space = spaces.Dict(
      move=spaces.Tuple(
        (spaces.Discrete(4), spaces.Box(-np.inf, np.inf, (1,), np.float64))
      ),
      throttle=spaces.Box(np.float32([[-1], [-1]]), np.float32([[1], [2]])),
      push=spaces.MultiDiscrete([3, 2], start=[0, 5]),
    )

  def reset(self, *, seed=None, options=None):
    return {"taken": np.zeros(6, np.float32)}, {}

  def step(self, action):
    assert self.action_space.contains(action), action
    choice, number = action["move"]
    assert number.dtype == np.float64 and isinstance(choice, np.int64)
    parts = choice, action["push"], number, action["throttle"].ravel()
    taken = np.hstack(parts).astype(np.float32)
    return {"taken": taken}, float(taken.sum()), False, False, {}


class DmHybrid(dm_env.Environment):
  """`Hybrid` with a list instead of a tuple, and no bounds at all."""

  def __init__(self, seed):
    self._env = Hybrid()

  def reset(self):
    return dm_env.restart(self._env.reset()[0])

  def step(self, action):
    assert isinstance(action["move"], list)
    action["move"] = tuple(action["move"])
    observation, reward, *_ = self._env.step(action)
    return dm_env.transition(reward, observation)

  def observation_spec(self):
    return {"taken": dm_env.specs.Array((6,), np.float32)}

  def action_spec(self):
    choice = dm_env.specs.DiscreteArray(4, np.int64)
    number = dm_env.specs.Array((1,), np.float64)
    low, high = [[-1], [-1]], [[1], [2]]
    return {
      "move": [choice, number],
      "throttle": dm_env.specs.BoundedArray((2, 1), np.float32, low, high),
      "push": dm_env.specs.BoundedArray((2,), np.int64, [0, 5], [2, 6]),
    }


class Bandit(gymnasium.Env):
  """An image bandit: action 0 pays 7 or 0, action 1 pays 2."""

  observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)
  action_space = spaces.Discrete(2)

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    return self._picture(), {}

  def step(self, action):
    reward = 7.0 * self.np_random.integers(2) if action == 0 else 2.0
    return self._picture(), reward, True, False, {}

  def _picture(self):
    return np.arange(192, dtype=np.uint8).reshape(8, 8, 3)


class Hanging(Counting):
  """`Counting` that hangs after a number of steps."""

  def __init__(self, steps):
    super().__init__()
    self._left = steps

  def step(self, action):
    self._left -= 1
    if self._left < 0:
      time.sleep(1e6)
    return super().step(action)


class Failing(Counting):
  """Fails as `how` describes, in its first step, if its seed is `where`."""

  def __init__(self, how, where=2, log=""):
    super().__init__(log)
    self._how, self._where = how, where

  def reset(self, *, seed=None, options=None):
    if self._how == "reset" and seed is None and self._seed == self._where:
      raise LookupError("no way back")
    return super().reset(seed=seed)

  def step(self, action):
    if self._seed == self._where and self._how != "reset":
      return self._fail()
    return super().step(action)

  def _fail(self):
    if self._log:
      pathlib.Path(self._log).write_text(str(os.getpid()))
    if self._how == "raise":
      raise LookupError("lost the way")
    if self._how == "exit":
      sys.exit(3)
    if self._how == "die":
      os._exit(7)
    if self._how == "killed":
      # The child inherits all pipes and keeps them open.
      if os.fork() == 0:
        deadline = time.monotonic() + 3000
        while pathlib.Path(self._log).exists() and time.monotonic() < deadline:
          time.sleep(0.02)
        os._exit(0)
      os.kill(os.getpid(), signal.SIGKILL)
    if self._how == "hang":
      time.sleep(1000)
    returned = {
      "old gym": (np.zeros(4), 0.0, False, {}),
      "nothing": None,
      "no observation": (None, 0.0, False, False, {}),
      "float done": (np.zeros(4), False, 1.0, False, {}),
    }
    if self._how in returned:
      return returned[self._how]
    observation, reward = {
      "shape": (np.zeros(5), 0.0),
      "too large": ([0, 1e300, 0, 0], 0.0),  # Infinite in 32 bits.
      "zero": (np.zeros(4), 0.0),
      "nan": ([0, np.nan, np.inf, 0], 0.0),
      "nan reward": (np.zeros(4), np.nan),
      "text": (np.zeros(4), "3"),
      "complex": (np.zeros(4), 1 + 2j),
      "rewards": (np.zeros(4), np.zeros(2)),
      "array": (np.zeros(4), np.array([2.5])),
      "bool": (np.zeros(4), np.True_),
    }[self._how]
    return np.array(observation), reward, False, False, {}


class FailsLate(gymnasium.Env):
  """Raises after 100 steps with any seed, and never ends an episode."""

  observation_space = spaces.Box(-1, 1, (2,))
  action_space = spaces.Discrete(3)

  def reset(self, *, seed=None, options=None):
    self._steps = 0
    return np.zeros(2, np.float32), {}

  def step(self, action):
    self._steps += 1
    if self._steps > 100:
      raise LookupError("no end")
    return np.zeros(2, np.float32), 0.0, False, False, {}


def raises_on_two_lines():
  raise ValueError("one\n  two")


def exits():
  sys.exit("enough")


def dies_at_once():
  os._exit(9)


def killed(marks, times):
  """Kills its process the first `times` times, and then makes `Counting`."""
  earlier = sorted(pathlib.Path(marks).iterdir())
  if len(earlier) < times:
    pathlib.Path(marks, str(os.getpid())).touch()
    os.kill(os.getpid(), signal.SIGKILL)
  return Counting()


def returns_nothing():
  return None


class NoSpaces(gymnasium.Env):
  """Has no spaces, as if its constructor forgot them."""


class Drawing(Counting):
  """Observes numbers of the generators that the process shares."""

  def _observe(self):
    return np.array([np.random.rand(), random.random(), 0, 0])


class RaisesInReset(Counting):
  def reset(self, *, seed=None, options=None):
    raise LookupError(f"no start with {seed}")


class OldReset(Counting):
  def reset(self, *, seed=None, options=None):
    return super().reset(seed=seed)[0]


def takes_any_name(name, what, function):
  return takes_a_seed(name + what + function)


def takes_a_seed(seed, size=1):
  env = Counting()
  env._episode = 100 * size + seed
  return env


def differs(seed):
  return Acting(spaces.Discrete(2 + seed % 2))


def needs_jax():
  import jax

  assert jax.default_backend() == "cpu"
  assert jax.numpy.arange(3).sum() == 3
  return Counting()


class Drawn(Counting):
  """Renders a frame whose pixels are 10 times its step."""

  def __init__(self, render_mode=None, frame="good"):
    super().__init__()
    self.metadata = {"render_modes": ["rgb_array"], "render_fps": 12}
    self._mode, self._frame = render_mode, frame

  def render(self):
    if self._frame == "raises":
      raise OSError("no display")
    if self._frame == "dies":
      print("no OpenGL here", file=sys.stderr, flush=True)
      os._exit(1)
    if self._mode != "rgb_array":
      return None
    return np.full((4, 6, 3), 10 * self._step, np.uint8)


def drawn_without_mode():
  return Drawn()


class Physics:
  def render(self):
    return np.full((2, 2, 3), 7, np.uint8)


def dm_with_physics(seed):
  env = CountingDm(seed)
  env.physics = Physics()
  return env


class DmOfDicts(CountingDm):
  """Takes two choices, of 2 and 3 values; observes a dict of bounded arrays."""

  def observation_spec(self):
    return {
      "values": dm_env.specs.BoundedArray((4,), np.float64, -1, 9),
      "kind": dm_env.specs.BoundedArray((), np.int64, 0, 6),
    }

  def action_spec(self):
    return dm_env.specs.BoundedArray((2,), np.int32, 0, [1, 2])

  def reset(self):
    timestep = super().reset()
    return dm_env.restart({"values": timestep.observation, "kind": 3})

  def step(self, action):
    assert action.dtype == np.int32 and action.shape == (2,)
    observation = {"values": np.ones(4), "kind": int(action[1])}
    return dm_env.TimeStep(
      dm_env.StepType.MID, float(action[0]), 1.0, observation
    )


class RestartsAlone(CountingDm):
  """Returns a FIRST in the middle of an episode."""

  def step(self, action):
    return self.reset()


class Names(gymnasium.Env):
  """Prints, reads standard input, and observes its and its parent's pid."""

  def __init__(self):
    self.observation_space = spaces.Box(-1, 2**31 - 1, (2,), np.int64)
    self.action_space = spaces.Discrete(2)

  def reset(self, *, seed=None, options=None):
    print("printed by an environment")
    assert sys.stdin.read() == ""
    return np.array([os.getpid(), os.getppid()]), {}

  def step(self, action):
    return self.reset()[0], 0.0, False, False, {}
