"""The synchronous pipeline end to end."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from seedx import envs, types
from seedx.agents import a2c, dqn, ppo, vtrace
from seedx.learning import experience, learner
from seedx.pipelines import sync
from seedx.runtime import counters, process
from tests import running

shared_programs = running.shared_programs
AGENTS = {"a2c": a2c, "vtrace": vtrace, "ppo": ppo, "dqn": dqn}
NUM_ENVS, UNROLL_LENGTH = 4, 5
REPLAY = experience.ReplayConfig(
  replay_capacity=400,
  replay_min_steps=40,
  replay_batch_size=8,
  replay_ratio=1.0,
)


def agent_config(name, **fields):
  """A small agent, of which nothing changes over a run."""
  small = {
    "hidden_sizes": (8,),
    "learning_rate": 1e-2,
    "learning_rate_end": 1.0,
    "reward_scale": 1.0,
  }
  if name == "ppo":
    small |= {"epochs": 2, "minibatches": 2}
  if name == "dqn":
    small |= {"n_step": 1, "epsilon_end": 0.05, "epsilon_steps": 0}
  return AGENTS[name].Config(**small | fields)


def config_of(name, fields=None, **changes):
  """A small run; `changes` are fields of it or of its parts."""
  config = sync.Config(
    agent=agent_config(name, **(fields or {})),
    total_steps=110,
    num_envs=NUM_ENVS,
    learner=learner.Config(unroll_length=UNROLL_LENGTH),
    replay=REPLAY if name == "dqn" else None,
  )
  return running.replaced(config, **changes)


@dataclasses.dataclass(frozen=True)
class After:
  """What is known after a step of all environments."""

  updates: int
  env_steps: int
  learned_steps: float
  metrics: dict
  compiled: int


def train(config):
  """The process at its end, and an `After` of every step."""
  own, compiled, seen = running.Own(sync, config), [], []

  def listen(event, seconds, **_):
    if event == "/jax/core/compile/backend_compile_duration":
      compiled.append(seconds)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    for _ in own.process.steps():
      own.learner.finish()
      seen.append(
        After(
          own.learner.steps,
          own.acted.env_steps,
          own.learner.learned_steps,
          own.learner.measure(),
          len(compiled),
        )
      )
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
  return own, seen


def assert_close(actual, expected, rtol):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(
      a, b, rtol=rtol, atol=rtol * float(np.abs(b).max())
    ),
    actual,
    expected,
  )


def distance(a, b):
  a, b = jax.device_get((a, b))
  gaps = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), a, b)
  return max(jax.tree.leaves(gaps))


@functools.cache
def trained(name):
  return train(config_of(name))


# Its updates draw random numbers of their own.
PPO = pytest.param("ppo", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["a2c", PPO])
def test_all_is_learned_at_once_and_by_the_newest_parameters(name):
  own, seen = trained(name)
  for i, now in enumerate(seen):
    assert now.updates == i // UNROLL_LENGTH
    if i % UNROLL_LENGTH == 0:
      assert now.learned_steps == now.env_steps
    else:
      assert now.learned_steps < now.env_steps
    assert now.metrics["policy_lag"] in (None, 0.0)
  assert own.acted.env_steps >= 110 > seen[-2].env_steps
  assert {"policy_lag", "loss_value"} <= set(seen[-1].metrics)
  assert all(np.isfinite(x) for x in seen[-1].metrics.values())
  assert own.learner.state.updates == seen[-1].updates >= 5


def test_dqn_learns_as_often_as_its_ratio_says():
  _, seen = trained("dqn")
  for i, now in enumerate(seen):
    # An unroll is a step longer than the 5 new ones: window 2.
    items = i // UNROLL_LENGTH
    assert now.updates == max(0, items - 1) * NUM_ENVS * UNROLL_LENGTH // 8
    assert now.learned_steps <= now.updates * 8
  assert seen[-1].updates >= 8
  assert seen[-1].learned_steps > 7 * seen[-1].updates
  assert np.isfinite(seen[-1].metrics["loss"])


@pytest.mark.parametrize("name", ["a2c", "dqn", PPO])
def test_the_seed_decides_everything(name):
  own, _ = trained(name)
  same, _ = train(config_of(name))
  other, _ = train(config_of(name, seed=1))
  running.assert_equal(same.learner.state, own.learner.state)
  assert same.acted.env_steps == own.acted.env_steps
  params = own.learner.state.params
  assert distance(params, other.learner.state.params) > 0.01


@pytest.mark.parametrize("name", ["a2c", "dqn", PPO])
def test_nothing_is_compiled_after_the_first_updates(name):
  _, seen = trained(name)
  counts = [now.compiled for now in seen if now.updates >= 3]
  assert len(counts) > 5
  assert counts[0] == counts[-1] > 0


PLAIN = {"adam_epsilon": 1.0, "learning_rate": 1.0}


@functools.cache
def plainly_trained(name, **changes):
  """Without Adam's signs, which make much of what was rounding."""
  own, _ = train(config_of(name, PLAIN, **changes))
  assert own.learner.steps >= 5
  return own.learner.state.params


@pytest.mark.slow
def test_vtrace_that_is_on_policy_is_a2c():
  actual, expected = plainly_trained("vtrace"), plainly_trained("a2c")
  assert_close(actual, expected, rtol=1e-4)


@pytest.mark.slow
def test_4_cores_learn_what_one_does():
  actual = plainly_trained("a2c", learner_devices=(0, 1, 2, 3))
  expected = plainly_trained("a2c")
  assert_close(actual, expected, rtol=1e-4)
  start = running.Own(sync, config_of("a2c", PLAIN)).learner.state
  assert distance(start.params, expected) > 0.01


PONG = envs.Config("Pong-v5", {"img_height": 36, "img_width": 36})


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "env", "fields"),
  [
    ("ppo", envs.Config("CartPole-v1"), {"recurrent": True, "lstm_size": 4}),
    ("a2c", envs.Config("Game2048-v1"), {}),
    ("a2c", envs.Config("RubiksCube-v0", {"max_episode_steps": 9}), {}),
    ("ppo", envs.Config("Pendulum-v1"), {"normalize_observations": True}),
    ("dqn", PONG, {"stack_frames": 2}),
  ],
  ids=lambda x: getattr(x, "env", None) or str(x),
)
def test_every_kind_of_environment_and_network(name, env, fields):
  config = config_of(name, fields, env=env, total_steps=90)
  own, seen = train(config)
  first, last = seen[0], seen[-1]
  assert first.updates == 0
  assert last.updates >= 4
  assert all(np.isfinite(x) for x in last.metrics.values())
  if name != "dqn":
    at_update = [x for x in seen[1:] if x.learned_steps == x.env_steps]
    assert len(at_update) == last.updates
  start, end = running.Own(sync, config).learner.state, own.learner.state
  assert distance(start.params, end.params) > 1e-3
  if fields.get("normalize_observations"):
    assert distance(start.statistics, end.statistics) > 0.01


def test_a_stop_ends_it_with_everything_written():
  own = running.Own(sync, config_of("a2c", log_seconds=0.0))
  checks = []

  def check():
    checks.append(own.acted.env_steps)
    if len(checks) == 12:
      own.stop.set()

  last = own.run(check)
  assert len(checks) == 12
  assert own.sink.lines[-1] == last
  assert last["learner_steps"] == own.learner.steps == 2
  assert 12 * NUM_ENVS >= last["env_steps"] >= 10 * NUM_ENVS
  assert last["policy_lag"] == 0.0
  names = "learning_wait_experience", "acting_wait_environments"
  assert all(name in last for name in names)


def test_a_failing_check_ends_it_with_its_error():
  def check():
    raise FloatingPointError("enough")

  own = running.Own(sync, config_of("a2c", log_seconds=0.0))
  with pytest.raises(FloatingPointError, match="enough"):
    own.run(check)
  assert [line["learner_steps"] for line in own.sink.lines] == [0]


@pytest.mark.parametrize(
  ("name", "changes", "message"),
  [
    ("a2c", {"replay": REPLAY}, "expected no replay"),
    ("dqn", {"replay": None}, "expected a replay"),
    ("ppo", {"micro_batches": 2}, "minibatches of its own"),
    ("dqn", {"env": envs.Config("Pendulum-v1")}, "expected discrete actions"),
    (
      "dqn",
      {"learner_devices": (0, 1, 2, 3), "micro_batches": 4},
      "a replay_batch_size that is a multiple of 16 ",
    ),
    (
      "dqn",
      {"num_envs": 6, "learner_devices": (0, 1, 2, 3)},
      "num_envs that .* 4 learner devices",
    ),
    (
      "a2c",
      {"num_envs": 6, "learner_devices": (0, 1), "micro_batches": 2},
      "num_envs that .* 2 learner devices with 2 micro-batches",
    ),
    ("a2c", {"total_steps": 0}, "total_steps from 1 to"),
    ("a2c", {"learner_devices": (99,)}, "learner devices from 0 to"),
  ],
)
def test_what_makes_no_sense_is_refused_with_its_reason(name, changes, message):
  with pytest.raises(types.ConfigError, match=message):
    sync.learn(config_of(name, **changes), process.Context())


# Exploration


@pytest.mark.parametrize(
  ("exploration", "expected"),
  [
    ([0.0] * 5, [True] * 5),
    ([0.01], [True]),
    ([0.4, 0.01], [False, True]),
    ([0.1, 0.4, 0.2, 0.3], [True, False, False, False]),
    ([8, 7, 6, 5, 4, 3, 2, 1], [False] * 6 + [True] * 2),
  ],
)
def test_the_quarter_that_explores_least_is_reported(exploration, expected):
  actual = counters.explores_least(np.array(exploration, np.float32))
  np.testing.assert_array_equal(actual, expected)


@pytest.mark.slow
def test_environments_explore_and_report_by_their_place_on_the_ladder(
  monkeypatch,
):
  num_envs, capacity = 8, 1600
  config = config_of(
    "dqn",
    # Parameters that stay tell afterwards which actions were random.
    {"epsilon_ladder": True, "learning_rate": 0.0},
    num_envs=num_envs,
    total_steps=1400,
    replay=dataclasses.replace(
      REPLAY, replay_capacity=capacity, replay_ratio=0.05
    ),
  )
  own, ended = running.Own(sync, config), []
  add = counters.Played.add

  def spy(self, rows):
    ended.append(~np.isnan(rows.episode_return))
    add(self, rows)

  monkeypatch.setattr(counters.Played, "add", spy)
  last = own.run()
  ended = np.sum(ended, axis=0)
  assert ended.min() >= 2
  assert last["episodes"] == ended[6:].sum()

  state = own.learner._source.states[0]
  items = int(state.inserted)
  assert items <= capacity / UNROLL_LENGTH
  stored = jax.tree.map(lambda x: np.asarray(x)[:items, :5], state.unrolls[:2])
  inputs, action = jax.tree.map(
    lambda x: x.reshape(-1, num_envs, 5, *x.shape[2:]), stored
  )
  ladder = 0.4 ** (1.0 + np.arange(num_envs))
  np.testing.assert_allclose(
    inputs.exploration, np.broadcast_to(ladder[:, None], action.shape), 1e-5
  )
  agent = config.agent.make(envs.spec(config.env))
  flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), inputs)
  greedy, _ = jax.jit(agent.step)(
    own.learner.acting(),
    jax.random.key(0),
    flat._replace(exploration=np.zeros_like(flat.exploration)),
    agent.initial_core_state(action.size),
  )
  # One of two random actions is the greedy one.
  differs = np.reshape(greedy.action, action.shape) != action
  found = differs.mean(axis=(0, 2))
  np.testing.assert_allclose(found, ladder / 2, atol=0.09)
  assert found[0] > 0.1 > 0.01 >= found[7]
