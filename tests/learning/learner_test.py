"""The learner: micro-batches, cores, what comes in and what goes out."""

import concurrent.futures
import dataclasses
import functools
import itertools
import threading
from unittest import mock

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from seedx import metrics, replay, sharding, trees, types
from seedx.agents import base, model, ppo, vtrace
from seedx.learning import experience, learner, pending, published, updates
from seedx.pipelines import impala
from seedx.runtime import counters
from tests import conftest, programs, running
from tests.learning import experience_test

compiled_once = programs.compiled_once

LENGTH, BATCH = 6, 16
SPEC = types.EnvironmentSpec(
  specs.Array((4,), np.float32), specs.DiscreteArray(3)
)
KEY = jax.random.key(1)


def plain(agent, rate):
  """The agent with params - rate * gradients in the place of Adam."""

  def apply(state, gradients):
    params = jax.tree.map(
      lambda p, g: p - rate * g, state.params, gradients.params
    )
    return model.count_batch(
      dataclasses.replace(state, params=params), gradients.moments
    )

  update = base.composed_update(agent.gradients, apply)
  return dataclasses.replace(agent, apply=apply, update=update)


@functools.cache
def agent_of():
  """One that normalizes observations, and learns by plain gradients.

  Two of its metrics are random numbers, of the keys that two cores are given.
  """
  config = vtrace.Config(
    hidden_sizes=(8,), reward_scale=1.0, normalize_observations=True
  )
  # So large a rate that the parameters after are made of the gradients.
  agent = plain(config.make(SPEC, sharding.CORES), rate=1.0)

  def gradients(state, rng_key, batch):
    found, output = agent.gradients(state, rng_key, batch)
    noise = jax.lax.all_gather(jax.random.uniform(rng_key), sharding.CORES)
    metrics = output.metrics | {"first": noise[0], "second": noise[-1]}
    return found, output._replace(metrics=metrics)

  update = base.composed_update(gradients, agent.apply)
  return dataclasses.replace(agent, gradients=gradients, update=update)


# A name for the learner hosts of `host_updates`.
normalizing_agent = agent_of


def tiny_agent(wrong=lambda: 0.0):
  """One whose parameter, 3, falls by 1 and by what is `wrong`.

  It is compiled soon, and for each learner anew.
  """

  def gradients(state, rng_key, batch):
    del state, rng_key, batch
    return base.Gradients(jnp.float32(1)), types.LossOutput(jnp.float32(1), {})

  def apply(state, gradients):
    params = state.params - gradients.params - wrong()
    return dataclasses.replace(state, params=params)

  return dataclasses.replace(
    agent_of(),
    init=lambda rng_key: base.AgentState(
      jnp.float32(3), (), {}, jnp.int32(0), jnp.float32(0)
    ),
    acting=lambda state: state.params,
    gradients=gradients,
    apply=apply,
    update=base.composed_update(gradients, apply),
  )


@functools.cache
def unroll_of(seed=0):
  # Every micro-batch of every core has another number of resets.
  ends = np.linspace(0.0, 0.9, BATCH) if seed == 0 else np.full(BATCH, 0.3)
  return conftest.random_unroll(agent_of(), SPEC, LENGTH, ends, seed)


def config_of(num_cores=1, micro_batches=1, **inbox):
  return learner.InboxConfig(
    unroll_length=LENGTH - 1,
    learner_devices=tuple(range(num_cores)),
    micro_batches=micro_batches,
    batch_size=BATCH,
    **inbox,
  )


def make(num_cores=1, micro_batches=1, agent=None, rng_key=KEY, **options):
  return learner.Learner(
    agent or agent_of(),
    config_of(num_cores, micro_batches),
    experience.Once(),
    rng_key,
    **options,
  )


def run(learner_, unrolls):
  """Learns each unroll once, to the end; returns the metrics."""
  for unroll in unrolls:
    for batch in experience.Once()(learner_.shares(unroll)):
      learner_.learn(batch)
  learner_.finish()
  return learner_.measure()


def num_experience(unroll):
  """How many steps are no reset, counted one by one."""
  step_type = unroll.inputs.timestep.step_type
  return sum(
    int(step_type[t, b] != 0) for t in range(1, LENGTH) for b in range(BATCH)
  )


def assert_close(actual, expected, rtol=1e-5):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(
      a, b, rtol=rtol, atol=rtol * float(np.abs(b).max())
    ),
    actual,
    expected,
  )


@functools.cache
def learned(num_cores, micro_batches):
  """A learner after 5 updates, the params before, the line of the first."""
  it = make(num_cores, micro_batches)
  before, line = it.state.params, run(it, [unroll_of()])
  assert it.state.updates == 1
  run(it, [unroll_of(seed) for seed in (1, 2, 3, 4)])
  return it, before, line


@pytest.mark.parametrize(("num_cores", "micro_batches"), [(2, 1), (2, 4)])
def test_parts_and_cores_learn_what_the_whole_does(num_cores, micro_batches):
  """However uneven their resets are."""
  it, before, line = learned(num_cores, micro_batches)
  expected, _, expected_line = learned(1, 1)
  assert_close(it.state.params, expected.state.params)
  assert_close(it.state.statistics, expected.state.statistics)
  assert it.learned_steps == expected.learned_steps
  assert it.state.updates == 5
  for name in ("loss_policy_gradient", "loss_value", "entropy"):
    assert line[name] == pytest.approx(expected_line[name], rel=1e-4)
  gaps = jax.tree.map(lambda a, b: np.abs(a - b).max(), before, it.state.params)
  assert min(jax.tree.leaves(gaps)) > 0.01


def test_each_batch_counts_alike_in_the_statistics():
  """And in it each step that is learned from."""
  batches = []
  for seed in range(5):
    timestep = unroll_of(seed).inputs.timestep
    batches.append(timestep.observation[:-1][timestep.step_type[1:] != 0])
  wanted = np.mean([batch.mean(0) for batch in batches], axis=0)
  squares = np.mean([np.square(batch).mean(0) for batch in batches], axis=0)
  (mean,), (variance,) = learned(2, 4)[0].state.statistics
  np.testing.assert_allclose(mean, wanted, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(variance, squares - wanted**2, rtol=1e-4)


@pytest.mark.parametrize(("num_cores", "micro_batches"), [(1, 1), (2, 4)])
def test_resets_count_neither_as_steps_nor_in_the_lag(num_cores, micro_batches):
  """However the batch is cut, and however uneven its resets are."""
  unroll, other = unroll_of(), unroll_of(seed=5)
  version = -np.arange(LENGTH * BATCH, dtype=np.int32).reshape(LENGTH, BATCH)
  it = make(num_cores, micro_batches)
  unroll = unroll._replace(version=version)
  line = it.measure()
  assert (line["learner_steps"], line["policy_lag"]) == (0, None)
  line = run(it, [unroll])
  weight = unroll.inputs.timestep.step_type[1:] != 0
  expected = -(version[:-1] * weight).sum() / weight.sum()
  assert line["policy_lag"] == pytest.approx(expected, rel=1e-5)
  assert abs(expected + version[:-1].mean()) > 0.1
  line = run(it, [other, unroll])
  assert line["policy_lag"] == pytest.approx(expected + 2, rel=1e-5)
  steps = 2 * num_experience(unroll) + num_experience(other)
  assert it.steps == line["learner_steps"] == 3
  assert it.learned_steps == line["learned_steps"] == steps
  assert 0 < steps < 3 * BATCH * (LENGTH - 1)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_warm_up_changes_nothing_but_saves_compiling(micro_batches):
  it = make(1, micro_batches, tiny_agent())
  before, shares = it.state, it.shares(unroll_of())
  with running.compiled() as names:
    it.warm_up(it.shares(jax.tree.map(np.zeros_like, unroll_of())))
    line = it.measure()
    assert (line["learner_steps"], line["learned_steps"]) == (0, 0)
    assert line["policy_lag"] is None
    chex.assert_trees_all_equal(it.state, before)
    assert names
  with running.compiled() as names:
    (batch,) = experience.Once()(shares)
    it.learn(batch)
    it.publish()
    it.finish()
  assert not names
  assert it.steps == 1 and it.state.params == 2


def test_an_update_copies_two_numbers_to_the_host(monkeypatch):
  """And its metrics only where somebody asks for them."""
  copied, device_get = [], jax.device_get

  def counted(nest):
    copied.append(len(jax.tree.leaves(nest)))
    return device_get(nest)

  learner_ = make()
  run(learner_, [unroll_of()])
  monkeypatch.setattr(learner.jax, "device_get", counted)
  measured = run(learner_, [unroll_of()] * 3)
  *of_updates, of_metrics = copied
  assert of_updates == [2, 2, 2]  # Whether it was skipped, and its weight.
  assert 2 < of_metrics < len(measured)


def test_shares_inbox_and_publish_move_nothing_within_a_device(monkeypatch):
  it = make()
  on_device = jax.device_put(unroll_of(), it.cores[0])
  moved = []
  monkeypatch.setattr(sharding.jax, "device_put", lambda *x: moved.append(x))
  (share,) = it.shares(on_device)
  assert it.inbox.put(share)
  it.publish()
  assert not moved


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_every_update_and_core_has_a_key_of_its_own(micro_batches):
  it = make(2, micro_batches)
  seen = []
  for _ in range(2):
    line = run(it, [unroll_of()])
    seen += [line["first"], line["second"]]
  assert len(set(seen)) == 4


def test_what_is_learned_is_shared_out_in_order():
  unroll, it = unroll_of(), make(4)
  for i, share in enumerate(it.shares(unroll)):
    rows = slice(4 * i, 4 * i + 4)
    steps = jax.tree.map(lambda x, rows=rows: x[:, rows], tuple(unroll[:-1]))
    core_state = jax.tree.map(lambda x, rows=rows: x[rows], unroll.core_state)
    chex.assert_trees_all_equal(tuple(share.data), (*steps, core_state))
    assert share.priorities == ()
    for leaf in jax.tree.leaves(share):
      assert leaf.devices() == {jax.devices()[i]}


# What is published


def test_every_device_that_acts_has_what_was_published_last():
  devices = [jax.devices()[i] for i in (5, 3)]
  it = make(2, acting_on=devices)
  first = jax.device_get(it.acting())

  def check(expected, version):
    for asked, device in ((None, devices[0]), *((x, x) for x in devices)):
      acting, found = it.newest(asked)
      assert found == version
      chex.assert_trees_all_equal(acting, expected)
      for leaf in jax.tree.leaves(acting):
        assert leaf.devices() == {device}

  check(first, 0)
  held, _ = it.newest()
  (batch,) = experience.Once()(it.shares(unroll_of()))
  it.learn(batch)
  check(first, 0)
  it.publish()
  second = jax.device_get(it.acting())
  check(second, 1)
  gaps = jax.tree.map(lambda a, b: np.abs(a - b).max(), first, second)
  assert max(jax.tree.leaves(gaps)) > 1e-3
  # Who still acts by the old ones may.
  it.learn(batch)
  chex.assert_trees_all_equal(held, first)


def test_nobody_acts_by_an_update_that_is_under_way(monkeypatch):
  done = []
  monkeypatch.setattr(
    published._Version, "is_computed", lambda self: self.version in done
  )
  it = make()
  (batch,) = experience.Once()(it.shares(unroll_of()))
  for _ in range(3):
    it.learn(batch)
    it.publish(wait=False)
  assert it.newest()[1] == 0
  done += [1, 2]
  acting, version = it.newest()
  assert version == 2
  done.append(3)
  assert it.newest()[1] == 3
  gaps = jax.tree.map(lambda a, b: np.abs(a - b).max(), acting, it.newest()[0])
  assert max(jax.tree.leaves(gaps)) > 1e-4


def test_parameters_are_computed_when_all_of_them_are_on_every_device():
  done, under_way = (
    mock.Mock(**{"is_ready.return_value": x}) for x in (True, False)
  )
  devices = jax.devices()[:2]
  for last, expected in ((done, True), (under_way, False)):
    acting = dict(zip(devices, ([done, done], [done, last]), strict=True))
    assert published._Version(acting, 1).is_computed() == expected


def test_a_run_waits_for_experience_and_says_so():
  stop = threading.Event()
  it = make(stop=stop)
  (share,) = it.shares(unroll_of())
  with concurrent.futures.ThreadPoolExecutor() as pool:
    ran = pool.submit(it.run, lambda: jax.tree.map(np.zeros_like, share))
    running.wait_until(lambda: it.measure()[metrics.WAIT_EXPERIENCE] > 0.9)
    assert it.steps == 0 and not ran.done()
    assert it.inbox.put(share)
    running.wait_until(lambda: it.newest()[1] == 1)
    stop.set()
    it.inbox.close()
    ran.result(300)
  assert it.steps == 1


# What a checkpoint keeps


@pytest.mark.parametrize("num_cores", [2, 1])
def test_a_learner_that_was_saved_goes_on_as_if_it_had_not_been(num_cores):
  it = make(2)
  run(it, [unroll_of(), with_one("reward", np.nan)])
  # One update is still under way.
  (batch,) = experience.Once()(it.shares(unroll_of(5)))
  it.learn(batch)
  saved = jax.device_get(it.saved())
  steps = num_experience(unroll_of()) + num_experience(unroll_of(5))
  assert (saved["learned_steps"], saved["updates_skipped"]) == (steps, 1)
  source = mock.Mock(wraps=experience.Once())
  other = learner.Learner(
    agent_of(), config_of(num_cores), source, jax.random.key(99)
  )
  other.restore(saved)
  source.resume.assert_called_once_with(3, saved["state"].resets)
  assert (other.steps, other.learned_steps) == (3, steps)
  assert other.saved()["updates_skipped"] == 1
  acting, version = other.newest()
  assert version == 3
  chex.assert_trees_all_equal(acting, jax.device_get(it.acting()))
  chex.assert_trees_all_equal(
    other.policy({"agent": saved}), jax.device_get(it.acting())
  )
  lines = [run(x, [unroll_of(), unroll_of(5)]) for x in (it, other)]
  check = chex.assert_trees_all_equal if num_cores == 2 else assert_close
  check(*(jax.device_get(x.state) for x in (it, other)))
  # The first core's key.
  for name in ("first", "learner_steps", "learned_steps"):
    assert lines[0][name] == lines[1][name]
  assert (lines[0]["second"] == lines[1]["second"]) == (num_cores == 2)


@pytest.mark.parametrize("how", ["hangs", "fails"])
def test_an_update_that_does_not_end_well_is_not_saved(how, monkeypatch):
  monkeypatch.setattr(pending, "_COMPUTED_SECONDS", 0.1)
  it = make(1)
  run(it, [unroll_of()])
  before = jax.device_get(it.saved())
  (batch,) = experience.Once()(it.shares(unroll_of(5)))
  with monkeypatch.context() as patch:
    patch.setattr(pending, "is_ready", lambda nest: False)
    it.learn(batch)
  assert it.saved()["steps"] == before["steps"] + 1
  failure = jax.errors.JaxRuntimeError("INTERNAL: lost")
  wait = mock.Mock(side_effect=failure if how == "fails" else None)
  leaf = mock.Mock(is_ready=lambda: how == "fails", block_until_ready=wait)
  with monkeypatch.context() as patch:
    patch.setattr(it, "_state", jax.tree.map(lambda _: leaf, it._state))
    chex.assert_trees_all_equal(jax.device_get(it.saved()), before)
  assert wait.called == (how == "fails")
  it.finish()


# Updates that are not finite


@functools.cache
def ppo_agent():
  """One that makes several steps of Adam in an update."""
  config = ppo.Config(
    hidden_sizes=(8,), normalize_observations=True, epochs=2, minibatches=2
  )
  return config.make(SPEC, sharding.CORES)


def with_one(name, value, at=(2, 3)):
  """An unroll with one wrong number, in the rows of the first core."""
  unroll = unroll_of()
  timestep = unroll.inputs.timestep
  wrong = getattr(timestep, name).copy()
  wrong[at] = value
  timestep = timestep._replace(**{name: wrong})
  return unroll._replace(inputs=unroll.inputs._replace(timestep=timestep))


@pytest.mark.parametrize(
  ("agent", "micro_batches"), [(agent_of, 1), (agent_of, 4), (ppo_agent, 1)]
)
def test_an_update_that_is_not_finite_is_skipped(agent, micro_batches):
  it = make(2, micro_batches, agent())
  line = run(it, [unroll_of()])
  before = jax.device_get(it.state)
  assert not trees.non_finite(jax.tree.leaves(before))
  wrong = [
    with_one("reward", np.nan),
    with_one("reward", np.inf),
    with_one("observation", np.nan),
    # Cut before the network sees it, but it is in the statistics.
    with_one("observation", -np.inf),
  ]
  after = run(it, wrong)
  chex.assert_trees_all_equal(it.state, before)
  for leaf in jax.tree.leaves(it.state):
    for shard in leaf.addressable_shards[1:]:
      chex.assert_trees_all_equal(shard.data, leaf.addressable_shards[0].data)
  assert (it.steps, after["updates_skipped"]) == (5, 4)
  waits = {metrics.WAIT_EXPERIENCE: 0.0, "updates_skipped": 0}
  assert after | waits == line | waits
  assert run(it, [unroll_of(5)])["learner_steps"] == 2
  assert not np.array_equal(
    jax.tree.leaves(it.state.params)[-1], jax.tree.leaves(before.params)[-1]
  )
  assert it.learned_steps == num_experience(unroll_of()) + num_experience(
    unroll_of(5)
  )


@pytest.mark.parametrize("broken", range(3))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_keeps_everything_as_it_was(
  broken, value
):
  after = [np.ones((2, 3), np.float32), jnp.bfloat16(1), {"a": np.ones(4)}]
  before = jax.tree.map(np.zeros_like, after)
  after, before = [*after, np.int32(7)], [*before, np.int32(6)]
  keep = jax.jit(updates.keep_finite)
  chex.assert_trees_all_equal(keep(before, after), (after, False))
  wrong = jax.tree.map(np.array, after[broken])
  jax.tree.leaves(wrong)[0].flat[0] = value
  after[broken] = wrong
  chex.assert_trees_all_equal(keep(before, after), (before, True))


def test_no_core_updates_where_one_may_not():
  def wrong():
    core = jax.lax.axis_index(sharding.CORES)
    return jnp.where(core == 1, jnp.nan, 0.0)

  it = make(4, 1, tiny_agent(wrong))
  assert run(it, [unroll_of()])["updates_skipped"] == 1
  shards = it._state.params.addressable_shards
  assert [float(x.data) for x in shards] == [3.0] * 4


def test_a_learner_ends_after_many_skipped_updates_in_a_row(monkeypatch):
  monkeypatch.setattr(counters, "_MOST_SKIPPED", 3)
  it = make(1)
  wrong = with_one("reward", np.nan)
  run(it, [wrong, wrong, unroll_of(), wrong, wrong])
  before = jax.device_get(it.state)
  with pytest.raises(RuntimeError, match="in 3 in a row"):
    run(it, [wrong, wrong])
  it.finish()
  saved = it.saved()
  chex.assert_trees_all_equal(saved["state"], before)
  assert saved["updates_skipped"] >= 5


# New priorities


@functools.cache
def weighing_agent():
  """One of `experience_test`; its priorities say of which window they are.

  And of which update: the state counts them.
  """

  def update(state, rng_key, batch):
    del rng_key
    unroll, start = batch.unroll.version[0], batch.unroll.action[0]
    priorities = 1.0 + 100 * state.updates + 10 * unroll + start
    state = dataclasses.replace(state, updates=state.updates + 1)
    return state, types.LossOutput(jnp.float32(8), {}, priorities)

  return dataclasses.replace(
    experience_test.agent_of(),
    init=lambda rng_key: base.AgentState(
      (), (), {}, jnp.int32(0), jnp.float32(0)
    ),
    update=update,
  )


def priority_of(update, unroll, start):
  return 1.0 + 100 * update + 10 * unroll + start


class Prioritized:
  """A prioritized replay of two cores, and what each window should weigh."""

  def __init__(self):
    config = experience_test.replay_config(
      replay.PrioritizedConfig, ratio=12.0, priority_exponent=1.0
    )
    self.source = experience_test.source_of(config)
    self.learner = learner.Learner(
      weighing_agent(), config_of(2), self.source, KEY
    )
    self.shares = [
      share._replace(data=share.data._replace(inputs=no_resets(share)))
      for share in experience_test.with_priorities(0)
    ]
    self._learned = 0
    windows = range(experience_test.WINDOWS)
    self.expected = [
      {(2 * core + i, start): 1.0 for i in range(2) for start in windows}
      for core in range(2)
    ]

  def learned(self, batch):
    """Notes what is expected after one more update."""
    for core, part in enumerate(batch.parts):
      for window in experience_test.drawn(part):
        self.expected[core][window] = priority_of(self._learned, *window)
    self._learned += 1

  def check(self):
    for core in range(2):
      masses = experience_test.masses(self.source, core)
      assert masses == pytest.approx(self.expected[core], rel=1e-5)


def no_resets(share):
  timestep = dm_env.TimeStep(
    step_type=np.ones_like(share.data.version),
    reward=(),
    discount=(),
    observation=(),
  )
  return types.Inputs(
    jax.device_put(timestep, share.data.version.device), (), ()
  )


@pytest.mark.parametrize("ahead", [1, 3])
def test_each_batchs_priorities_land_at_its_own_windows(ahead):
  """However many batches are taken before they are learned."""
  it = Prioritized()
  batches, count = it.source(it.shares), 0
  while taken := list(itertools.islice(batches, ahead)):
    for batch in taken:
      it.learner.learn(batch)
      it.learned(batch)
      it.check()
      count += 1
  assert count == 24


def test_a_source_is_told_of_each_batch_once_also_over_a_resume():
  """A checkpoint has the batch that was under way, which nobody had counted."""

  class Counted(experience.Once):
    def __init__(self):
      self.total = np.zeros(2)

    def counted(self, env_steps, batches=1):
      self.total += env_steps, batches

  first, then = (
    learner.Learner(tiny_agent(), config_of(1), Counted(), KEY)
    for _ in range(2)
  )
  (batch,) = experience.Once()(first.shares(unroll_of()))
  for _ in range(3):
    first.learn(batch)
  assert first._source.total.tolist() == [2, 2]
  then.restore(jax.device_get(first.saved()))
  then.learn(batch)
  assert then._source.total.tolist() == [1, 1]
  then.finish()
  assert then._source.total.tolist() == [2, 2]


# What is refused


def test_micro_batches_that_do_not_divide_the_batch_are_refused():
  with pytest.raises(types.ConfigError, match="3 parts divide"):
    run(make(micro_batches=3), [unroll_of()])
  config = config_of(2, 4)
  config.check_divides("batch_size", 16, 8)
  with pytest.raises(types.ConfigError, match=r"multiple of 8, .*found 12"):
    config.check_divides("batch_size", 12, 8)


@pytest.mark.parametrize(
  "name", ["unroll_length", "micro_batches", "batch_size", "queue_capacity"]
)
def test_config_out_of_range_is_refused_with_its_name(name):
  with pytest.raises(types.ConfigError, match=f"expected {name} from 1"):
    learner.InboxConfig(**{name: 0})


def test_a_pipeline_with_an_inbox_needs_a_batch_size():
  with pytest.raises(types.ConfigError, match=r"a learner\.InboxConfig"):
    impala.Config(agent=vtrace.Config(), learner=learner.Config())


def test_what_a_source_measures_is_in_the_metrics():
  class Counting(experience.Once):
    def measure(self):
      return {"unrolls_dropped": 7}

  own = learner.Learner(agent_of(), learner.Config(), Counting(), KEY)
  assert own.measure()["unrolls_dropped"] == 7
