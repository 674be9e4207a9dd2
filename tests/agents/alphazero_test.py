"""AlphaZero: targets of learning, symmetries, exploration and refusals."""

import dataclasses
import functools

import dm_env
import jax
import numpy as np
import pytest

from seedx import envs, networks, types
from seedx.agents import acting_step, alphazero, base, dqn, ppo
from seedx.envs.functional import search as search_lib
from tests import conftest
from tests.envs import boards

FIRST, MID, LAST = (int(step_type) for step_type in dm_env.StepType)
GAME = boards.TIC_TAC_TOE.game
SIZE, STEPS = 40, 30


def spec_of(**options):
  return envs.spec(envs.Config("seedx:TicTacToe", options))


@functools.cache
def agent_of(opponent="", **fields):
  """Returns an agent whose network is linear, without symmetries."""
  defaults = {"hidden_sizes": (), "num_simulations": 4, "symmetries": False}
  options = {"opponent": opponent} if opponent else {}
  return alphazero.Config(**defaults | fields).make(spec_of(**options))


def params_of(policy=0.0, policy_bias=0.0, value=0.0, value_bias=0.0):
  """Returns parameters of the linear network, whose shapes are different."""
  arrays = {
    (18, 9): policy,
    (9,): policy_bias,
    (18, 1): value,
    (1,): value_bias,
  }
  shapes = jax.eval_shape(agent_of().init, jax.random.key(0)).params
  assert len(jax.tree.leaves(shapes)) == len(arrays)
  return jax.tree.map(
    lambda x: np.array(np.broadcast_to(np.float32(arrays[x.shape]), x.shape)),
    shapes,
  )


@functools.cache
def unroll_of(**options):
  """Returns random games as an unroll, `[30, 40, ...]`."""
  timestep, action, _ = boards.played(**options)
  timestep, action = jax.tree.map(
    # The first episodes begin with the unroll.
    lambda x: x[:STEPS, :SIZE],
    (timestep, action),
  )
  legal = timestep.observation["action_mask"]
  policy = np.random.default_rng(0).random(legal.shape) * legal
  policy /= policy.sum(-1, keepdims=True)
  rows = legal.shape[:2]
  return types.Unroll(
    inputs=types.Inputs(timestep, action, np.zeros(rows, np.float32)),
    action=np.roll(action, -1, axis=0),
    extras=alphazero.Extras(policy.astype(np.float32)),
    version=np.zeros(rows, np.int32),
    core_state=(),
  )


def cut(unroll, start, stop, row):
  """Returns some steps of one environment, `[stop - start, 1, ...]`."""
  return jax.tree.map(lambda x: x[start:stop, row : row + 1], unroll)


@functools.cache
def measured(agent):
  """Returns a function that measures the losses of each of many batches."""

  @jax.jit
  def run(params, batches, key, settings):
    def measure(batch):
      hyperparameters = base.hyperparameters(alphazero.Config()) | settings
      state = base.AgentState(params, (), hyperparameters, np.int32(0))
      _, output = agent.gradients(state, key, batch)
      return output.metrics | {"weight": output.weight}

    return jax.vmap(measure)(batches)

  return run


def losses(agent, params, batches, key=0, weights=(1.0,), **changed):
  """Returns the metrics `[N]` of N batches, a list of unrolls of one row."""
  batch = jax.tree.map(lambda *x: np.stack(x), *batches)
  if agent.needs.window is not None:
    batch = types.Sample(batch, np.float32([weights] * len(batches)))
  run, settings = measured(agent), {"value_cost": 1.0}
  settings |= changed
  return jax.device_get(run(params, batch, jax.random.key(key), settings))


def result(unroll, start, row, stop, players, values):
  """Returns what a position is worth to the player to move.

  That is the result of its game, or the value at the step `stop`, from which
  the return bootstraps.
  """
  step_type, reward, *_ = unroll.inputs.timestep
  sign = 1.0
  for step in range(start + 1, stop + 1):
    if step_type[step, row] == LAST:
      return sign * reward[step, row]
    sign *= -1 if players == 2 else 1
  return sign * values[stop, row]


# Targets


@pytest.mark.parametrize(
  ("opponent", "n_step"), [("", 512), ("", 3), ("random", 512)]
)
def test_windows_learn_the_games_result_for_the_player_to_move(
  opponent, n_step
):
  players = 1 if opponent else 2
  unroll = unroll_of(**({"opponent": opponent} if opponent else {}))
  agent = agent_of(opponent, n_step=n_step)
  n = min(n_step, GAME.max_moves)
  assert agent.needs.window == n + 1 and agent.needs.extras
  windows = [(t, row) for row in range(SIZE) for t in range(STEPS - n)]
  batches = [cut(unroll, t, t + n + 1, row) for t, row in windows]
  step_type = unroll.inputs.timestep.step_type
  learned = np.array([step_type[x] != LAST for x in windows])
  kernel = np.random.default_rng(2).normal(size=(18, 1)).astype(np.float32)
  board = unroll.inputs.timestep.observation["board"]
  for size in (0.0, 1.0):
    actual = losses(agent, params_of(value=size * kernel), batches)
    values = (board.reshape(STEPS, SIZE, 18) @ (size * kernel))[..., 0]
    targets = np.array(
      [result(unroll, t, row, t + n, players, values) for t, row in windows]
    )
    value = np.array([values[x] for x in windows])
    np.testing.assert_array_equal(actual["weight"], learned)
    np.testing.assert_allclose(
      actual["loss_value"], (targets - value) ** 2 * learned, atol=1e-5
    )
    np.testing.assert_allclose(
      actual["value_target_square"], targets**2 * learned, atol=1e-5
    )
  assert {-1.0, 0.0, 1.0} <= set(np.round(targets[learned], 3)) or n < 9


@pytest.mark.parametrize("opponent", ["", "random"])
def test_without_a_replay_each_step_of_an_unroll_is_learned_from(opponent):
  players = 1 if opponent else 2
  unroll = unroll_of(**({"opponent": opponent} if opponent else {}))
  agent = agent_of(opponent, replayed=False)
  assert agent.needs.window is None and agent.needs.extras
  step_type = unroll.inputs.timestep.step_type
  batches = [cut(unroll, 0, STEPS, row) for row in range(SIZE)]
  for value in (0.0, 0.75):
    actual = losses(agent, params_of(value_bias=value), batches)
    values = np.full((STEPS, SIZE), value)
    for row in range(SIZE):
      squares = [
        (result(unroll, t, row, STEPS - 1, players, values) - value) ** 2
        for t in range(STEPS - 1)
        if step_type[t, row] != LAST
      ]
      np.testing.assert_allclose(
        actual["loss_value"][row], np.mean(squares), rtol=1e-5, atol=1e-6
      )
      assert actual["weight"][row] == len(squares)


def test_the_policy_learns_the_first_positions_search():
  """A network without preferences is uniform over the legal moves."""
  unroll, agent = unroll_of(), agent_of()
  batches = [cut(unroll, 0, 10, row) for row in range(SIZE)]
  actual = losses(agent, params_of(), batches)
  policy = unroll.extras.search_policy[0]
  entropy = -np.sum(policy * np.log(np.maximum(policy, 1e-30)), -1)
  np.testing.assert_allclose(actual["loss_policy"], np.log(9), rtol=1e-5)
  np.testing.assert_allclose(actual["search_entropy"], entropy, rtol=1e-5)
  np.testing.assert_allclose(
    actual["search_kl"], np.log(9) - entropy, rtol=1e-4, atol=1e-5
  )
  batches = [cut(unroll, 3, 13, row) for row in range(SIZE)]
  actual = losses(agent, params_of(policy_bias=np.arange(9) * 0.1), batches)
  mask = unroll.inputs.timestep.observation["action_mask"][3]
  logits = np.where(mask, np.arange(9) * 0.1, -np.inf)
  log_policy = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  policy = unroll.extras.search_policy[3]
  expected = -np.sum(policy * np.where(mask, log_policy, 0), -1)
  np.testing.assert_allclose(actual["loss_policy"], expected, rtol=1e-5)
  np.testing.assert_allclose(
    actual["loss"], actual["loss_policy"] + actual["loss_value"], rtol=1e-5
  )


def test_losses_are_weighted():
  unroll, agent, params = unroll_of(), agent_of(), params_of(value_bias=0.3)
  windows = [cut(unroll, t, t + 10, 0) for t in (0, 3)]
  both = jax.tree.map(lambda *x: np.concatenate(x, axis=1), *windows)
  apart = losses(agent, params, windows)
  weighted = losses(agent, params, [both], weights=(1.0, 3.0), value_cost=2.5)
  for name in ("loss_policy", "loss_value"):
    expected = np.average(apart[name], weights=[1.0, 3.0])
    np.testing.assert_allclose(weighted[name], expected, rtol=1e-5)
  np.testing.assert_allclose(
    weighted["loss"],
    weighted["loss_policy"] + 2.5 * weighted["loss_value"],
    rtol=1e-5,
  )
  assert abs(apart["loss_policy"][0] - apart["loss_policy"][1]) > 0.05


# Symmetries


def symmetric_params():
  """Returns parameters that treat all rotations and reflections equally."""
  row, column = np.divmod(np.arange(9), 3)
  kind = np.abs(row - 1) + np.abs(column - 1)  # Centre, edge or corner.
  distance = (row[:, None] - row) ** 2 + (column[:, None] - column) ** 2
  rng = np.random.default_rng(0)
  by_distance, by_kind = rng.normal(size=(2, 9)), rng.normal(size=(3, 3))
  policy = np.concatenate([by_distance[c][distance] for c in (0, 1)])
  value = np.concatenate([by_kind[c][kind] for c in (0, 1)])[:, None]
  return params_of(policy, by_kind[2][kind], value, 0.25)


@pytest.mark.parametrize("replayed", [True, False])
def test_symmetries_leave_the_loss_of_a_symmetric_network_equal(replayed):
  unroll = unroll_of()
  fields = {"n_step": 3} if replayed else {"replayed": False}
  plain, augmented = (agent_of(symmetries=x, **fields) for x in (False, True))
  length = 4 if replayed else STEPS
  batches = [cut(unroll, 2, 2 + length, row) for row in range(SIZE)]
  if not replayed:
    batches = [cut(unroll, 0, length, row) for row in range(SIZE)]
  symmetric = symmetric_params()
  expected = losses(plain, symmetric, batches)
  for key in (0, 1):
    actual = losses(augmented, symmetric, batches, key)
    for name in ("loss", "loss_policy", "loss_value", "search_kl"):
      np.testing.assert_allclose(
        actual[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name
      )
  rng = np.random.default_rng(1)
  others = params_of(*(rng.normal(size=s) for s in ((18, 9), 9, (18, 1), 1)))
  one, two, three = (
    losses(agent, others, batches, key)["loss"]
    for agent, key in ((plain, 0), (augmented, 0), (augmented, 1))
  )
  assert np.abs(one - two).max() > 0.1 < np.abs(two - three).max()


# Acting


@functools.cache
def acting():
  """Returns a function of a key and moves so far: a step of 40 positions.

  Rows with a number of moves below 0 are at the start of a game.
  """
  agent = agent_of(exploration_moves=2)

  @jax.jit
  def take(params, key, timestep, moves):
    state = acting_step.ActingState(
      alphazero.CoreState(moves), np.zeros(SIZE, np.int32)
    )
    exploration = np.zeros(SIZE, np.float32)
    step = acting_step.take(
      agent, params, key, timestep, state, exploration, moves < 0
    )
    return step.output, step.core_state.moves, step.acting_state.core_state

  return take


@functools.cache
def random_params():
  rng = np.random.default_rng(1)
  return params_of(
    *(0.3 * rng.normal(size=s) for s in ((18, 9), 9, (18, 1), 1))
  )


def timestep_at(step):
  return jax.tree.map(lambda x: x[step], unroll_of().inputs.timestep)


def test_an_agents_first_moves_in_a_game_are_random():
  take, timestep = acting(), timestep_at(2)
  moves = np.arange(SIZE, dtype=np.int32) % 5 - 1
  steps = [
    jax.device_get(take(random_params(), jax.random.key(k), timestep, moves))
    for k in range(30)
  ]
  outputs, before, after = zip(*steps, strict=True)
  np.testing.assert_array_equal(before[0], np.maximum(moves, 0))
  np.testing.assert_array_equal(after[0].moves, np.maximum(moves, 0) + 1)
  actions = np.stack([x.action for x in outputs])
  varies = (actions != actions[0]).any(0)
  assert not varies[moves >= 2].any() and varies[moves < 2].mean() > 0.8


def test_the_settings_of_a_search_reach_it(monkeypatch):
  settings = {
    "num_simulations": 3,
    "dirichlet_alpha": 0.7,
  }
  agent, seen = agent_of(search="puct", **settings), {}

  def search(*args, **options):
    seen.update(options)
    zeros = np.zeros((SIZE, 9), np.float32)
    return search_lib.Result(np.zeros(SIZE, np.int32), zeros, zeros)

  monkeypatch.setattr(search_lib, "search", search)
  inputs = types.Inputs(timestep_at(0), (), ())
  agent.greedy((), jax.random.key(0), inputs, agent.initial_core_state(SIZE))
  assert seen == settings | {"kind": "puct", "noise": 0.0}


@functools.cache
def greedy(name):
  agent = agent_of()
  step = getattr(agent, name)

  @jax.jit
  def act(params, key, timestep):
    inputs = types.Inputs(
      timestep, np.zeros(SIZE, np.int32), np.zeros(SIZE, np.float32)
    )
    return step(params, key, inputs, agent.initial_core_state(SIZE))

  return act


def test_without_a_search_the_move_is_the_networks():
  preferences = np.array([0, 5, 1, 2, 9, 3, 4, 8, 7])
  timestep = timestep_at(3)
  mask = timestep.observation["action_mask"]
  output, core_state = greedy("without_search")(
    params_of(policy_bias=preferences), jax.random.key(0), timestep
  )
  expected = np.where(mask, preferences, -1).argmax(-1)
  np.testing.assert_array_equal(output.action, expected)
  assert (core_state.moves == 1).all()
  # A search of the first position follows strong preferences, too.
  timestep = timestep_at(0)
  output, _ = greedy("greedy")(
    params_of(policy_bias=10 * preferences), jax.random.key(0), timestep
  )
  assert (output.action == 4).all()


def test_an_evaluation_is_the_policy_without_a_search():
  timestep, params = timestep_at(3), random_params()
  output, _ = greedy("without_search")(params, jax.random.key(0), timestep)
  evaluate = alphazero.evaluation(alphazero.Config(hidden_sizes=()), spec_of())
  states = jax.vmap(GAME.state)(timestep.observation)
  estimate = jax.jit(evaluate)(params, jax.random.key(1), states)
  policy = np.asarray(jax.nn.softmax(estimate.logits))
  np.testing.assert_allclose(policy, output.extras.search_policy, rtol=1e-5)
  np.testing.assert_array_equal(policy.argmax(-1), output.action)
  assert len(set(policy.argmax(-1))) > 1 and estimate.value.shape == (SIZE,)
  mask = timestep.observation["action_mask"]
  np.testing.assert_array_equal(policy > 0, mask)


def test_a_search_prefers_a_won_game_to_the_best_estimate():
  """The network's values have no bounds."""
  rules = boards.TIC_TAC_TOE
  positions = []
  for position, values in boards.solved().values():
    ends = [rules.play(position, k)[1] for k in np.flatnonzero(values <= 1)]
    # Four simulations try all of these moves.
    if len(ends) in (2, 3, 4) and 0 < sum(ends) < len(ends):
      positions.append(position)
  positions = np.array(positions[:SIZE])
  observation = {
    "board": positions,
    "action_mask": np.array([rules.legal(x) for x in positions]),
  }
  timestep = timestep_at(1)._replace(observation=observation)
  # Any position is very bad for the other player.
  params = params_of(value_bias=-5.0)
  output, _ = greedy("greedy")(params, jax.random.key(0), timestep)
  for position, action in zip(positions, output.action, strict=True):
    assert rules.play(position, action)[1] == 1


@pytest.mark.parametrize("kind", [ppo, dqn, alphazero])
def test_no_agent_learns_from_hidden_parts_of_observations(kind):
  options = {"opponent": "random"}
  spec = envs.spec(envs.Config("jax:tests.own_games:hidden_state", options))
  agent = kind.Config(hidden_sizes=(4,)).make(spec)
  state = jax.eval_shape(agent.init, jax.random.key(0))
  length = agent.needs.window or 4
  unroll = conftest.random_unroll(agent, spec, length, np.zeros(8), 0)
  stored = agent.needs.stored(unroll)
  assert {*unroll.inputs.timestep.observation} == {*spec.observation}
  observation = stored.inputs.timestep.observation
  assert {*observation} == {"board", "action_mask"}
  if agent.needs.window is not None:
    stored = types.Sample(stored, np.ones(8, np.float32))
  assert jax.eval_shape(agent.update, state, jax.random.key(0), stored)


# Refusals


def other_side(observation):
  """A transform after which a position has the same shape, but is another."""
  return observation | {"board": observation["board"][:, ::-1]}


def test_a_search_does_not_begin_at_transformed_observations():
  env = envs.Config("seedx:TicTacToe", {"opponent": "random"})
  env = dataclasses.replace(env, observation_transform=other_side)
  with pytest.raises(types.ConfigError, match="an observation_transform"):
    alphazero.Config().make(envs.spec(env))
  assert dqn.Config().make(envs.spec(env))


def test_residual_blocks_are_refused_only_beside_a_torso_of_your_own():
  torso = networks.BoardNetwork(blocks=1, channels=4)
  with pytest.raises(types.ConfigError, match="residual_blocks 0"):
    alphazero.Config(torso=torso, residual_blocks=1)
  shapes = [
    jax.eval_shape(config.make(spec_of()).init, jax.random.key(0)).params
    for config in (
      alphazero.Config(torso=torso),
      alphazero.Config(residual_blocks=1, residual_channels=4),
    )
  ]
  assert shapes[0] == shapes[1]


def test_the_length_of_returns_is_refused_without_a_replay():
  with pytest.raises(types.ConfigError, match="5 with replayed=False; set"):
    alphazero.Config(replayed=False, n_step=5)
  assert alphazero.Config(n_step=5) and alphazero.Config(replayed=False)
