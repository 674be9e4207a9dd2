"""Players of a population's members."""

import contextlib
import threading
import types
from unittest import mock

import jax
import numpy as np
import pytest

from seedx import envs, wire
from seedx.acting import perturbed, unroll_messages
from seedx.agents import acting_step, evolution, normalizer
from tests import running

CONFIG = evolution.Config(
  hidden_sizes=(4,), sigma=0.2, normalize_observations=True
)
PAIR = np.int32([3, 8, 5])
STOP = threading.Event()


def env_of(**options):
  return envs.Config("jax:tests.population_envs:Constant", options)


SPEC = envs.spec(env_of())
AGENT = CONFIG.make(SPEC)
STATE = jax.jit(AGENT.init)(jax.random.key(1))


def player_of(**options):
  cap = options.pop("max_episode_steps", 1000)
  config = perturbed.Config(pairs_per_worker=4, max_episode_steps=cap)
  env = env_of(**options)
  return perturbed.Player(AGENT, env, config, lambda _: 0, STOP)


@jax.jit
def rewards_of(state):
  """Returns the reward of a step of each member, `[K, 2]`."""
  inputs = acting_step.zero_inputs(SPEC, 1)
  observation = np.float32([[1.0, 0.5]])
  timestep = inputs.timestep._replace(observation=observation)
  inputs = inputs._replace(timestep=timestep)

  def reward(pair, sign):
    noise = evolution.noise(state.params, pair)
    params = jax.tree.map(lambda x, e: x + sign * 0.2 * e, state.params, noise)
    acting = AGENT.acting(state)._replace(params=params)
    core = AGENT.initial_core_state(1)
    output, _ = AGENT.step(acting, jax.random.key(0), inputs, core)
    return jax.numpy.clip(output.action[0, 0], -100, 100)

  return jax.numpy.array([[reward(x, 1), reward(x, -1)] for x in PAIR])


def test_members_play_whole_episodes_with_their_own_parameters():
  player = player_of(length=7, random=True)
  # Six members in eight environments, twice.
  for version in (0, 1):
    played = next(player.play(STATE, version, PAIR))
    assert played.version == version and played.pair.tolist() == PAIR.tolist()
    assert played.lengths.min() >= 1 and played.lengths.max() <= 7
    assert len(np.unique(played.lengths)) > 1
    np.testing.assert_allclose(
      played.returns, rewards_of(STATE) * played.lengths, rtol=1e-4
    )
    steps = played.lengths.sum()
    assert played.totals.count == steps
    np.testing.assert_allclose(
      played.totals.offset[0], [steps, steps / 2], rtol=1e-5
    )
  player.close()


def test_another_state_plays_in_the_same_environments_without_compiling():
  player = player_of()
  next(player.play(STATE, 0, PAIR))
  with running.compiled() as names:
    played = next(player.play(STATE, 1, PAIR))
  assert not names
  np.testing.assert_allclose(
    played.returns, rewards_of(STATE) * played.lengths, rtol=1e-4
  )
  player.close()


def test_long_episodes_are_cut():
  player = player_of(length=1_000_000, max_episode_steps=3)
  # The second call does not wait for the episodes of the first one.
  for version in (0, 1):
    played = next(player.play(STATE, version, PAIR))
    assert np.all(played.lengths == 3)
    np.testing.assert_allclose(played.returns, 3 * rewards_of(STATE), rtol=1e-4)
  player.close()


def test_a_stopped_player_returns_nothing(monkeypatch):
  monkeypatch.setattr(STOP, "is_set", lambda: True)
  player = player_of()
  assert not [*player.play(STATE, 0, PAIR)]
  player.close()


@pytest.mark.parametrize("offset", [1.0, np.inf])
def test_an_update_that_is_not_finite_is_fetched(offset):
  """The learner skips such an update, so its newest state is another one."""
  totals = normalizer.Totals(
    np.float32(9), (np.full(2, offset),), (np.ones(2),)
  )
  results = evolution.Fitness(
    np.int32(0), PAIR, np.ones((3, 2)), np.ones((3, 2), np.int32), totals
  )
  newest = jax.tree.map(lambda x: np.full(x.shape, 7, x.dtype), STATE)
  replies = {
    perturbed.FITNESS: unroll_messages.Snapshot(np.int32(0), results),
    unroll_messages.PARAMETERS: unroll_messages.Snapshot(
      np.int32(1), jax.tree.leaves(newest)
    ),
  }

  def exchange(method, **layouts):
    stream = mock.MagicMock()
    stream.return_value = replies[method]
    return stream

  with contextlib.ExitStack() as opened:
    centre = perturbed._Centre(
      types.SimpleNamespace(exchange=exchange),
      jax.jit(AGENT.update),
      STATE,
      perturbed.Config(),
      opened,
    )
    centre.version = 0
    centre.reach(1)
  assert centre.version == 1
  is_fetched = centre.state.updates == 7
  assert is_fetched == np.isinf(offset)


@pytest.mark.parametrize("hidden_sizes", [(4,), (256, 256)])
def test_an_episode_takes_few_bytes_for_any_network(hidden_sizes):
  agent = evolution.Config(hidden_sizes=hidden_sizes).make(SPEC)
  state = jax.jit(agent.init)(jax.random.key(0))
  totals = evolution.no_totals(state.statistics)
  config = perturbed.Config()
  results, lease = perturbed.layouts(totals, config)
  fitness = unroll_messages.parameters_layout(
    perturbed.no_results(totals, config.pairs)
  )
  pairs, episodes = config.pairs_per_worker, 2 * config.pairs_per_worker
  up = results.message_bytes(pairs) + wire.NOTHING.message_bytes(1)
  down = lease.message_bytes(pairs) + fitness.message_bytes(1)
  assert (up + down) / episodes < 200
